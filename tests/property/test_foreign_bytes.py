"""Whatever a server sends, nothing raises, and what a text does not say is never turned into a figure."""

import dataclasses
import math
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvengine.telemetry.event_sources import parse_event_sources
from kvengine.telemetry.event_stream import EventStream
from kvengine.telemetry.metrics import MetricsReading, MetricsState, read_metrics
from kvengine.telemetry.rates import break_between, window_between
from tests.foreign_servers import a_histogram, a_text, a_v1_text, by_family

HISTOGRAM = {"1.0": 4, "2.0": 8, "+Inf": 9}
VLLM = [
    *by_family([*a_v1_text(usage="0.5"), *a_v1_text(usage="0.3", engine="1")]),
    *a_histogram("vllm:time_to_first_token_seconds", 'engine="0",model_name="m"', HISTOGRAM, 9.5),
    *a_histogram("vllm:e2e_request_latency_seconds", 'engine="0",model_name="m"', HISTOGRAM, 9.5),
]
SGLANG = [
    'sglang:num_running_reqs{dp_rank="0",model_name="m",tp_rank="0"} 3',
    'sglang:num_queue_reqs{dp_rank="0",model_name="m",tp_rank="0"} 4',
    'sglang:max_total_num_tokens{dp_rank="0",model_name="m",tp_rank="0"} 4096',
    'sglang:kv_used_tokens{dp_rank="0",model_name="m",tp_rank="0"} 128',
    'sglang:kv_evictable_tokens{dp_rank="0",model_name="m",tp_rank="0"} 640',
    'sglang:page_size{dp_rank="0",model_name="m",tp_rank="0"} 64',
    'sglang:prompt_tokens_total{model_name="m"} 500',
    'sglang:cached_tokens_total{cache_source="device",model_name="m"} 100',
]
LINES = st.lists(
    st.one_of(
        st.sampled_from([*VLLM, *SGLANG, "# EOF", "# HELP x", "process_start_time_seconds 1e9", "<html>", ""]),
        st.text(max_size=40),
        st.builds(
            "{}{}".format,
            st.sampled_from(
                ['vllm:kv_cache_usage_perc{engine="0"} ', "sglang:token_usage ", "vllm:num_preemptions_total "]
            ),
            st.one_of(st.floats().map(repr), st.text(max_size=5)),
        ),
    ),
    max_size=30,
)


def figures(reading: MetricsReading) -> dict[str, Any]:
    """Every value of a reading's total, by name."""
    if reading.total is None:
        return {}
    parts = (reading.total.gauges, reading.total.counters)
    return {f.name: getattr(part, f.name) for part in parts for f in dataclasses.fields(part)}


def is_unknown(value: object) -> bool:
    return value is None or value == {}


def check_figures(reading: MetricsReading) -> None:
    """No figure is one that cannot be."""
    for value in figures(reading).values():
        if isinstance(value, int | float):
            assert math.isfinite(value)
            assert value >= 0 or math.isfinite(value)
    total = reading.total
    if total is not None:
        gauges = total.gauges
        assert gauges.usage is None or 0 <= gauges.usage <= 1
        assert total.hit_rate is None or 0 <= total.hit_rate <= 1
        assert (
            gauges.used_blocks is None or gauges.free_blocks is None or min(gauges.used_blocks, gauges.free_blocks) >= 0
        )


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_exception(body: bytes) -> None:
    reading = read_metrics(body)
    assert reading.state in MetricsState
    check_figures(reading)


@given(LINES, st.booleans())
def test_any_lines_are_read_without_an_exception(lines: list[str], truncated: bool) -> None:
    body = "\n".join(lines).encode("utf-8", errors="surrogatepass")
    check_figures(read_metrics(body, truncated=truncated))


@given(LINES, LINES)
def test_any_two_readings_can_be_compared(earlier: list[str], later: list[str]) -> None:
    before, after = (
        read_metrics("\n".join(lines).encode("utf-8", errors="surrogatepass")) for lines in (earlier, later)
    )
    break_between(before, after)
    window = window_between(before, after, 1.0)
    if window is not None:
        counts = (window.total.prompt_tokens, window.total.prefix_hits, window.total.preemptions)
        assert all(count is None or count >= 0 for count in counts)


