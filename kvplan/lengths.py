"""Numbers of tokens, fixed or drawn: evenly, lognormally, from a histogram, or from measured values."""

import random
from math import exp, log, sqrt
from typing import Annotated

import msgspec

from kvplan.loading import FileSchema

Count = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=2**24)]


class Lognormal(FileSchema, frozen=True, kw_only=True):
    """Mostly short with a long tail: the logarithm is normally distributed.

    Given by its mean and standard deviation in tokens, or by its median and the deviation of the logarithm. What is
    drawn outside `low` to `high` is moved to that end.
    """

    mean: Positive | None = None
    std: Positive | None = None
    median: Positive | None = None
    sigma: Annotated[float, msgspec.Meta(gt=0, le=10)] | None = None
    """Standard deviation of the logarithm: 1 has two thirds of all values between 0.37 and 2.7 times the median."""
    low: Count = 1
    high: Count = 2**24

    def __post_init__(self) -> None:
        given = {key for key in ("mean", "std", "median", "sigma") if getattr(self, key) is not None}
        if given not in ({"mean", "std"}, {"median", "sigma"}):
            said = ", ".join(sorted(given)) or "neither"
            raise ValueError(f"expected mean and std, or median and sigma, got {said}")
        if self.low > self.high:
            raise ValueError(f"expected low <= high, got {self.low} and {self.high}")

    def draw(self, chance: random.Random) -> int:
        """Draw one value."""
        mu, sigma = self._parameters()
        # The exponent of the largest float is 709.
        drawn = exp(min(chance.normalvariate(mu, sigma), 700.0))
        return min(max(round(drawn), self.low), self.high)

    def _parameters(self) -> tuple[float, float]:
        """Mean and deviation of the logarithm: with mean m and deviation s, sigma² = ln(1 + s²/m²)."""
        if self.median is not None and self.sigma is not None:
            return log(self.median), self.sigma
        mean, std = self.mean or 1.0, self.std or 0.0  # both are there: one of the two forms is whole
        variance = log(1 + (std / mean) ** 2)
        return log(mean) - variance / 2, sqrt(variance)


class Bin(FileSchema, frozen=True, kw_only=True):
    """A part of a histogram; inside it every value is as likely as the others."""

    low: Count
    high: Count
    weight: Annotated[float, msgspec.Meta(ge=0, le=1e18)]
    """Its share, in any unit: counts, fractions or percent."""

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"expected low <= high, got {self.low} and {self.high}")


class Lengths(FileSchema, frozen=True, kw_only=True):
    """A number of tokens that is drawn anew for each request, in one of four ways."""

    low: Count | None = None
    """Drawn evenly from `low` to `high`, both included."""
    high: Count | None = None
    lognormal: Lognormal | None = None
    histogram: Annotated[tuple[Bin, ...], msgspec.Meta(min_length=1)] | None = None
    values: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)] | None = None
    """Drawn from these, with replacement."""

    def __post_init__(self) -> None:
        evenly = self.low is not None or self.high is not None
        ways = (evenly, self.lognormal is not None, self.histogram is not None, self.values is not None)
        if sum(ways) != 1:
            raise ValueError("expected exactly one of low and high, lognormal, histogram, values")
        if evenly and (self.low is None or self.high is None or self.low > self.high):
            raise ValueError(f"expected low <= high, got {_said(self.low)} and {_said(self.high)}")
        if self.histogram is not None and not any(part.weight for part in self.histogram):
            raise ValueError("expected a histogram with a weight above 0")

    def draw(self, chance: random.Random) -> int:
        """Draw one value."""
        if self.low is not None and self.high is not None:
            return chance.randint(self.low, self.high)
        if self.lognormal is not None:
            return self.lognormal.draw(chance)
        if self.histogram is not None:
            (part,) = chance.choices(self.histogram, [part.weight for part in self.histogram])
            return chance.randint(part.low, part.high)
        assert self.values is not None, "one of the ways was checked to be there"
        return chance.choice(self.values)


Tokens = Count | Lengths
"""A number of tokens in a file: fixed, or drawn."""


def draw_tokens(tokens: Tokens, chance: random.Random) -> int:
    """Draw a number of tokens; a fixed one takes no chance."""
    return tokens if isinstance(tokens, int) else tokens.draw(chance)


def _said(value: int | None) -> str:
    return "nothing" if value is None else str(value)
