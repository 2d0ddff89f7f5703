"""vLLM's metric names from 0.6 (V0) to current, and what they mean by release."""

from collections.abc import Sequence

from kvengine.telemetry.engine_reading import Counters, EngineReading, Gauges, first, total_of
from kvengine.telemetry.engine_series import EngineSeries, as_count, as_counts, as_fraction, label_count
from kvengine.telemetry.prometheus import Labels, MetricsText

PREFIX = "vllm:"

_LABELS = ("engine", "model_name")
_ANCHORS = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "gpu_cache_usage_perc")
_USAGE = ("kv_cache_usage_perc", "gpu_cache_usage_perc")
"""The second until 0.9.1, both from 0.9.2 to 0.10.2 with one value, then the first."""
_QUERIES = ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total")
_HITS = ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total")
_CREATED = ("prompt_tokens_created", "generation_tokens_created", "prefix_cache_queries_created")
_V0_ONLY = ("num_requests_swapped", "cpu_cache_usage_perc", "gpu_prefix_cache_hit_rate")
_SINCE_0_10_2 = "inter_token_latency_seconds"
"""First seen in the release in which the null block left the denominator of the usage."""
_UNTIL_0_10_2 = (_USAGE[1], _QUERIES[1], _HITS[1])
_INTER_TOKEN = ("inter_token_latency_seconds", "time_per_output_token_seconds")
_WHOLE = 1e-6
"""How far from a whole number `usage * blocks` may lie: the double has 16 digits, a pool has 7."""


def read(text: MetricsText, prefix: str = PREFIX) -> tuple[list[EngineReading], EngineReading]:
    """Every engine in order of rank, and all together."""
    series = EngineSeries(text, prefix, _ANCHORS, _LABELS)
    whole = EngineSeries(text, prefix, _ANCHORS, _LABELS, whole_only=True) if text.truncated else series
    indices = range(len(series.engines))
    engines = [_engine(series, index) for index in indices]
    engines.sort(key=lambda engine: (len(engine.rank or ""), engine.rank or ""))
    gauges = (
        [_gauges(whole, index, _config(whole, index)) for index in indices]
        if text.truncated
        else [e.gauges for e in engines]
    )
    return engines, total_of(engines, gauges, _counters(series, None))


def _engine(series: EngineSeries, index: int) -> EngineReading:
    labels = series.engines[index]
    config = _config(series, index)
    return EngineReading(
        rank=labels.get("engine", "0"),
        model=labels.get("model_name"),
        labels=labels,
        gauges=_gauges(series, index, config),
        counters=_counters(series, index),
        config=config,
    )


def _config(series: EngineSeries, index: int) -> Labels:
    """The labels on which all `cache_config_info` lines of an engine agree, a `None` giving way to a value."""
    found: dict[str, set[str]] = {}
    for labels in series.infos("cache_config_info", index):
        for name, value in labels.items():
            found.setdefault(name, set()).add(value)
    agreed = {name: values - {"None"} if len(values) > 1 else values for name, values in found.items()}
    return {name: next(iter(values)) for name, values in agreed.items() if len(values) == 1}


def _gauges(series: EngineSeries, index: int, config: Labels) -> Gauges:
    usage, usage_from = _first_fraction(series, _USAGE, index)
    num_blocks = label_count(config.get("num_gpu_blocks"))
    usable = _usable_blocks(series, usage, num_blocks)
    used = _used_blocks(usage, usable)
    running = as_count(series.gauge("num_requests_running", index))
    waiting = as_count(series.gauge("num_requests_waiting", index))
    cpu_usage, _ = _first_fraction(series, ("cpu_cache_usage_perc", "kv_offload_cpu_cache_usage_perc"), index)
    return Gauges(
        running=running,
        waiting=waiting,
        waiting_by_reason=as_counts(series.labelled_gauge("num_requests_waiting_by_reason", "reason", index)),
        swapped=as_count(series.gauge("num_requests_swapped", index)),
        usage=usage,
        usage_from=usage_from,
        cpu_usage=cpu_usage,
        block_size=label_count(config.get("block_size")),
        num_blocks=num_blocks,
        num_blocks_inferred=None if num_blocks or running or waiting else _infer_num_blocks(series, usage),
        usable_blocks=usable,
        used_blocks=used,
        free_blocks=None if used is None or usable is None else usable - used,
        capacity_tokens=label_count(config.get("kv_cache_size_tokens")),
        # -1 stands for "prefix caching is off", and is no fraction.
        hit_rate=as_fraction(series.gauge("gpu_prefix_cache_hit_rate", index)),
    )


