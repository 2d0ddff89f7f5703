"""How many GPUs one engine runs on, from its settings or from the ranks that its lines name."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvplan.explain.findings import SGLANG, Finding
from kvplan.explain.settings import Setting
from kvplan.explain.starts import Start

_PART = re.compile(r"(DP|PP|PCP|TP)(\d+)")
_SIZE_NAMES = {
    "vllm": {"TP": "tensor_parallel_size", "PP": "pipeline_parallel_size", "PCP": "prefill_context_parallel_size"},
    "sglang": {"TP": "tp_size", "PP": "pp_size", "DP": "dp_size"},
}
_SINGLE_GPU_EXECUTOR = "gpu_executor.py"
"""vLLM's executor for one GPU, to 0.6; several have files of their own."""
_REPEATED = re.compile(r"\[repeated (\d+)x across cluster\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCount:
    """The GPUs of one engine."""

    count: int | None = None
    at_least: int | None = None
    """Where only the highest rank is known."""
    stated: bool = False
    settings: dict[str, Setting] = field(default_factory=dict)
    """Parallel sizes that follow from the ranks seen."""
    seen: tuple[str, ...] = ()
    """The ranks that lines name."""


def rank_order(rank: str) -> tuple[tuple[str, int], ...]:
    """Sort key: by pipeline stage, then by tensor rank."""
    return tuple((name, int(index)) for name, index in _PART.findall(rank))


def count_ranks(start: Start, settings: Mapping[str, Setting]) -> RankCount:
    """Count the GPUs: as stated, else as the ranks show; None where neither says."""
    seen = tuple(dict.fromkeys(origin.rank for origin in start.origins if origin.rank))
    if (stated := _stated(start.engine, settings)) is not None:
        return RankCount(count=stated, stated=True, seen=seen)
    indices = _indices(seen)
    if start.engine == SGLANG and not seen:
        has_prefix = any(origin.sglang for origin in start.origins)
        return RankCount(count=1 if has_prefix else None)
    sizes = {name: max(found) + 1 for name, found in indices.items() if found == set(range(max(found) + 1))}
    if not seen:
        return _without_rank_names(start)
    tensor = {name: size for name, size in sizes.items() if name != "DP"}
    whole = len(sizes) == len(indices) and any(size > 1 for size in sizes.values())
    names = _SIZE_NAMES[start.engine]
    inferred: dict[str, Setting] = {names[name]: size for name, size in sizes.items() if name in names and size > 1}
    if start.replica is not None:
        inferred.pop("dp_size", None)
    inferred |= _replica_settings(start)
    if not whole:
        highest = max((max(found) + 1 for name, found in indices.items() if name != "DP"), default=None)
        is_suffix_of_several = start.engine != SGLANG and highest is not None
        at_least = max(highest or 0, 2) if is_suffix_of_several else highest
        return RankCount(
            at_least=at_least if at_least and at_least > 1 else None, settings=_replica_settings(start), seen=seen
        )
    count = 1
    for size in tensor.values():
        count *= size
    return RankCount(count=count, settings=inferred, seen=seen)


def _replica_settings(start: Start) -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    if start.engine != SGLANG and any(origin.expert_rank is not None for origin in start.origins):
        settings["enable_expert_parallel"] = True
    if start.num_replicas > 1:
        settings["data_parallel_size" if start.engine != SGLANG else "dp_size"] = start.num_replicas
    return settings


def _stated(engine: str, settings: Mapping[str, Setting]) -> int | None:
    names = ["tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size"]
    if engine == SGLANG:
        names = ["tp_size", "pp_size"]
    first = settings.get(names[0])
    if not isinstance(first, int):
        return None
    count = first
    for name in names[1:]:
        size = settings.get(name)
        count *= size if isinstance(size, int) and size > 0 else 1
    return count


def _indices(ranks: tuple[str, ...]) -> dict[str, set[int]]:
    indices: dict[str, set[int]] = {}
    for rank in ranks:
        for name, index in _PART.findall(rank):
            indices.setdefault(name, set()).add(int(index))
    return indices


def _without_rank_names(start: Start) -> RankCount:
    """V0 and Ray name processes, not ranks; the first worker has no prefix at all."""
    findings = [event for event in start.events if isinstance(event, Finding)]
    if any(finding.record.source == _SINGLE_GPU_EXECUTOR for finding in findings):
        return RankCount(count=1)
    workers = {(origin.ip, origin.pid) for origin in start.origins if origin.process == "VllmWorkerProcess"}
    if workers:
        return RankCount(count=len(workers) + 1)
    ray = {(origin.ip, origin.pid) for origin in start.origins if origin.process.startswith("RayWorker")}
    if ray:
        repeats = [int(match[1]) for finding in findings if (match := _REPEATED.search(finding.record.text))]
        return RankCount(at_least=max(len(ray), 1 + max(repeats, default=0)))
    per_worker = [
        finding
        for finding in findings
        if any(figure.name == "kv_cache_tokens" for figure in finding.figures) and "Maximum" not in finding.record.text
    ]
    return RankCount(count=len(per_worker) if len(per_worker) > 1 else None)
