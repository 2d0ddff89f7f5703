"""What a trace is like: how long its requests are, and when they come."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor
from statistics import fmean, pstdev

from kvplan.quantiles import nearest_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSummary:
    """Tokens of many requests; percentiles are nearest-rank."""

    mean: float
    std: float
    """Of the population."""
    p50: int
    p90: int
    p95: int
    p99: int
    min: int
    max: int
    sum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalSummary:
    """Times between requests."""

    duration_s: float
    """From the first to the last."""
    mean_gap_s: float
    cv_gap: float
    """Deviation of the gaps over their mean: 1 for a Poisson process, more for bursts."""
    zero_gaps: int
    peak_in_one_second: int
    """Most requests in one whole second, counted from the first request."""
    peak_in_one_minute: int

    @property
    def rate_per_s(self) -> float:
        """Requests a second."""
        return 1 / self.mean_gap_s if self.mean_gap_s else 0.0


def summarize_lengths(lengths: Sequence[int]) -> LengthSummary:
    """Summarize at least one length."""
    ordered = sorted(lengths)
    return LengthSummary(
        mean=fmean(ordered),
        std=pstdev(ordered),
        p50=nearest_rank(ordered, 0.5),
        p90=nearest_rank(ordered, 0.9),
        p95=nearest_rank(ordered, 0.95),
        p99=nearest_rank(ordered, 0.99),
        min=ordered[0],
        max=ordered[-1],
        sum=sum(ordered),
    )


def summarize_arrivals(arrivals_s: Sequence[float]) -> ArrivalSummary | None:
    """Summarize times in any order; None if there are fewer than two."""
    if len(arrivals_s) < 2:
        return None
    times = sorted(arrivals_s)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean = fmean(gaps)
    return ArrivalSummary(
        duration_s=times[-1] - times[0],
        mean_gap_s=mean,
        cv_gap=pstdev(gaps) / mean if mean else 0.0,
        zero_gaps=gaps.count(0.0),
        peak_in_one_second=_peak(times, 1.0),
        peak_in_one_minute=_peak(times, 60.0),
    )


def _peak(times: Sequence[float], width_s: float) -> int:
    return max(Counter(floor((time - times[0]) / width_s) for time in times).values())
