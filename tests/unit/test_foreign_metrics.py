import gzip
import math

import pytest

from kvengine.telemetry.engine_reading import EngineReading
from kvengine.telemetry.metrics import MetricsReading, MetricsState, read_metrics
from tests.foreign_servers import a_histogram, a_text, a_v1_text


def total(*lines: str) -> EngineReading:
    """All engines of a text together."""
    reading = read_metrics(a_text(*lines))
    assert reading.total is not None
    return reading.total


def blocks(reading: EngineReading) -> tuple[int | None, int | None, int | None]:
    """Used, free and usable blocks."""
    return reading.gauges.used_blocks, reading.gauges.free_blocks, reading.gauges.usable_blocks


# What an answer is


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"<html><body>502 Bad Gateway</body></html>", "HTML"),
        (b'{"detail":"Not Found"}', "JSON"),
        (gzip.compress(b"vllm:num_requests_running 1\n", mtime=0), "compressed"),
        (bytes(range(256)), "not a metrics text"),
        (b"hello\nworld\n", "not a metrics text"),
        ("vllm:num_requests_running 1\n".encode("utf-16"), "not a metrics text"),
    ],
)
def test_what_is_no_metrics_text_is_said_to_be_none(body: bytes, detail: str) -> None:
    reading = read_metrics(body)
    assert (reading.state, reading.total) == (MetricsState.NOT_METRICS, None)
    assert detail in reading.detail


def test_the_text_of_another_exporter_is_told_apart_from_a_broken_one() -> None:
    reading = read_metrics(a_text("# TYPE node_load1 gauge", "node_load1 0.21"))
    assert (reading.state, reading.server, reading.total) == (MetricsState.NO_ENGINE_METRICS, None, None)


def test_a_text_cut_before_its_first_engine_metric_proves_nothing() -> None:
    assert read_metrics(a_text("python_info 1") + b"process_sta").state is MetricsState.PARTIAL


def test_a_bad_line_among_good_ones_makes_a_reading_partial() -> None:
    reading = read_metrics(a_text(*a_v1_text(), "what is this"))
    assert (reading.state, reading.detail) == (MetricsState.PARTIAL, "1 line is no metric")
    assert reading.total is not None
    assert reading.total.gauges.running == 3


def test_declared_metrics_without_a_sample_are_unknown_not_zero() -> None:
    reading = read_metrics(a_text("# HELP vllm:num_requests_running Number.", "# TYPE vllm:num_requests_running gauge"))
    assert (reading.state, reading.server, list(reading.engines)) == (MetricsState.OK, "vllm", [])
    assert reading.total is not None
    assert reading.total.gauges.running is None


def test_process_start_is_read_where_a_single_process_answers() -> None:
    assert read_metrics(a_text(*a_v1_text(), "process_start_time_seconds 1.5e+09")).process_start_unix_s == 1.5e9
    assert read_metrics(a_text(*a_v1_text())).process_start_unix_s is None


# Gauges that say nothing


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1.5", "42"])
def test_a_usage_that_is_no_share_is_unknown(value: str) -> None:
    reading = total(*a_v1_text(usage=value))
    assert (reading.gauges.usage, *blocks(reading)) == (None, None, None, 100)


@pytest.mark.parametrize("value", ["NaN", "-1", "2.5", "1e300"])
def test_a_count_that_is_no_whole_number_is_unknown(value: str) -> None:
    assert total(f'vllm:num_requests_running{{model_name="m"}} {value}').gauges.running is None


def test_a_server_that_has_not_sized_its_cache_has_unknown_blocks() -> None:
    reading = total(*a_v1_text(num_blocks="None"))
    assert (reading.gauges.num_blocks, *blocks(reading), reading.gauges.usage) == (None, None, None, None, 0.5)


# What the usage is a share of


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # 50 of the 100 that are not the null block.
        (a_v1_text(usage="0.5"), (50, 50, 100)),
        # Until 0.10.1.1 the null block is one of the used: 51 of 101.
        (a_v1_text(usage=str(1 - 50 / 101), new_names=False), (51, 50, 101)),
        # Idle then: the null block alone.
        (a_v1_text(usage=str(1 - 100 / 101), new_names=False), (1, 100, 101)),
        (a_v1_text(usage="0.0"), (0, 100, 100)),
        (a_v1_text(usage="1.0"), (100, 0, 100)),
    ],
)
def test_the_release_decides_whether_the_null_block_counts(lines: list[str], expected: tuple[int, int, int]) -> None:
    assert blocks(total(*lines)) == expected


