"""`kvplan explain` against start-up logs with their right readings beside them (`startup_log_expect/1`).

Figures are compared as sets of name, printed text and rank; settings and card as far as the reading names them. The
sentences are free, the codes are not.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from kvplan.explain.report import explain
from kvplan.explain.text import UnreadableLog
from tests.oracle.outcome import Mismatch, OracleInputError, Outcome

Fields: TypeAlias = Mapping[str, Any]
_Triple: TypeAlias = tuple[str, str, str | None]

_DERIVED_TOLERANCE_GIB = 0.3
_SAME = ("engine", "generation", "version", "version_from", "model", "architecture", "verdict", "main_reason")
FIGURE_NAMES = frozenset(
    {
        "activation_peak_gib",
        "attention_block_size",
        "avail_after_graph_gb",
        "avail_after_load_gb",
        "avail_after_pool_gb",
        "avail_before_graph_gb",
        "avail_before_load_gb",
        "avail_in_graph_capture_gb",
        "available_gpu_mem_gb",
        "available_kv_gib",
        "budget_gib",
        "chunked_prefill_size",
        "concurrency",
        "consumed_gib",
        "context_len",
        "conv_state_gb",
        "cuda_graph_estimated_gib",
        "cuda_graph_gb",
        "cuda_graph_gib",
        "cuda_graph_pool_actual_gib",
        "cuda_graph_pool_estimated_gib",
        "cudagraph_capture_max",
        "cudagraph_capture_max_before",
        "effective_utilization",
        "estimated_max_model_len",
        "free_at_start_gib",
        "initial_usage_gib",
        "k_size_gb",
        "kv_cache_tokens",
        "kv_size_gb",
        "kv_tokens",
        "kv_tokens_profiled",
        "mamba_cache_slots",
        "mamba_padding_percent",
        "max_kv_tokens",
        "max_model_len",
        "max_prefill_tokens",
        "max_running_requests",
        "max_total_num_tokens",
        "needed_kv_gib",
        "non_torch_gib",
        "num_cpu_blocks",
        "num_gpu_blocks",
        "padding_layers",
        "padding_waste_percent",
        "ssm_state_gb",
        "suggested_kv_memory_fit_bytes",
        "suggested_kv_memory_full_bytes",
        "suggested_utilization",
        "torch_peak_gib",
        "total_gib",
        "usage_post_profile_gib",
        "utilization",
        "v_size_gb",
        "weights_gb",
        "weights_gib",
        "weights_profiled_gib",
    }
)
"""The names that the readings use; figures that the product reads beyond these are not judged."""


def check(path: Path) -> Iterator[Outcome]:
    """Compare every `NAME.json` of a folder, or one, with what is read from the log that it names.

    Raises:
        OracleInputError: There is no such reading in the folder.
    """
    readings = sorted(path.glob("*.json")) if path.is_dir() else [path]
    wanted = [(reading, document) for reading in readings if (document := _load(reading)) is not None]
    if not wanted:
        raise OracleInputError(f"{path}: no readings of schema startup_log_expect/1 in it")
    for reading, document in wanted:
        yield _outcome(reading, document)


def _load(path: Path) -> Fields | None:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) and document.get("schema") == "startup_log_expect/1" else None


def _outcome(path: Path, wanted: Fields) -> Outcome:
    try:
        data = (path.parent / wanted["file"]).read_bytes()
    except OSError as error:
        raise OracleInputError(f"{path}: its log cannot be read ({error})") from None
    try:
        engines: list[Fields] = explain(data, where=wanted["file"])["engines"]
        refusal = None
    except UnreadableLog as error:
        engines, refusal = [], error.refusal
    mismatches = [
        *_differences("", {"recognised": bool(engines), "refusal": refusal}, wanted, ("recognised", "refusal")),
        *_engine_mismatches(wanted["engines"], engines),
    ]
    return Outcome(case=path.stem, mismatches=tuple(mismatches))


def _engine_mismatches(wanted: list[Fields], got: list[Fields]) -> Iterator[Mismatch]:
    if len(wanted) != len(got):
        yield Mismatch("engine starts", len(wanted), len(got))
        return
    for number, (expected, engine) in enumerate(zip(wanted, got, strict=True)):
        prefix = f"engine {number}: " if len(wanted) > 1 else ""
        yield from _differences(prefix, engine, expected, _SAME)
        yield from _gpu_mismatches(prefix, expected["gpu"], engine["gpu"])
        yield from _settings_mismatches(prefix, expected, engine)
        yield from _figure_mismatches(prefix, expected["figures"], engine["figures"])
        yield from _error_mismatches(prefix, expected["error"], engine["error"])
        verdict = engine["consistency"]["verdict"]
        if verdict != expected["consistency"]["verdict"]:
            yield Mismatch(f"{prefix}consistency", expected["consistency"]["verdict"], verdict)


def _differences(prefix: str, got: Fields, wanted: Fields, names: Iterable[str]) -> Iterator[Mismatch]:
    for name in names:
        if got.get(name) != wanted.get(name):
            yield Mismatch(f"{prefix}{name}", wanted.get(name), got.get(name))


def _gpu_mismatches(prefix: str, wanted: Fields, got: Fields) -> Iterator[Mismatch]:
    for name, value in wanted.items():
        if name == "total_gib_derived" and got[name] is not None:
            if abs(got[name] - value) > _DERIVED_TOLERANCE_GIB:
                yield Mismatch(f"{prefix}gpu.{name}", value, got[name])
        elif got.get(name) != value:
            yield Mismatch(f"{prefix}gpu.{name}", value, got.get(name))


def _settings_mismatches(prefix: str, wanted: Fields, got: Fields) -> Iterator[Mismatch]:
    for name, value in wanted["flags"].items():
        if name not in got["flags"] or got["flags"][name] != value:
            yield Mismatch(f"{prefix}flags.{name}", value, got["flags"].get(name, "absent"))
    if set(wanted["flags_inferred"]) != set(got["flags_inferred"]):
        yield Mismatch(f"{prefix}flags_inferred", sorted(wanted["flags_inferred"]), sorted(got["flags_inferred"]))


def _figure_mismatches(prefix: str, wanted: list[Fields], got: list[Fields]) -> Iterator[Mismatch]:
    judged = [figure for figure in got if figure["name"] in FIGURE_NAMES]
    replicas = {index for figure in (*wanted, *judged) for index in re.findall(r"DP(\d+)", str(figure.get("rank")))}
    expected, read = (_triples(figures, with_replica=len(replicas) > 1) for figures in (wanted, judged))
    for name, text, rank in sorted(expected - read, key=str):
        yield Mismatch(f"{prefix}figure {name}{f' of {rank}' if rank else ''}", text, "absent")
    for name, text, rank in sorted(read - expected, key=str):
        yield Mismatch(f"{prefix}figure {name}{f' of {rank}' if rank else ''}", "absent", text)


def _triples(figures: Iterable[Fields], *, with_replica: bool) -> set[_Triple]:
    return {(figure["name"], figure["text"], _rank(figure.get("rank"), with_replica)) for figure in figures}


def _rank(rank: object, with_replica: bool) -> str | None:
    """A rank in one spelling: the parts that place a worker.

    The expert rank follows from the others; a replica's index says nothing in an entry that is all one replica's.
    """
    text = "" if rank is None else str(rank).upper()
    bare = re.fullmatch(r"(?:RANK[ =]?)?(\d+)", text)
    parts = [("TP", bare[1])] if bare else re.findall(r"(DP|PP|TP)[ _]?(\d+)", text)
    return " ".join(f"{name}{index}" for name, index in parts if with_replica or name != "DP") or None


def _error_mismatches(prefix: str, wanted: Fields | None, got: Fields | None) -> Iterator[Mismatch]:
    if wanted is None or got is None:
        if wanted is not got:
            yield Mismatch(f"{prefix}error", wanted, got)
        return
    yield from _differences(f"{prefix}error.", got, wanted, wanted)
