import pytest

from kvengine.telemetry.metrics import MetricsReading, read_metrics
from kvengine.telemetry.rates import MetricsHistory, ServerWindow, break_between, window_between
from tests.foreign_servers import a_histogram, a_text


def at(
    prompt: int | str = 0,
    *,
    hits: int = 0,
    queries: int = 0,
    rank: str = "0",
    start: float | None = None,
    created: float | None = None,
) -> list[str]:
    """What an engine has counted at some moment."""
    labels = f'{{engine="{rank}",model_name="m"}}'
    lines = [
        f"vllm:num_requests_running{labels} 1",
        f"vllm:prompt_tokens_total{labels} {prompt}",
        f"vllm:prefix_cache_queries_total{labels} {queries}",
        f"vllm:prefix_cache_hits_total{labels} {hits}",
    ]
    lines += [f"process_start_time_seconds {start}"] if start else []
    return [*lines, f"vllm:prompt_tokens_created{labels} {created}"] if created else lines


def a_reading(*lines: str, cut: bytes = b"") -> MetricsReading:
    return read_metrics(a_text(*lines) + cut)


def between(earlier: list[str], later: list[str], seconds: float = 10.0) -> ServerWindow:
    """The window of two readings; fails if there is none."""
    window = window_between(a_reading(*earlier), a_reading(*later), seconds)
    assert window is not None
    return window


def test_a_window_has_the_differences_and_the_rates() -> None:
    total = between(at(100, hits=10, queries=100), at(150, hits=40, queries=140)).total
    # 50 tokens in 10 s; 30 hits of 40 queries.
    assert (total.prompt_tokens, total.per_second(total.prompt_tokens), total.hit_rate) == (50, 5.0, 0.75)


def test_no_lookup_in_a_window_is_no_hit_rate() -> None:
    assert between(at(hits=10, queries=100), at(5, hits=10, queries=100)).total.hit_rate is None


def test_a_counter_missing_on_one_side_has_no_difference() -> None:
    earlier = [line for line in at(5) if "prompt_tokens_total" not in line]
    assert between(earlier, at(9)).total.prompt_tokens is None
    assert between(at("NaN"), at(9)).total.prompt_tokens is None


def test_no_time_has_no_rate() -> None:
    total = between(at(1), at(2), seconds=0.0).total
    assert (total.prompt_tokens, total.per_second(total.prompt_tokens)) == (1, None)


@pytest.mark.parametrize(
    ("later", "moved"), [(at(5, queries=1), False), (at(6, queries=1), True), (["vllm:num_requests_running 1"], None)]
)
def test_a_window_tells_whether_anything_was_counted(later: list[str], moved: bool | None) -> None:
    earlier = at(5, queries=1) if moved is not None else later
    assert between(earlier, later).total.moved is moved


@pytest.mark.parametrize(
    ("earlier", "later", "reason"),
    [
        (at(100), at(90), "server restarted: counters went back"),
        # The new process has counted more than the old one: its start gives it away.
        (at(100, start=1000.0), at(200, start=1060.0), "server restarted"),
        (at(100, created=1000.0), at(200, created=1060.0), "server restarted"),
        (at(100, start=1060.0), at(200, start=1000.0), "an older process answers: several servers behind one address"),
        ([*at(1), *at(1, rank="1")], at(2), "2 engines became 1"),
        (at(1), at(2, rank="1"), "other engines answer"),
        (at(1), ['sglang:prompt_tokens_total{model_name="m"} 5'], "another kind of server answers"),
    ],
)
def test_what_cannot_be_compared_has_a_reason_and_no_window(earlier: list[str], later: list[str], reason: str) -> None:
    before, after = a_reading(*earlier), a_reading(*later)
    assert break_between(before, after) == reason
    assert window_between(before, after, 10.0) is None


def test_a_start_time_printed_with_few_digits_is_the_same_start() -> None:
    earlier, later = a_reading(*at(1, start=1795955892.27)), a_reading(*at(2, start=1795955892.2701))
    assert break_between(earlier, later) is None


def test_each_engine_has_its_own_window() -> None:
    window = between([*at(10), *at(100, rank="1")], [*at(11), *at(150, rank="1")])
    assert [engine.prompt_tokens for engine in window.engines] == [1, 50]
    assert window.total.prompt_tokens == 51


