"""What one engine of a server says of itself, in words that vLLM and SGLang share. None is "not said", never 0."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from kvengine.telemetry.histogram import Histogram

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """How an engine stands now, or stood after its last step: gauges do not move between steps."""

    running: int | None = None
    waiting: int | None = None
    """Requests in the queue, preempted ones included."""
    waiting_by_reason: Mapping[str, int] = field(default_factory=dict)
    swapped: int | None = None
    """Requests moved to the CPU; only vLLM V0 does that."""
    retracted_in_last_report: int | None = None
    """SGLang: requests retracted since the report before, no total."""

    usage: float | None = None
    """Share of the pool in use as published, 0 to 1; cached blocks that nobody holds count as free."""
    usage_from: str | None = None
    """Name of the metric it was read from."""
    usage_max: float | None = None
    """In a total: the usage of the fullest engine, which the usage of all together would hide."""
    cpu_usage: float | None = None
    """Share of the CPU block pool (vLLM V0) or of the CPU offloading tier in use."""

    block_size: int | None = None
    """Tokens per block; SGLang's page size."""
    num_blocks: int | None = None
    """As the engine counts them: with the null block in vLLM V1."""
    num_blocks_inferred: int | None = None
    """Pool size guessed from an idle usage of 1/N, where it is not published."""
    usable_blocks: int | None = None
    """What the published usage is a share of."""
    used_blocks: int | None = None
    """Blocks that a request holds; until vLLM 0.10.1.1 the null block is counted too."""
    free_blocks: int | None = None
    """Blocks that nobody holds, the cached ones included; None for SGLang, which tells cached and free apart."""
    cached_blocks: int | None = None
    """Blocks that nobody holds and that can still be hit; published by SGLang only."""

    capacity_tokens: int | None = None
    """Size of the pool in tokens, where it is published."""
    capacity_token_bounds: tuple[int, int] | None = None
    """Between what the size of the pool must lie, from used tokens and a rounded usage, where it is not published."""
    used_tokens: int | None = None
    cached_tokens: int | None = None
    """Tokens kept for a later hit, reclaimable."""
    free_tokens: int | None = None
    """Slots with nothing in them."""
    host_used_tokens: int | None = None
    host_capacity_tokens: int | None = None

    hit_rate: float | None = None
    """Prefix hit rate where it is published as such (vLLM V0); see `EngineReading.hit_rate`."""
    last_batch_hit_rate: float | None = None
    """SGLang: of the last prefill alone; old releases set it to 0 while decoding."""
    generation_tokens_per_s: float | None = None
    """SGLang: throughput of the last report."""

    @property
    def filled(self) -> float | None:
        """Share of the pool that holds data, in use or reclaimable; None where the cached part is not published."""
        if self.used_tokens is None or self.cached_tokens is None or not self.capacity_tokens:
            return None
        return (self.used_tokens + self.cached_tokens) / self.capacity_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What was counted since the server started."""

    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    prefix_queries: int | None = None
    """Looked up in the prefix cache, in `prefix_unit`."""
    prefix_hits: int | None = None
    prefix_unit: str | None = None
    """`tokens`, or `blocks` before vLLM 0.9; None where the text leaves it open."""
    hit_rate_from: str | None = None
    external_prefix_queries: int | None = None
    """Looked up in other tiers, tokens."""
    external_prefix_hits: int | None = None
    preemptions: int | None = None
    """SGLang calls them retractions."""
    evicted_tokens: int | None = None
    finished: Mapping[str, int] = field(default_factory=dict)
    """Requests that ended, by reason; SGLang: under `all`."""
    hits_by_source: Mapping[str, int] = field(default_factory=dict)
    """Cached prompt tokens by where they came from."""
    created_unix_s: float | None = None
    """When the counting began, where it is published."""
    time_to_first_token_s: Histogram | None = None
    inter_token_s: Histogram | None = None
    end_to_end_s: Histogram | None = None
    queue_s: Histogram | None = None

    @property
    def num_finished(self) -> int | None:
        """Requests that ended, each observed once by the latency histogram; cancelled ones may be in no count."""
        return num_finished(self.end_to_end_s, self.finished)

    @property
    def hit_rate(self) -> float | None:
        """Prefix hits over queries of the whole lifetime; None when nothing was looked up."""
        return ratio(self.prefix_hits, self.prefix_queries)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReading:
    """One engine (data-parallel rank), or all of a server together."""

    rank: str | None = None
    """None for all together."""
    model: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """What tells this engine from the others of the text."""
    gauges: Gauges
    counters: Counters
    config: Mapping[str, str] = field(default_factory=dict)
    """Labels of vLLM's `cache_config_info`, as they stand."""

    @property
    def hit_rate(self) -> float | None:
        """Prefix hit rate of the lifetime, 0 to 1."""
        rate = self.counters.hit_rate
        return rate if rate is not None else self.gauges.hit_rate

    @property
    def hit_rate_from(self) -> str | None:
        """Where the hit rate comes from, or why there is none; None when the text has nothing of the kind."""
        if self.counters.hit_rate_from:
            return self.counters.hit_rate_from
        if self.gauges.hit_rate is not None:
            return "vllm:gpu_prefix_cache_hit_rate"
        return "sglang:cache_hit_rate gauge only (last batch)" if self.gauges.last_batch_hit_rate is not None else None


