"""Latencies and usage over time: what is noted, and how much of it survives the summing up."""

import pytest

from kvengine.request import RequestId
from kvplan.figures import count_good
from kvplan.latency import LatencyLog, RequestTimes, percentiles
from kvplan.run_profile import ServiceLevel
from kvplan.timeline import TimelineLog

A, B = RequestId("a"), RequestId("b")


def test_times_are_counted_from_arrival_and_between_tokens() -> None:
    log = LatencyLog()
    log.arrived(A, 1.0)
    for at in (3.0, 3.5, 5.5):
        log.token(A, at)
    log.finished(A)
    summary = log.summary("s")

    assert log.ended == [RequestTimes(ttft=2.0, e2e=4.5, num_tokens=3)]
    assert summary.ttft is not None
    assert summary.itl is not None
    assert summary.tpot is not None
    assert summary.e2e is not None
    assert (summary.ttft.max, summary.e2e.max, summary.tpot.max) == (2.0, 4.5, 1.25)
    assert (summary.itl.count, summary.itl.p50, summary.itl.max) == (2, 0.5, 2.0)


def test_a_single_token_has_no_time_between_tokens() -> None:
    log = LatencyLog()
    log.arrived(A, 1.0)
    log.token(A, 2.0)
    log.finished(A)

    summary = log.summary("steps")
    assert (summary.unit, summary.itl, summary.tpot) == ("steps", None, None)


def test_a_cancelled_request_has_no_times_but_its_gaps_count() -> None:
    log = LatencyLog()
    log.arrived(A, 0.0)
    log.arrived(B, 0.0)
    for at in (1.0, 4.0):
        log.token(A, at)
    log.dropped(A)
    log.dropped(B)

    summary = log.summary("s")
    assert (summary.ttft, summary.e2e) == (None, None)
    assert summary.itl is not None
    assert summary.itl.max == 3.0


def test_percentiles_are_times_that_were_there_and_the_slowest_is_kept() -> None:
    # 100 values: nearest rank of 99 % is the 99th, and the slowest stands by itself.
    summary = percentiles([*([1.0] * 98), 7.0, 50.0])

    assert summary is not None
    assert (summary.count, summary.p50, summary.p95, summary.p99, summary.max) == (100, 1.0, 1.0, 7.0, 50.0)
    assert summary.mean == pytest.approx(1.55)
    assert percentiles([]) is None


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"ttft_s": 2.0}, 2),
        ({"ttft_s": 1.9}, 1),
        ({"tpot_s": 0.5}, 2),  # the second has a single token and so no time between tokens to miss
        ({"e2e_s": 0.5}, 1),
        ({"ttft_s": 2.0, "e2e_s": 0.5}, 1),
    ],
)
def test_a_request_is_good_if_it_keeps_every_limit(limits: dict[str, float], expected: int) -> None:
    times = [RequestTimes(ttft=2.0, e2e=3.0, num_tokens=3), RequestTimes(ttft=0.1, e2e=0.1, num_tokens=1)]

    assert count_good(times, ServiceLevel(**limits)) == expected
    assert count_good(times, None) is None


def test_a_short_run_keeps_every_step() -> None:
    log = TimelineLog(max_spans=4)
    for step in range(3):
        log.add(float(step), used=10 * step, running=step, waiting=2 - step, preemptions=0)

    timeline = log.timeline()
    assert timeline is not None
    assert (timeline.steps_per_span, timeline.start, timeline.mean_used_blocks) == (1, [0, 1, 2], [0, 10, 20])


def test_a_long_run_is_summed_up_and_its_peaks_survive() -> None:
    log = TimelineLog(max_spans=4)
    used = [1, 1, 99, 1, 1, 1, 1, 1, 1]
    for step, blocks in enumerate(used):
        log.add(float(step), used=blocks, running=2, waiting=step, preemptions=step == 5)

    # Nine steps in at most four spans: 4, 4 and 1.
    timeline = log.timeline()
    assert timeline is not None
    assert timeline.steps_per_span == 4
    assert timeline.start == [0, 4, 8]
    assert timeline.max_used_blocks == [99, 1, 1]
    assert timeline.mean_used_blocks == [25.5, 1, 1]
    assert timeline.max_waiting == [3, 7, 8]
    assert timeline.preemptions == [0, 1, 0]
    assert timeline.mean_running == [2, 2, 2]
    assert TimelineLog().timeline() is None


@pytest.mark.parametrize("num_steps", [1, 4, 5, 8, 9, 100, 1001])
def test_no_step_is_lost_however_long_the_run(num_steps: int) -> None:
    log = TimelineLog(max_spans=8)
    for step in range(num_steps):
        log.add(float(step), used=1, running=1, waiting=0, preemptions=1)

    timeline = log.timeline()
    assert timeline is not None
    assert sum(timeline.preemptions) == num_steps
    assert len(timeline.start) <= 8
    assert timeline.start == sorted(timeline.start)
