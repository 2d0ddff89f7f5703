"""Quantiles of listed values."""

from collections.abc import Sequence
from math import ceil


def nearest_rank(ordered: Sequence[int], quantile: float) -> int:
    """The smallest value that at least this share of the values does not exceed."""
    return ordered[max(ceil(quantile * len(ordered)) - 1, 0)]