@pytest.mark.parametrize("lines", [VLLM, SGLANG], ids=["vllm", "sglang"])
@given(data=st.data())
def test_a_cut_text_says_the_same_or_nothing(lines: list[str], data: st.DataObject) -> None:
    body = a_text(*lines)
    whole = figures(read_metrics(body))
    cut = data.draw(st.integers(0, len(body) - 1))
    reading = read_metrics(body[:cut], truncated=True)
    assert reading.state is not MetricsState.OK
    for name, value in figures(reading).items():
        assert is_unknown(value) or value == whole[name] or name == "capacity_token_bounds", name


@pytest.mark.parametrize("lines", [VLLM, SGLANG], ids=["vllm", "sglang"])
@given(data=st.data())
def test_a_text_that_lost_lines_says_the_same_or_nothing(lines: list[str], data: st.DataObject) -> None:
    whole = read_metrics(a_text(*lines))
    kept = data.draw(st.lists(st.sampled_from(range(len(lines))), unique=True).map(sorted))
    reading = read_metrics(a_text(*(lines[index] for index in kept)))
    # An engine of which nothing is left cannot be missed.
    assume(len(reading.engines) == len(whole.engines))
    for name, value in figures(reading).items():
        assert is_unknown(value) or value == figures(whole)[name] or name == "capacity_token_bounds", name


@pytest.mark.parametrize("lines", [VLLM, SGLANG], ids=["vllm", "sglang"])
@given(data=st.data())
def test_a_value_that_became_nan_is_unknown_and_never_zero(lines: list[str], data: st.DataObject) -> None:
    whole = figures(read_metrics(a_text(*lines)))
    spoilt = data.draw(st.sets(st.sampled_from(range(len(lines)))))
    words = [
        line.rsplit(" ", 1)[0] + " NaN" if i in spoilt and not line.startswith("#") else line
        for i, line in enumerate(lines)
    ]
    for name, value in figures(read_metrics(a_text(*words))).items():
        assert is_unknown(value) or value == whole[name] or name == "capacity_token_bounds", name


MSGPACK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
EVENT = st.one_of(
    MSGPACK,
    st.tuples(st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared"]), MSGPACK, MSGPACK, MSGPACK, MSGPACK),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "More"])},
        optional={
            "block_hashes": st.lists(st.integers(0, 5) | st.binary(max_size=2), max_size=3),
            "parent_block_hash": st.none() | st.integers(0, 5),
            "token_ids": MSGPACK,
            "block_size": MSGPACK,
            "medium": st.none() | st.sampled_from(["GPU", "CPU"]) | MSGPACK,
            "group_idx": st.none() | st.integers(0, 1) | MSGPACK,
            "extra_keys": MSGPACK,
        },
    ),
)
PAYLOAD = st.binary(max_size=60) | st.builds(
    lambda ts, events, rank: msgspec.msgpack.encode([ts, events, rank]),
    MSGPACK,
    st.lists(EVENT, max_size=4),
    st.none() | st.integers(0, 1) | MSGPACK,
)
FRAMES = st.one_of(
    st.lists(st.binary(max_size=10), max_size=5),
    st.builds(lambda seq, payload: [b"t", seq.to_bytes(8, "big"), payload], st.integers(0, 6), PAYLOAD),
    st.builds(lambda seq, payload: [b"t", seq.to_bytes(8, "big"), payload], st.integers(0, 2**64 - 1), PAYLOAD),
    st.just([b"", b"", b"\xff" * 8, b""]),
)


@given(st.lists(st.tuples(st.sampled_from(["live", "replay", "ask", "give up"]), FRAMES), max_size=20))
def test_any_frames_in_any_order_leave_the_books_balanced(script: list[tuple[str, list[bytes]]]) -> None:
    stream = EventStream()
    for action, frames in script:
        match action:
            case "live":
                stream.take_live(frames)
            case "replay":
                stream.take_replay(frames)
            case "ask":
                stream.take_replay_request()
            case "give up":
                stream.give_up_replay()
        stream.blocks.check_invariants()
        assert stream.blocks.num_blocks >= stream.blocks.num_distinct
        assert set(stream.blocks) == {key for top in stream.blocks for key in stream.blocks.below(top)}


@given(st.binary(max_size=100) | MSGPACK.map(lambda value: msgspec.json.encode(str(value))))
def test_any_answer_about_event_sources_is_read_without_an_exception(body: bytes) -> None:
    assert isinstance(parse_event_sources(body), list)
