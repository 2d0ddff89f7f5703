import math

import pytest

from kvengine.telemetry.histogram import Histogram, histogram_from_buckets


def a_histogram(*cumulative: float, total: float | None = None) -> Histogram:
    """Counts at or below 1, 2 and infinity."""
    made = histogram_from_buckets(dict(zip((1.0, 2.0, math.inf), cumulative, strict=True)), total)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("q", "value"),
    [
        # 4 up to 1 s, 4 more up to 2 s, 2 above.
        (0.2, 0.5),  # the 2nd of the 4 in the first second
        (0.4, 1.0),
        (0.6, 1.5),  # the 6th: the 2nd of 4 between 1 s and 2 s
        (0.8, 2.0),
        (0.95, 2.0),  # above the last bound: at least 2 s
    ],
)
def test_a_quantile_lies_on_the_line_through_its_bucket(q: float, value: float) -> None:
    assert a_histogram(4, 8, 10).quantile(q) == pytest.approx(value)


def test_nothing_observed_has_no_quantile_and_no_mean() -> None:
    empty = a_histogram(0, 0, 0, total=0.0)
    assert (empty.quantile(0.5), empty.mean) == (None, None)


def test_an_empty_first_bucket_is_passed_over() -> None:
    assert a_histogram(0, 4, 4).quantile(0.0) == 1.0


def test_a_mean_needs_a_published_sum() -> None:
    assert (a_histogram(1, 2, 4, total=6.0).mean, a_histogram(1, 2, 4).mean) == (1.5, None)


def test_the_difference_of_two_readings_is_what_was_observed_between() -> None:
    since = a_histogram(5, 9, 12, total=20.0).since(a_histogram(4, 8, 10, total=12.0))
    assert since is not None
    assert (since.cumulative, since.sum) == ((1, 1, 2), 8.0)


def test_counts_that_went_back_have_no_difference() -> None:
    assert a_histogram(1, 2, 3).since(a_histogram(4, 8, 10)) is None


def test_other_buckets_are_not_subtracted() -> None:
    other = histogram_from_buckets({5.0: 1, math.inf: 2}, None)
    assert other is not None
    assert other.since(a_histogram(1, 2, 3)) is None


@pytest.mark.parametrize("up_to", [{}, {1.0: 3.0}, {1.0: 5.0, math.inf: 3.0}, {math.inf: math.nan}, {math.inf: -1.0}])
def test_buckets_that_are_incomplete_or_fall_make_no_histogram(up_to: dict[float, float]) -> None:
    assert histogram_from_buckets(up_to, None) is None