def _counters(series: EngineSeries, index: int | None) -> Counters:
    queries, queries_from = _first_count(series, _QUERIES, index)
    hits, hits_from = _first_count(series, _HITS, index)
    mixed = (queries_from == _QUERIES[0]) != (hits_from == _HITS[0])
    source = "old-name hits over new-name queries" if mixed else "lifetime hits/queries"
    return Counters(
        prompt_tokens=as_count(series.counter("prompt_tokens_total", index)),
        generation_tokens=as_count(series.counter("generation_tokens_total", index)),
        prefix_queries=queries,
        prefix_hits=hits,
        prefix_unit=_prefix_unit(series),
        hit_rate_from=source if queries_from and hits_from else None,
        external_prefix_queries=as_count(series.counter("external_prefix_cache_queries_total", index)),
        external_prefix_hits=as_count(series.counter("external_prefix_cache_hits_total", index)),
        preemptions=as_count(series.counter("num_preemptions_total", index)),
        finished=as_counts(series.counter_by("request_success_total", "finished_reason", index)),
        hits_by_source=as_counts(series.counter_by("prompt_tokens_cached_by_source_total", "source", index)),
        created_unix_s=None if index is None else first(series.gauge(name, index) for name in _CREATED),
        time_to_first_token_s=series.histogram("time_to_first_token_seconds", index),
        inter_token_s=first(series.histogram(name, index) for name in _INTER_TOKEN),
        end_to_end_s=series.histogram("e2e_request_latency_seconds", index),
        queue_s=series.histogram("request_queue_time_seconds", index),
    )


def _usable_blocks(series: EngineSeries, usage: float | None, num_blocks: int | None) -> int | None:
    """What the usage is a share of: all blocks, and from 0.10.2 all but the null block.

    The names tell the release; where whole blocks come out of the other share alone, that one holds.
    """
    if num_blocks is None or any(map(series.has, _V0_ONLY)):
        return num_blocks
    if series.has(_SINCE_0_10_2):
        expected, other = num_blocks - 1, num_blocks
    elif any(map(series.has, _UNTIL_0_10_2)):
        expected, other = num_blocks, num_blocks - 1
    elif series.has(_USAGE[0]):
        expected, other = num_blocks - 1, num_blocks
    else:
        return None
    return other if usage is not None and not _is_whole(usage * expected) and _is_whole(usage * other) else expected


def _used_blocks(usage: float | None, usable_blocks: int | None) -> int | None:
    if usage is None or usable_blocks is None or not _is_whole(usage * usable_blocks):
        return None
    return round(usage * usable_blocks)


def _infer_num_blocks(series: EngineSeries, usage: float | None) -> int | None:
    """Pool size of an idle V1 server before 0.10.2, whose usage is 1/N since it counts the null block."""
    is_old_v1 = (
        any(map(series.has, (_QUERIES[1], _HITS[1])))
        and not any(map(series.has, (*_V0_ONLY, _SINCE_0_10_2)))
        and not series.text.truncated
    )
    if not usage or not is_old_v1:
        return None
    num_blocks = round(1 / usage)
    # 1 - (N - 1)/N is off by up to 2e-16, which is 8e-10 of 1/N for 4 M blocks.
    return num_blocks if num_blocks > 1 and abs(usage * num_blocks - 1) < 2e-9 else None


def _prefix_unit(series: EngineSeries) -> str | None:
    """The unit of the prefix-cache counters; 0.8 and 0.9.0 have the same names and say it in the HELP text alone."""
    if series.has(_QUERIES[0]) or series.has(_HITS[0]):
        return "tokens"
    for name in (_QUERIES[1], _HITS[1]):
        words = series.text.help.get(PREFIX + name, "")
        for unit in ("blocks", "tokens"):
            if unit in words:
                return unit
    return None


def _first_fraction(series: EngineSeries, names: Sequence[str], index: int) -> tuple[float | None, str | None]:
    for name in names:
        value = as_fraction(series.gauge(name, index))
        if value is not None:
            return value, PREFIX + name
    return None, None


def _first_count(series: EngineSeries, names: Sequence[str], index: int | None) -> tuple[int | None, str | None]:
    for name in names:
        value = as_count(series.counter(name, index))
        if value is not None:
            return value, name
    return None, None


def _is_whole(value: float) -> bool:
    return abs(value - round(value)) < _WHOLE