def test_whole_blocks_decide_where_the_names_that_tell_the_release_are_missing() -> None:
    lines = [line for line in a_v1_text(usage="0.07") if "inter_token" not in line]
    # 0.07 is 7 of 100; of 101 it would be 7.07.
    assert blocks(total(*lines)) == (7, 93, 100)


def test_a_usage_that_makes_no_whole_blocks_gives_no_block_count() -> None:
    reading = total(*a_v1_text(usage="0.12345"))
    assert (reading.gauges.usage, *blocks(reading)) == (0.12345, None, None, 100)


def test_v0_has_no_null_block_and_swaps_to_the_cpu() -> None:
    reading = total(
        'vllm:num_requests_swapped{model_name="m"} 2',
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.25',
        'vllm:cpu_cache_usage_perc{model_name="m"} 0.5',
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="8"} 1',
    )
    assert blocks(reading) == (2, 6, 8)
    assert (reading.gauges.swapped, reading.gauges.cpu_usage) == (2, 0.5)


OLD_COUNTERS = ('vllm:gpu_prefix_cache_queries_total{engine="0"} 32', 'vllm:gpu_prefix_cache_hits_total{engine="0"} 0')


@pytest.mark.parametrize(
    ("lines", "inferred"),
    [
        ((f'vllm:kv_cache_usage_perc{{engine="0"}} {1 - 4095 / 4096!r}', *OLD_COUNTERS), 4096),
        # Somebody runs: it may be one block of any pool.
        ((f'vllm:kv_cache_usage_perc{{engine="0"}} {1 / 4096!r}', 'vllm:num_requests_running{engine="0"} 1'), None),
        # V0 shows 0 when idle, so 1/N is one used block.
        (("vllm:gpu_cache_usage_perc 0.25", "vllm:num_requests_swapped 0"), None),
        (('vllm:kv_cache_usage_perc{engine="0"} 0.3', *OLD_COUNTERS), None),
        (('vllm:kv_cache_usage_perc{engine="0"} 0', *OLD_COUNTERS), None),
    ],
)
def test_an_idle_old_pool_gives_its_size_away(lines: tuple[str, ...], inferred: int | None) -> None:
    assert total(*lines).gauges.num_blocks_inferred == inferred


# Names by release


def test_old_and_new_name_of_one_gauge_count_once() -> None:
    gauges = total('vllm:gpu_cache_usage_perc{engine="0"} 0.4', 'vllm:kv_cache_usage_perc{engine="0"} 0.4').gauges
    assert (gauges.usage, gauges.usage_from) == (0.4, "vllm:kv_cache_usage_perc")


def test_hits_under_the_old_name_go_with_queries_under_the_new_one() -> None:
    reading = total(
        'vllm:prefix_cache_queries_total{engine="0"} 40',
        'vllm:gpu_prefix_cache_hits_total{engine="0"} 10',
    )
    assert (reading.hit_rate, reading.counters.prefix_unit) == (0.25, "tokens")
    assert reading.hit_rate_from == "old-name hits over new-name queries"


@pytest.mark.parametrize(
    ("help_text", "unit"),
    [
        ("GPU prefix cache queries, in terms of number of queried blocks.", "blocks"),
        ("GPU prefix cache queries, in terms of number of queriedtokens.", "tokens"),
        ("Multiprocess metric", None),
    ],
)
def test_the_unit_of_the_old_prefix_counters_stands_in_their_help_text(help_text: str, unit: str | None) -> None:
    name = "vllm:gpu_prefix_cache_queries_total"
    assert total(f"# HELP {name} {help_text}", f"{name} 5").counters.prefix_unit == unit


@pytest.mark.parametrize(("value", "rate"), [("0.61", 0.61), ("-1", None), ("NaN", None), ("0", 0.0)])
def test_v0_publishes_a_hit_rate_and_minus_one_means_off(value: str, rate: float | None) -> None:
    reading = total(f'vllm:gpu_prefix_cache_hit_rate{{model_name="m"}} {value}')
    assert (reading.hit_rate, reading.hit_rate_from) == (
        rate,
        None if rate is None else "vllm:gpu_prefix_cache_hit_rate",
    )


def test_no_lookup_yet_is_no_hit_rate() -> None:
    reading = total('vllm:prefix_cache_queries_total{engine="0"} 0', 'vllm:prefix_cache_hits_total{engine="0"} 0')
    assert (reading.counters.prefix_queries, reading.hit_rate) == (0, None)


