"""Points with all they refer to read and checked: workload, model, and the pool that their limits come to."""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kvengine.allocators.kinds import AllocatorKind
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.errors import ConfigError
from kvengine.presets import PRESETS
from kvengine.spec import KVCacheSpec
from kvengine.units import format_bytes
from kvplan.budget import MemoryBudget
from kvplan.capacity import EngineKind, fill_pool
from kvplan.requests.build import request_specs
from kvplan.requests.spec import RequestSpec
from kvplan.run_model import RunModel, find_model
from kvplan.run_profile import STARTED, Point, RunProfile
from kvplan.serving.launch import weights_of
from kvplan.workload import Workload, file_digest

_UNKNOWN_POOL = 2
"""Blocks that stand for the pool of a server until it says how many it has."""
MAX_BLOCKS = 2**24
"""1 TiB in blocks of 64 KiB: a mistyped size must not fill the memory of this machine with records of blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPoint:
    """A point with all it refers to read and checked; no weights are loaded yet."""

    point: Point
    model: RunModel
    config: EngineConfig
    budget: MemoryBudget | None
    """Of the card that sizes the pool; None where its size was given."""
    fingerprint: str
    """Stands for everything that decides the result: settings, workload content, model, version."""
    series: str
    """The same without the keys that vary and the seed: what the points of one sweep have in common."""
    requests_key: str
    """Stands for what decides the requests alone, so that points which share them can share the work."""

    @property
    def is_live(self) -> bool:
        """Whether our engine runs with a model."""
        return self.point.profile.target == "engine"

    @property
    def is_served(self) -> bool:
        """Whether a server is measured."""
        return self.point.profile.is_served

    @property
    def workload(self) -> Workload:
        """What is asked."""
        return self.point.workload

    def requests(self) -> list[RequestSpec]:
        """The requests of the workload, in tokens.

        Raises:
            ConfigError: A trace that the workload names cannot be read.
            DeviceError: The workload is text, and the package that reads the tokenizer is not installed.
        """
        return request_specs(
            self.workload,
            seed=self.point.profile.seed,
            vocab_size=self.model.vocab_size,
            tokenize=self.model.load_tokenize() if self.workload.needs_tokenizer else None,
        )


class RequestStore:
    """Makes the requests of points, those of equal workloads and seeds once.

    Args:
        num_kept: Lists that are remembered; the points of a sweep mostly share one a repeat.
    """

    def __init__(self, num_kept: int = 8) -> None:
        self._num_kept = num_kept
        self._lists: OrderedDict[str, list[RequestSpec]] = OrderedDict()

    def requests(self, prepared: PreparedPoint) -> list[RequestSpec]:
        """The requests of a point; see `PreparedPoint.requests`."""
        key = prepared.requests_key
        if key not in self._lists:
            self._lists[key] = prepared.requests()
        self._lists.move_to_end(key)
        while len(self._lists) > self._num_kept:
            self._lists.popitem(last=False)
        return self._lists[key]


def prepare(points: Sequence[Point]) -> list[PreparedPoint]:
    """Read the workloads and the models' geometry, each once, and plan the pools.

    Raises:
        ConfigError: A file that a profile names is missing or not valid, or a limit cannot be met.
        DeviceError: The demo model is named and not installed.
    """
    digest, model_of = cache(file_digest), cache(_find_model)
    return [
        _prepare(
            point,
            point.workload.content(digest),
            *model_of(
                point.profile.model, point.folder, point.profile.target == "engine", point.profile.load == "random"
            ),
        )
        for point in points
    ]


def _find_model(name: str, folder: Path, needs_weights: bool, is_random: bool) -> tuple[RunModel, str]:
    model = find_model(name, folder=folder, needs_weights=needs_weights, is_random=is_random)
    return model, model.identity()


def _prepare(point: Point, workload: dict[str, Any], model: RunModel, model_identity: str) -> PreparedPoint:
    content = {
        "name": point.name,
        "axes": sorted(point.axes),
        "version": version("pagedkv"),
        "workload": workload,
        "model": model_identity,
        "settings": dict(point.settings),
    }
    if point.profile.target in STARTED and not (point.profile.server and point.profile.server.command):
        weights_of(point, model)  # said before anything is started
    budget = _budget(point, model)
    return PreparedPoint(
        point=point,
        model=model,
        config=plan_engine(point, model, budget),
        budget=budget,
        fingerprint=_digest(content),
        series=_digest(_without(content, point.axes)),
        requests_key=_digest([workload, model_identity, point.profile.seed]),
    )


def _without(content: Mapping[str, Any], axes: Sequence[str]) -> dict[str, Any]:
    """What the points of a sweep have in common: no key that varies, and no seed."""
    common: dict[str, Any] = deepcopy(dict(content))
    for axis in (*axes, "seed"):
        common["settings"].pop(axis, None)
        *parents, last = axis.split(".")
        part = common
        for parent in parents:
            part = part.get(parent, {})
        if isinstance(part, dict) and axis.split(".")[0] in ("workload", "model"):
            part.pop(last, None)
    return common


def _budget(point: Point, model: RunModel) -> MemoryBudget | None:
    """Divide the card that sizes the pool, if one does.

    Raises:
        ConfigError: There is no such card, or planning does not understand the model.
    """
    if point.profile.gpu is None:
        return None
    from kvplan.card_pool import budget_of_card

    return budget_of_card(
        point.profile,
        model.plan_spec(),
        block_size=_block_size(point.profile),
        max_model_len=_max_model_len(point, model),
        where=point.where,
    )


def _max_model_len(point: Point, model: RunModel) -> int:
    most = model.geometry.max_model_len
    max_model_len = point.profile.max_model_len or most
    if max_model_len > most:
        message = f"expected at most the {most} tokens that {model.name} allows, got {max_model_len}"
        raise ConfigError(message, where=f"{point.where}: max_model_len")
    return max_model_len


def plan_engine(point: Point, model: RunModel, budget: MemoryBudget | None = None) -> EngineConfig:
    """Turn a profile's limits and bytes into the engine's configuration.

    Args:
        point: The profile.
        model: Its model.
        budget: Of the card that sizes the pool; None where the profile says its size.

    Raises:
        ConfigError: `max_model_len` is more than the model allows, the allocator cannot keep its layers, or the pool
            has too many blocks to keep book of.
    """
    profile, max_model_len = point.profile, _max_model_len(point, model)
    block_size = _block_size(profile)
    layout = model.layout(
        dtype=profile.kv_cache_dtype,
        block_size=block_size,
        tensor_parallel=profile.tensor_parallel,
        keeps_all=profile.allocator is not AllocatorKind.PAGED,
    )
    capacity = fill_pool(
        layout.layout,
        EngineKind.VLLM,
        available_bytes=profile.available_kv or 0 if budget is None else budget.available_kv.size_bytes,
        max_model_len=max_model_len,
        override=_num_blocks(profile, block_size),
    )
    if capacity.num_blocks > MAX_BLOCKS:
        message = f"{capacity.num_blocks:,} blocks of {block_size} tokens are more than the {MAX_BLOCKS:,} allowed"
        raise ConfigError(message, where=f"{point.where}: available_kv")
    return EngineConfig(
        kv_cache=layout.spec,
        groups=layout.groups,
        group_layers=layout.group_layers,
        num_blocks=capacity.num_blocks,
        enable_prefix_caching=profile.prefix_caching and not profile.allocator.is_reserving,
        preset=PRESETS[profile.preset],
        eviction_policy=profile.eviction_policy,
        preemption=profile.preemption,
        num_host_blocks=_num_host_blocks(point, layout.spec),
        scheduler=SchedulerConfig(
            max_num_seqs=profile.max_num_seqs,
            max_num_batched_tokens=profile.max_num_batched_tokens,
            max_model_len=max_model_len,
            enable_chunked_prefill=profile.chunked_prefill,
            long_prefill_token_threshold=profile.long_prefill_token_threshold,
            policy=profile.scheduling_policy,
            watermark=profile.watermark,
            victim_policy=profile.victim_policy,
            misfits=profile.misfits,
            max_waiting=profile.max_waiting,
        ),
    )


def _block_size(profile: RunProfile) -> int:
    """Tokens of a block as the engine counts them: a page of a token-level allocator, one where runs are handed out."""
    match profile.allocator:
        case AllocatorKind.PAGED:
            return profile.block_size
        case AllocatorKind.TOKEN_LEVEL:
            return profile.page_size
        case AllocatorKind.CONTIGUOUS | AllocatorKind.BUDDY:
            return 1


def _num_blocks(profile: RunProfile, block_size: int) -> int | None:
    """Blocks where their number was given: as many as the memory of the profile's own blocks holds."""
    if profile.num_blocks is None:
        return _UNKNOWN_POOL if profile.available_kv is None and profile.gpu is None else None
    return profile.num_blocks * profile.block_size // block_size


def _num_host_blocks(point: Point, spec: KVCacheSpec) -> int:
    """Blocks that fit into the swap space; 0 where there is none.

    Raises:
        ConfigError: Not a single one fits, or more than there is any use for.
    """
    size_bytes = point.profile.swap_space
    if size_bytes is None:
        return 0
    num_blocks = size_bytes // spec.block_bytes
    if not 1 <= num_blocks <= MAX_BLOCKS:
        message = (
            f"expected room for 1 to {MAX_BLOCKS:,} blocks of {format_bytes(spec.block_bytes)}, "
            f"got {format_bytes(size_bytes)}"
        )
        raise ConfigError(message, where=f"{point.where}: swap_space")
    return num_blocks


def _digest(value: object) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
