"""Repeats: the spread, and when two points can be told apart."""

import pytest

from kvplan.statistics import change, spread, t95


def test_the_spread_is_the_middle_and_both_ends() -> None:
    found = spread([5.0, 1.0, 2.0, 9.0])

    assert found is not None
    assert (found.count, found.median, found.low, found.high) == (4, 3.5, 1.0, 9.0)
    assert spread([]) is None


def test_equal_seeds_are_compared_pair_by_pair() -> None:
    # Differences 1, 2 and 3 on a mean of 20: 10 %; their deviation is 1, so 4.303 x 1 / sqrt(3) / 20 = 12.4 %.
    found = change({1: 10.0, 2: 20.0, 3: 30.0}, {1: 11.0, 2: 22.0, 3: 33.0})

    assert found is not None
    assert found.pairs == 3
    assert found.share == pytest.approx(0.1)
    assert found.margin == pytest.approx(0.12421, abs=1e-4)
    assert not found.is_distinguishable


def test_a_small_difference_of_every_pair_is_told_apart_where_the_means_would_not_be() -> None:
    base = {1: 10.0, 2: 20.0, 3: 30.0}
    paired = change(base, {seed: value + 1 + seed / 100 for seed, value in base.items()})
    unpaired = change(base, {seed + 10: value + 1 + seed / 100 for seed, value in base.items()})

    assert paired is not None
    assert unpaired is not None
    assert paired.is_distinguishable
    assert not unpaired.is_distinguishable


def test_other_seeds_are_compared_by_their_means() -> None:
    # Means 10 and 20, each with a variance of 4 / 3: sqrt(8 / 3) = 1.633, with 4 degrees 2.776 x 1.633 = 4.533.
    found = change({1: 8.0, 2: 10.0, 3: 12.0}, {4: 18.0, 5: 20.0, 6: 22.0})

    assert found is not None
    assert (found.pairs, found.share) == (0, 1.0)
    assert found.margin == pytest.approx(0.4533, abs=1e-3)
    assert found.is_distinguishable


def test_single_runs_leave_the_margin_unknown() -> None:
    found = change({0: 10.0}, {0: 12.0})

    assert found is not None
    assert (found.share, found.margin, found.is_distinguishable) == (pytest.approx(0.2), None, False)


def test_nothing_or_a_base_of_zero_gives_no_change() -> None:
    assert change({}, {1: 2.0}) is None
    assert change({1: 0.0, 2: 0.0}, {1: 2.0, 2: 3.0}) is None


def test_equal_repeats_are_told_apart_without_a_margin() -> None:
    found = change({1: 10.0, 2: 10.0}, {1: 11.0, 2: 11.0})

    assert found is not None
    assert (found.margin, found.is_distinguishable) == (0.0, True)


@pytest.mark.parametrize(("degrees", "expected"), [(1, 12.706), (2.9, 4.303), (30, 2.042), (60, 2.0), (120, 1.98)])
def test_quantiles_are_those_of_the_tables(degrees: float, expected: float) -> None:
    assert t95(degrees) == pytest.approx(expected, abs=0.003)