def test_the_first_token_histogram_and_the_reasons_of_ending_are_read() -> None:
    histogram = a_histogram("vllm:time_to_first_token_seconds", 'engine="0"', {"1.0": 4, "2.0": 8, "+Inf": 8}, 9.0)
    reading = total(
        *histogram,
        'vllm:request_success_total{engine="0",finished_reason="stop"} 5',
        'vllm:request_success_total{engine="0",finished_reason="length"} 3',
    )
    first_token = reading.counters.time_to_first_token_s
    assert first_token is not None
    assert (first_token.quantile(0.5), first_token.mean) == (1.0, 9.0 / 8)
    assert (reading.counters.finished, reading.counters.num_finished) == ({"stop": 5, "length": 3}, 8)


# Several engines


def two_engines(**second: str) -> MetricsReading:
    """Engine 0 at half of 100 blocks, engine 1 as told."""
    return read_metrics(a_text(*a_v1_text(usage="0.5"), *a_v1_text(engine="1", **second)))


def test_requests_and_blocks_of_ranks_add_up_and_the_fullest_is_named() -> None:
    reading = two_engines(usage="1.0", num_blocks="301")
    assert reading.total is not None
    # 50 of 100 and 300 of 300: a mean of the two shares would say 75 %.
    assert (reading.total.gauges.usage, reading.total.gauges.usage_max) == (350 / 400, 1.0)
    assert (reading.total.gauges.running, reading.total.counters.prompt_tokens) == (6, 2000)
    assert [engine.rank for engine in reading.engines] == ["0", "1"]


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    reading = two_engines(usage="NaN")
    assert reading.total is not None
    gauges = reading.total.gauges
    assert (gauges.usage, gauges.used_blocks, gauges.usage_max, gauges.running) == (None, None, None, 6)


def test_a_rank_that_shows_in_its_counters_alone_is_not_forgotten() -> None:
    counter = 'vllm:prompt_tokens_total{engine="1",model_name="m"} 5'
    reading = read_metrics(a_text(*a_v1_text(), counter))
    assert reading.total is not None
    assert len(reading.engines) == 2
    assert (reading.total.counters.prompt_tokens, reading.total.gauges.running) == (1005, None)


@pytest.mark.parametrize("ending", ['vllm:kv_cache_usage_perc{engine="1"} 0.9', "vllm:kv_ca"])
def test_a_cut_between_two_ranks_leaves_the_sum_unknown(ending: str) -> None:
    whole = a_text('vllm:kv_cache_usage_perc{engine="0"} 0.3')
    reading = read_metrics(whole + ending.encode())
    assert reading.state is MetricsState.PARTIAL
    assert reading.engines[0].gauges.usage == 0.3
    assert reading.total is not None
    assert (reading.total.gauges.usage, reading.total.gauges.usage_max) == (None, None)


def test_ranks_are_in_order_of_number() -> None:
    lines = [f'vllm:num_requests_running{{engine="{rank}"}} 1' for rank in (10, 2, 0)]
    assert [engine.rank for engine in read_metrics(a_text(*lines)).engines] == ["0", "2", "10"]


def test_a_configuration_without_an_engine_label_is_every_engines() -> None:
    lines = [f'vllm:gpu_cache_usage_perc{{engine="{rank}",model_name="m"}} 0.5' for rank in (0, 1)]
    reading = total(*lines, 'vllm:cache_config_info{block_size="16",num_gpu_blocks="10"} 1')
    assert (reading.gauges.num_blocks, reading.gauges.used_blocks, reading.gauges.block_size) == (20, 10, 16)


def test_servers_behind_one_exporter_are_kept_apart_by_their_further_labels() -> None:
    lines = [f'vllm:kv_cache_usage_perc{{engine="0",pod="{pod}"}} {usage}' for pod, usage in (("a", 0.1), ("b", 0.9))]
    reading = read_metrics(a_text(*lines))
    assert [engine.gauges.usage for engine in reading.engines] == [0.1, 0.9]


# SGLang


def test_workers_of_one_rank_hold_the_same_tokens_and_count_once() -> None:
    lines = [
        f'sglang:{name}{{model_name="m",pp_rank="{pp}",tp_rank="{tp}"}} {value}'
        for name, value in (("num_running_reqs", 5), ("num_used_tokens", 90), ("num_retracted_requests_total", 4))
        for pp in (0, 1)
        for tp in (0, 1)
    ]
    reading = total(*lines)
    assert (reading.gauges.running, reading.gauges.used_tokens, reading.counters.preemptions) == (5, 90, 4)


def test_a_total_given_by_priority_too_counts_once() -> None:
    lines = [f'sglang:num_queue_reqs{{model_name="m",priority="{p}"}} {n}' for p, n in (("", 7), ("0", 3), ("1", 4))]
    assert total(*lines).gauges.waiting == 7