def ratio(part: int | None, whole: int | None) -> float | None:
    """`part / whole`, or None if one is unknown, nothing was counted, or the part is the larger."""
    if part is None or not whole or part > whole:
        return None
    return part / whole


def num_finished(end_to_end_s: Histogram | None, by_reason: Mapping[str, int]) -> int | None:
    """Requests that ended, by the histogram that observes each once, else by the counter of reasons."""
    if end_to_end_s is not None:
        return round(end_to_end_s.count)
    return sum(by_reason.values()) if by_reason else None


def total_of(engines: Sequence[EngineReading], gauges: Sequence[Gauges], counters: Counters) -> EngineReading:
    """All engines together.

    Args:
        gauges: Of each engine, without those that some engine's may be missing of.
        counters: Those of the whole server, read as such, since some are not kept by engine.
    """
    return EngineReading(
        model=same(engine.model for engine in engines),
        gauges=_gauges_of(gauges),
        counters=counters,
        config=same(engine.config for engine in engines) or {},
    )


def same(values: Iterable[T | None]) -> T | None:
    """What all values are, or None."""
    distinct: list[T | None] = []
    for value in values:
        if value not in distinct:
            distinct.append(value)
    return distinct[0] if len(distinct) == 1 else None


def first(values: Iterable[T | None]) -> T | None:
    """The first known value."""
    return next((value for value in values if value is not None), None)


def _gauges_of(parts: Sequence[Gauges]) -> Gauges:
    usages = [part.usage for part in parts if part.usage is not None]
    usage_max = max(usages) if usages and len(usages) == len(parts) else None
    if len(parts) == 1:
        return replace(parts[0], usage_max=usage_max)

    def added(name: str) -> int | None:
        values: list[int | None] = [getattr(part, name) for part in parts]
        known = [value for value in values if value is not None]
        return sum(known) if known and len(known) == len(values) else None

    total: dict[str, Any] = {name: added(name) for name in _ADDED}
    return Gauges(
        **total,
        usage=_usage_of(total),
        usage_max=usage_max,
        usage_from=same(part.usage_from for part in parts),
        block_size=same(part.block_size for part in parts),
        waiting_by_reason=_added_maps([part.waiting_by_reason for part in parts]),
    )


_ADDED = (
    "running",
    "waiting",
    "swapped",
    "retracted_in_last_report",
    "num_blocks",
    "usable_blocks",
    "used_blocks",
    "free_blocks",
    "cached_blocks",
    "capacity_tokens",
    "used_tokens",
    "cached_tokens",
    "free_tokens",
    "host_used_tokens",
    "host_capacity_tokens",
)


def _usage_of(total: Mapping[str, int | None]) -> float | None:
    """Usage of all pools together; a mean of shares would be wrong for pools of different sizes."""
    by_blocks = ratio(total["used_blocks"], total["usable_blocks"])
    return by_blocks if by_blocks is not None else ratio(total["used_tokens"], total["capacity_tokens"])


def _added_maps(maps: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    keys = [set(part) for part in maps]
    if not keys or any(other != keys[0] for other in keys):
        return {}
    return {key: sum(part[key] for part in maps) for key in maps[0]}
