"""SGLang's metric names from 0.3 to current, and what they mean by release."""

from kvengine.telemetry.engine_reading import Counters, EngineReading, Gauges, first, same, total_of
from kvengine.telemetry.engine_series import EngineSeries, as_count, as_counts, as_fraction, label_count
from kvengine.telemetry.prometheus import MetricsText

PREFIX = "sglang:"
SIDECAR_PREFIX = "sglang_"
"""A gRPC side-car of a third party shows the same names with an underscore."""

_LABELS = ("dp_rank", "model_name", "name")
_ANCHORS = ("num_running_reqs", "num_queue_reqs", "token_usage", "num_used_tokens", "max_total_num_tokens")
_INTER_TOKEN = ("inter_token_latency_seconds", "time_per_output_token_seconds")
"""The second in 0.4."""
_RETRACTED = ("num_retracted_requests_total", "total_retracted_reqs")
"""The counter since 0.5.7; in 0.4.10 a gauge that only grows. `num_retracted_reqs` is of the last report alone."""
_ROUNDING = 0.005
"""Half of the last digit of `token_usage`, which the server rounds to two decimals."""


def read(text: MetricsText, prefix: str = PREFIX) -> tuple[list[EngineReading], EngineReading]:
    """Every data-parallel rank in order, and all together."""
    series = EngineSeries(text, prefix, _ANCHORS, _LABELS)
    whole = EngineSeries(text, prefix, _ANCHORS, _LABELS, whole_only=True) if text.truncated else series
    indices = range(len(series.engines))
    engines = [_engine(series, index) for index in indices]
    engines.sort(key=lambda engine: (len(engine.rank or ""), engine.rank or ""))
    gauges = [_gauges(whole, index) for index in indices] if text.truncated else [e.gauges for e in engines]
    return engines, total_of(engines, gauges, _counters(series, None))


def _engine(series: EngineSeries, index: int) -> EngineReading:
    labels = series.engines[index]
    return EngineReading(
        rank=labels.get("dp_rank", "0"),
        # 0.3 calls the label `name`.
        model=labels.get("model_name", labels.get("name")),
        labels=labels,
        gauges=_gauges(series, index),
        counters=_counters(series, index),
    )


def _gauges(series: EngineSeries, index: int) -> Gauges:
    def count(*names: str) -> int | None:
        return first(as_count(series.gauge(name, index)) for name in names)

    usage = as_fraction(series.gauge("token_usage", index))
    used = count("kv_used_tokens", "num_used_tokens")
    cached = count("kv_evictable_tokens")
    capacity = count("max_total_num_tokens")
    page_size = count("page_size") or _info_count(series, "page_size", index)
    return Gauges(
        running=count("num_running_reqs"),
        waiting=count("num_queue_reqs"),
        retracted_in_last_report=count("num_retracted_reqs"),
        usage=usage,
        usage_from=None if usage is None else f"{series.prefix}token_usage",
        block_size=page_size,
        num_blocks=first((count("num_pages"), _info_count(series, "num_pages", index))),
        used_blocks=-(-used // page_size) if used is not None and page_size else None,
        cached_blocks=cached // page_size if cached is not None and page_size else None,
        capacity_tokens=capacity,
        capacity_token_bounds=_capacity_bounds(used, usage) if capacity is None else None,
        used_tokens=used,
        cached_tokens=cached,
        free_tokens=count("kv_available_tokens"),
        host_used_tokens=count("hicache_host_used_tokens"),
        host_capacity_tokens=count("hicache_host_total_tokens"),
        last_batch_hit_rate=as_fraction(series.gauge("cache_hit_rate", index)),
        generation_tokens_per_s=series.gauge("gen_throughput", index),
    )


def _counters(series: EngineSeries, index: int | None) -> Counters:
    prompt_tokens = as_count(series.counter("prompt_tokens_total", index))
    hits = as_count(series.counter("cached_tokens_total", index))
    finished = as_count(series.counter("num_requests_total", index))
    # Every prompt token is looked up, but a release without any word of its cache does not say so.
    tells_of_cache = series.has("cached_tokens_total") or series.has("cache_hit_rate")
    queries = prompt_tokens if tells_of_cache else None
    return Counters(
        prompt_tokens=prompt_tokens,
        generation_tokens=as_count(series.counter("generation_tokens_total", index)),
        prefix_queries=queries,
        prefix_hits=hits,
        prefix_unit=None if queries is None else "tokens",
        hit_rate_from=None if hits is None else "lifetime cached_tokens_total/prompt_tokens_total",
        preemptions=first(as_count(series.counter(name, index)) for name in _RETRACTED),
        evicted_tokens=as_count(series.counter("evicted_tokens_total", index)),
        finished={} if finished is None else {"all": finished},
        hits_by_source=as_counts(series.counter_by("cached_tokens_total", "cache_source", index)),
        created_unix_s=None if index is None else series.gauge("prompt_tokens_created", index),
        time_to_first_token_s=series.histogram("time_to_first_token_seconds", index),
        inter_token_s=first(series.histogram(name, index) for name in _INTER_TOKEN),
        end_to_end_s=series.histogram("e2e_request_latency_seconds", index),
        queue_s=series.histogram("queue_time_seconds", index),
    )


def _info_count(series: EngineSeries, label: str, index: int) -> int | None:
    """A number that 0.5.9 and 0.5.10 publish as a label of `cache_config_info`."""
    return label_count(same(labels.get(label) for labels in series.infos("cache_config_info", index)))


def _capacity_bounds(used_tokens: int | None, usage: float | None) -> tuple[int, int] | None:
    """Between what the pool size must lie if `usage` is `used_tokens / capacity` rounded to two decimals."""
    if not used_tokens or usage is None or usage <= _ROUNDING:
        return None
    return int(used_tokens / (usage + _ROUNDING)), int(used_tokens / (usage - _ROUNDING))
