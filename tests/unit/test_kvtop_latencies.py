import numpy as np

from kvtop.latencies import LatencyLog, weighted_quantile


def a_log(*entries: tuple[int, float, int]) -> LatencyLog:
    log = LatencyLog()
    for step, value_s, count in entries:
        log.add(step, value_s, count)
    return log


def test_a_quantile_is_the_smallest_value_that_the_share_does_not_exceed():
    values, ones = np.arange(1.0, 21.0), np.ones(20)
    # 95 % of twenty are nineteen.
    assert weighted_quantile(values, ones, 0.95) == 19.0
    assert weighted_quantile(values, ones, 0.5) == 10.0
    assert weighted_quantile(values, ones, 1.0) == 20.0


def test_each_value_counts_as_often_as_it_came():
    # Ninety tokens came after 0.1 s and ten after 2 s: the 90th percentile is 0.1, the 91st is 2.
    log = a_log((1, 0.1, 90), (1, 2.0, 10))
    assert log.quantile(0.9, after=0, up_to=1) == 0.1
    assert log.quantile(0.91, after=0, up_to=1) == 2.0


def test_only_the_stretch_asked_for_counts():
    log = a_log((1, 9.0, 1), (2, 1.0, 1), (3, 2.0, 1), (4, 9.0, 1))
    assert log.quantile(1.0, after=1, up_to=3) == 2.0
    assert log.quantile(1.0, after=4, up_to=9) is None
    assert log.quantiles(np.array([0.0, 2.0, 4.0, 6.0]), 1.0) == [9.0, 9.0, None]


def test_without_values_there_are_no_quantiles():
    assert LatencyLog().quantiles(np.array([0.0, 1.0]), 0.5) == []
