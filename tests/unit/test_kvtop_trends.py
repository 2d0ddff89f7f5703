from kvengine.telemetry.history import Sample
from kvengine.telemetry.schema import Counters, Totals
from kvtop import trends
from kvtop.trends import TrendLog, TrendPoint


def a_sample(step: int, *, used: int = 0, waiting: int = 0, output: int = 0, hit: int = 0, admitted: int = 0) -> Sample:
    return Sample(
        step=step,
        time_s=step / 2,
        totals=Totals(free=8 - used, cached_free=0, used=used, shared=0, running=0, waiting=waiting),
        counters=Counters(step, 0, 0, output, step // 4, 0, hit, admitted, 0, 0, 0, 0),
    )


def a_log(*samples: Sample, keeps_all: bool = True) -> TrendLog:
    log = TrendLog(keeps_all=keeps_all)
    log.extend(samples)
    return log


def test_levels_are_the_highest_of_a_column():
    log = a_log(*[a_sample(step, used=used) for step, used in enumerate([0, 8, 2, 2, 4, 0, 0])])
    # Six steps in three columns: steps 1-2, 3-4, 5-6.
    assert log.columns(3, 6).in_use == [1.0, 0.5, 0.0]


def test_rates_are_counted_over_the_time_of_a_column():
    log = a_log(*[a_sample(step, output=output) for step, output in enumerate([0, 5, 10, 10, 10])])
    # Two columns of two steps, each 1 s long.
    assert log.columns(2, 4).output_per_s == [10.0, 0.0]


def test_what_is_not_known_is_none_and_never_0():
    log = a_log(a_sample(0), a_sample(1, hit=4, admitted=8), a_sample(2, hit=4, admitted=8))
    assert log.columns(2, 2).hit == [0.5, None]
    still = [Sample(step=s, time_s=0.0, totals=a_sample(s).totals, counters=a_sample(s).counters) for s in range(3)]
    assert a_log(*still).columns(2, 2).output_per_s == [None, None]


def test_there_is_no_trend_before_the_second_step():
    assert a_log().columns(10, 0) is None
    assert a_log(a_sample(0)).columns(10, 0) is None
    assert a_log(a_sample(0)).span_s() is None


def test_the_column_of_the_step_shown_is_marked():
    log = a_log(*[a_sample(step) for step in range(11)])
    # Ten steps in five columns: step 3 is in the second.
    assert [log.columns(5, step).now for step in (0, 1, 2, 3, 10)] == [0, 0, 0, 1, 4]


def test_a_long_live_trend_is_thinned_and_keeps_its_peaks_and_totals(monkeypatch):
    monkeypatch.setattr(trends, "MAX_SAMPLES", 8)
    log = a_log(*[a_sample(step, used=8 if step == 2 else 0, output=step) for step in range(9)], keeps_all=False)
    assert len(log) == 5
    columns = log.columns(1, 8)
    assert columns.in_use == [1.0]
    # From step 1, the later of the first pair, to step 8: 7 tokens in 3.5 s.
    assert columns.output_per_s == [2.0]


def test_percentiles_of_the_last_while_are_of_the_waits_that_ended_in_it():
    log = TrendLog(keeps_all=True)
    # A step every 10 s; the request of step n waited n seconds.
    for step in range(1, 11):
        log.add(TrendPoint(step=step, time_s=10.0 * step), first_tokens_s=[float(step)])
    # Up to step 8 at 80 s, 60 s back: after 20 s, so the waits 3, 4, 5, 6, 7, 8.
    assert log.recent_quantiles(log.first_tokens_s, 8, 60.0) == [5.0, 8.0]
    assert log.recent_quantiles(log.token_gaps_s, 8, 60.0) == [None, None]
    assert log.recent_quantiles(log.first_tokens_s, 0, 60.0) == [None, None]
