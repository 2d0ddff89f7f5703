"""Latency histograms as servers publish them: counts up to each bound, subtracted and asked for quantiles."""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How many observations lay at or below each bound; the last bound is infinity."""

    bounds: tuple[float, ...]
    """Upper bounds, ascending."""
    cumulative: tuple[float, ...]
    """Observations at or below each bound."""
    sum: float | None
    """Of all observed values, None where it was not published."""

    @property
    def count(self) -> float:
        """All observations."""
        return self.cumulative[-1]

    @property
    def mean(self) -> float | None:
        """None without an observation, or without a published sum."""
        return self.sum / self.count if self.sum is not None and self.count > 0 else None

    def quantile(self, q: float) -> float | None:
        """Where the share `q` of the observations lies, drawn as a line through its bucket.

        Returns:
            None without an observation; the largest finite bound (so "at least") where the answer lies above it.
        """
        if self.count <= 0:
            return None
        rank = q * self.count
        lower_bound = lower_count = 0.0
        for bound, up_to_here in zip(self.bounds, self.cumulative, strict=True):
            if up_to_here >= rank and up_to_here > lower_count:
                if math.isinf(bound):
                    break
                share = (rank - lower_count) / (up_to_here - lower_count)
                return lower_bound + (bound - lower_bound) * share
            if not math.isinf(bound):
                lower_bound = bound
            lower_count = up_to_here
        return self.bounds[-2] if len(self.bounds) > 1 else None

    def since(self, earlier: "Histogram") -> "Histogram | None":
        """What was observed after `earlier`; None if the buckets differ or a count went back."""
        if self.bounds != earlier.bounds:
            return None
        cumulative = tuple(now - then for now, then in zip(self.cumulative, earlier.cumulative, strict=True))
        if not _is_cumulative(cumulative):
            return None
        total = None if self.sum is None or earlier.sum is None else self.sum - earlier.sum
        return Histogram(bounds=self.bounds, cumulative=cumulative, sum=total)


def histogram_from_buckets(up_to: Mapping[float, float], total: float | None) -> Histogram | None:
    """Make a histogram of published buckets; None for a set that is incomplete or contradicts itself."""
    bounds = tuple(sorted(up_to))
    cumulative = tuple(up_to[bound] for bound in bounds)
    if not bounds or bounds[-1] != math.inf or not _is_cumulative(cumulative):
        return None
    return Histogram(bounds=bounds, cumulative=cumulative, sum=total)


def _is_cumulative(counts: tuple[float, ...]) -> bool:
    return all(math.isfinite(count) for count in counts) and all(
        before <= after for before, after in zip((0.0, *counts), counts, strict=False)
    )