def test_counters_of_the_whole_server_belong_to_no_single_rank_of_several() -> None:
    ranks = [f'sglang:num_running_reqs{{dp_rank="{rank}",model_name="m"}} {rank + 1}' for rank in (0, 1)]
    reading = read_metrics(a_text(*ranks, 'sglang:prompt_tokens_total{model_name="m"} 500'))
    assert [engine.counters.prompt_tokens for engine in reading.engines] == [None, None]
    assert reading.total is not None
    assert (reading.total.counters.prompt_tokens, reading.total.gauges.running) == (500, 3)


def test_cached_tokens_of_all_sources_are_hits() -> None:
    reading = total(
        'sglang:num_running_reqs{engine_type="unified",model_name="m"} 1',
        'sglang:prompt_tokens_total{is_streaming="true",model_name="m"} 60',
        'sglang:prompt_tokens_total{is_streaming="false",model_name="m"} 40',
        'sglang:cached_tokens_total{cache_source="device",model_name="m"} 20',
        'sglang:cached_tokens_total{cache_source="host",model_name="m"} 5',
    )
    assert (reading.counters.prefix_queries, reading.counters.prefix_hits, reading.hit_rate) == (100, 25, 0.25)
    assert reading.counters.hits_by_source == {"device": 20, "host": 5}


def test_evictable_cache_is_data_that_the_published_usage_leaves_out() -> None:
    reading = total(
        'sglang:token_usage{model_name="m"} 0.03',
        'sglang:kv_used_tokens{model_name="m"} 130',
        'sglang:kv_evictable_tokens{model_name="m"} 640',
        'sglang:kv_available_tokens{model_name="m"} 3326',
        'sglang:max_total_num_tokens{model_name="m"} 4096',
        'sglang:page_size{model_name="m"} 64',
        'sglang:num_pages{model_name="m"} 64',
    )
    gauges = reading.gauges
    # 130 tokens hold 3 pages of 64, the third in part; 640 are 10 whole ones.
    assert (gauges.used_blocks, gauges.cached_blocks, gauges.num_blocks) == (3, 10, 64)
    assert (gauges.usage, gauges.filled) == (0.03, 770 / 4096)


def test_the_page_size_of_0_5_9_is_a_label() -> None:
    reading = total(
        'sglang:num_used_tokens{model_name="m"} 32',
        'sglang:cache_config_info{model_name="m",num_pages="100",page_size="16"} 1',
    )
    assert (reading.gauges.block_size, reading.gauges.num_blocks, reading.gauges.used_blocks) == (16, 100, 2)


@pytest.mark.parametrize(
    ("usage", "bounds"),
    [
        # 1000 / 0.255 = 3921.6 and 1000 / 0.245 = 4081.6.
        ("0.25", (3921, 4081)),
        # Anything from 0 to 0.005 is shown as 0: no upper bound.
        ("0.0", None),
    ],
)
def test_a_rounded_usage_bounds_the_pool(usage: str, bounds: tuple[int, int] | None) -> None:
    reading = total(f'sglang:token_usage{{model_name="m"}} {usage}', 'sglang:num_used_tokens{model_name="m"} 1000')
    assert reading.gauges.capacity_token_bounds == bounds
    assert reading.gauges.capacity_tokens is None


def test_retractions_of_the_last_report_are_no_total() -> None:
    reading = total('sglang:num_retracted_reqs{model_name="m"} 3')
    assert (reading.gauges.retracted_in_last_report, reading.counters.preemptions) == (3, None)


def test_the_growing_gauge_of_0_4_10_is_a_total() -> None:
    assert total('sglang:total_retracted_reqs{model_name="m"} 3').counters.preemptions == 3


def test_the_hit_rate_of_the_last_batch_is_not_the_lifetimes() -> None:
    reading = total('sglang:cache_hit_rate{model_name="m"} 0.4', 'sglang:prompt_tokens_total{model_name="m"} 9')
    assert (reading.hit_rate, reading.gauges.last_batch_hit_rate, reading.counters.prefix_queries) == (None, 0.4, 9)


def test_the_oldest_names_and_those_of_a_side_car_are_read() -> None:
    assert total('sglang:max_total_num_tokens{name="m"} 5').model == "m"
    assert total('sglang_num_running_reqs{model_name="m"} 5').gauges.running == 5


def test_an_infinite_sum_of_a_counter_is_unknown() -> None:
    lines = [f'sglang:cached_tokens_total{{cache_source="{source}"}} 1e308' for source in "ab"]
    assert total(*lines, 'sglang:cached_tokens_total{cache_source="c"} 1e308').counters.prefix_hits is None
    assert math.isinf(1e308 + 1e308)