def test_a_reason_of_ending_that_is_new_was_never_given_before() -> None:
    def ended(**reasons: int) -> list[str]:
        return [f'vllm:request_success_total{{engine="0",finished_reason="{r}"}} {n}' for r, n in reasons.items()]

    total = between(ended(stop=5), ended(stop=7, length=2)).total
    assert (total.finished, total.num_finished) == ({"stop": 2, "length": 2}, 4)


def test_endings_that_were_not_counted_before_are_unknown() -> None:
    ended = 'vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 7'
    assert between(at(1), [*at(2), ended]).total.num_finished is None


def test_latencies_of_a_window_are_of_the_window_alone() -> None:
    name, labels = "vllm:time_to_first_token_seconds", 'engine="0"'
    slow_start = a_histogram(name, labels, {"1.0": 0, "2.0": 10, "+Inf": 10}, 15.0)
    then_fast = a_histogram(name, labels, {"1.0": 10, "2.0": 20, "+Inf": 20}, 20.0)
    latencies = between(slow_start, then_fast).total.time_to_first_token_s
    assert latencies is not None
    # All 10 new ones below 1 s: the median in the middle; 5 s over 10 of them.
    assert (latencies.quantile(0.5), latencies.mean) == (0.5, 0.5)


# History


def test_a_history_spans_about_the_time_asked_for() -> None:
    history = MetricsHistory()
    for second in range(10):
        history.add(float(second), a_reading(*at(second * second)))
    window = history.window(3.0)
    assert window is not None
    # From 6 s to 9 s: 81 - 36.
    assert (window.total.seconds, window.total.prompt_tokens) == (3.0, 45)


def test_rates_go_on_after_a_restart_without_the_time_before() -> None:
    history = MetricsHistory()
    for second, prompt in enumerate((1000, 1100, 20, 50)):
        history.add(float(second), a_reading(*at(prompt)))
        if second == 2:
            assert history.window(60.0) is None
    window = history.window(60.0)
    assert window is not None
    assert (window.total.seconds, window.total.prompt_tokens) == (1.0, 30)
    assert history.broken == (2.0, "server restarted: counters went back")


def test_a_failed_answer_keeps_the_last_good_one_and_its_age() -> None:
    history = MetricsHistory()
    history.add(1.0, a_reading(*at(5)))
    history.add(4.0, read_metrics(b"<html>"))
    assert history.failure is not None
    assert history.failure.detail == "the answer is an HTML page"
    assert history.latest is not None
    assert (history.latest.total is not None, history.age_s(6.0)) == (True, 5.0)
    history.add(7.0, a_reading(*at(9)))
    window = history.window(60.0)
    assert history.failure is None
    assert window is not None
    assert (window.total.seconds, window.total.prompt_tokens) == (6.0, 4)


def test_a_cut_answer_that_lacks_an_engine_does_not_begin_anew() -> None:
    both = [*at(10), *at(10, rank="1")]
    history = MetricsHistory()
    history.add(0.0, a_reading(*both))
    history.add(1.0, a_reading(*at(11), cut=b"vllm:num"))
    history.add(2.0, a_reading(*at(12), *at(12, rank="1")))
    window = history.window(60.0)
    assert history.broken is None
    assert window is not None
    assert (window.total.seconds, window.total.prompt_tokens) == (2.0, 4)


def test_a_history_keeps_only_what_its_windows_need() -> None:
    history = MetricsHistory(keep_s=5.0)
    for second in range(100):
        history.add(float(second), a_reading(*at(second)))
    window = history.window(1000.0)
    assert window is not None
    assert window.total.seconds == 5.0


def test_an_empty_history_has_no_age_and_no_window() -> None:
    history = MetricsHistory()
    assert (history.latest, history.age_s(1.0), history.window(10.0)) == (None, None, None)


def test_the_last_window_reaches_from_the_last_reading_but_one() -> None:
    history = MetricsHistory()
    assert history.last_window() is None
    for at_s, tokens in ((0.0, 100), (1.0, 110), (2.5, 140)):
        history.add(at_s, a_reading(*at(tokens)))
    window = history.last_window().total
    assert (window.seconds, window.prompt_tokens) == (1.5, 30)
    # A counter that went back begins anew: there is nothing to compare the last reading with.
    history.add(3.5, a_reading(*at(5)))
    assert history.last_window() is None
