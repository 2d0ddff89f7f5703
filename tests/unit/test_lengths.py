"""Numbers of tokens: what is drawn, and what is refused."""

import random
from math import exp
from statistics import fmean, median, pstdev

import msgspec
import pytest

from kvengine.errors import ConfigError
from kvplan.lengths import Lengths, Tokens, draw_tokens
from kvplan.loading import FileSchema, decode


class Holder(FileSchema, frozen=True, kw_only=True):
    tokens: Tokens


def drawn(tokens: object, count: int = 20_000) -> list[int]:
    chance = random.Random(1)
    value = decode({"tokens": tokens}, Holder, source="w.yaml").tokens
    return [draw_tokens(value, chance) for _ in range(count)]


def test_a_fixed_number_takes_no_chance() -> None:
    chance = random.Random(1)

    assert draw_tokens(7, chance) == 7
    assert chance.random() == random.Random(1).random()


def test_an_even_draw_reaches_both_ends_and_nothing_beyond() -> None:
    assert set(drawn({"low": 3, "high": 6})) == {3, 4, 5, 6}


def test_a_lognormal_draw_has_the_mean_and_deviation_it_was_given() -> None:
    lengths = drawn({"lognormal": {"mean": 500, "std": 250}})

    # 20,000 draws: the mean's own deviation is 250 / sqrt(20,000) = 1.8.
    assert fmean(lengths) == pytest.approx(500, abs=8)
    assert pstdev(lengths) == pytest.approx(250, rel=0.05)


def test_a_lognormal_draw_has_the_median_and_spread_it_was_given() -> None:
    lengths = sorted(drawn({"lognormal": {"median": 1000, "sigma": 0.5}}))

    assert median(lengths) == pytest.approx(1000, rel=0.02)
    # One deviation of the logarithm above the median: 84.13 % of a normal distribution lie below.
    assert lengths[int(0.8413 * len(lengths))] == pytest.approx(1000 * exp(0.5), rel=0.03)


def test_a_lognormal_draw_is_moved_into_its_bounds() -> None:
    lengths = drawn({"lognormal": {"median": 100, "sigma": 2, "low": 50, "high": 200}}, 1000)

    assert (min(lengths), max(lengths)) == (50, 200)


def test_a_histogram_gives_each_bin_its_weight_and_spreads_evenly_inside() -> None:
    bins = [
        {"low": 1, "high": 2, "weight": 3},
        {"low": 100, "high": 100, "weight": 1},
        {"low": 9, "high": 9, "weight": 0},
    ]
    lengths = drawn({"histogram": bins})

    assert set(lengths) == {1, 2, 100}
    # A quarter of 20,000 draws: 5,000 with a deviation of 61.
    assert lengths.count(100) == pytest.approx(5000, abs=250)
    assert lengths.count(1) == pytest.approx(7500, abs=350)


def test_measured_values_are_drawn_again() -> None:
    assert set(drawn({"values": [5, 5, 90]}, 300)) == {5, 90}


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (0, "tokens: expected a whole number >= 1 and <= 16,777,216 or a mapping, got 0"),
        ({}, "expected exactly one of low and high, lognormal, histogram, values"),
        ({"low": 5}, "expected low <= high, got 5 and nothing"),
        ({"low": 5, "high": 4}, "expected low <= high, got 5 and 4"),
        ({"low": 1, "high": 4, "values": [3]}, "expected exactly one of"),
        ({"values": []}, "tokens.values: expected a list that is not empty"),
        ({"values": [3, 0]}, r"tokens.values\[1\]"),
        ({"lognormal": {"mean": 3}}, "expected mean and std, or median and sigma, got mean"),
        ({"lognormal": {"mean": 3, "sigma": 1}}, "expected mean and std, or median and sigma, got mean, sigma"),
        ({"lognormal": {}}, "expected mean and std, or median and sigma, got neither"),
        ({"lognormal": {"median": 3, "sigma": 0}}, "tokens.lognormal.sigma"),
        ({"histogram": [{"low": 1, "high": 2, "weight": 0}]}, "a histogram with a weight above 0"),
        ({"histogram": [{"low": 3, "high": 2, "weight": 1}]}, r"tokens.histogram\[0\]: expected low <= high"),
    ],
)
def test_lengths_that_make_no_sense_are_refused_by_key(tokens: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        drawn(tokens, 1)


def test_a_distribution_far_beyond_all_floats_stays_a_number() -> None:
    lengths = msgspec.convert({"lognormal": {"median": 2**24, "sigma": 10}}, Lengths)

    assert all(1 <= lengths.draw(random.Random(seed)) <= 2**24 for seed in range(200))
