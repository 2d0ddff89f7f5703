"""Repeats of a point: the middle, the spread, and whether two points can be told apart.

Intervals are 95 % confidence intervals of a mean by Student's t; with fewer than two repeats there is none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median, stdev

# Two-sided 95 % quantiles of Student's t for 1 .. 30 degrees of freedom (any table of it); beyond, 1.96 + 2.4 / n is
# within 0.002 of them.
_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Values of repeats of one point."""

    count: int
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How much larger one point's values are than another's, as a share of the other's mean."""

    share: float
    """0.06 for 6 % more."""
    margin: float | None
    """Half the width of its 95 % interval; None where single runs leave it unknown."""
    pairs: int
    """Repeats with the same seed that were compared one by one; 0 where the means were."""

    @property
    def is_distinguishable(self) -> bool:
        """Whether the interval excludes no change; False where it is unknown."""
        return self.margin is not None and abs(self.share) > self.margin


def spread(values: Sequence[float]) -> Spread | None:
    """Sum up values; None if there are none."""
    if not values:
        return None
    return Spread(count=len(values), median=median(values), low=min(values), high=max(values))


def change(base: dict[int, float], other: dict[int, float]) -> Change | None:
    """Compare two points, seed by seed where they share at least two seeds.

    Args:
        base: Values by seed.
        other: The same of the point that is compared.

    Returns:
        None where there is nothing to compare, or the base is 0.
    """
    if not base or not other or not fmean(base.values()):
        return None
    seeds = sorted(base.keys() & other.keys())
    scale = abs(fmean(base.values()))
    if len(seeds) >= 2:
        differences = [(other[seed] - base[seed]) / scale for seed in seeds]
        margin = t95(len(seeds) - 1) * stdev(differences) / sqrt(len(seeds))
        return Change(share=fmean(differences), margin=margin, pairs=len(seeds))
    share = (fmean(other.values()) - fmean(base.values())) / scale
    return Change(share=share, margin=_unpaired_margin([*base.values()], [*other.values()], scale), pairs=0)


def t95(degrees: float) -> float:
    """The two-sided 95 % quantile of Student's t; degrees are rounded down."""
    whole = max(int(degrees), 1)
    return _T95[whole - 1] if whole <= len(_T95) else 1.96 + 2.4 / whole


def _unpaired_margin(base: Sequence[float], other: Sequence[float], scale: float) -> float | None:
    """Welch's interval, with the degrees of freedom of Welch and Satterthwaite."""
    if len(base) < 2 or len(other) < 2:
        return None
    parts = [(stdev(values) ** 2 / len(values), len(values) - 1) for values in (base, other)]
    variance = sum(part for part, _ in parts)
    if not variance:
        return 0.0
    degrees = variance**2 / sum(part**2 / degrees for part, degrees in parts)
    return t95(degrees) * sqrt(variance) / scale
