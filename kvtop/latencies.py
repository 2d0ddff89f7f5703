"""Waiting times as they came, and the percentiles of any stretch of them."""

from array import array
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

MAX_VALUES = 2**17
"""Beyond this many, every second one is forgotten: percentiles hardly change, and an hour of steps takes 3 MB."""


class LatencyLog:
    """Values in the order of the steps in which they came, each with how many had it."""

    def __init__(self) -> None:
        self._steps = array("d")
        self._values = array("d")
        self._counts = array("d")

    def __len__(self) -> int:
        return len(self._values)

    def add(self, step: float, value_s: float, count: float) -> None:
        """Add values of a step no earlier than all others."""
        self._steps.append(step)
        self._values.append(value_s)
        self._counts.append(count)

    def quantile(self, q: float, *, after: float, up_to: float) -> float | None:
        """The smallest value that at least the share `q` does not exceed; None without one.

        Args:
            q: From 0 to 1.
            after: Only values of later steps.
            up_to: Only values of steps up to this one.
        """
        steps = np.frombuffer(self._steps)
        first, end = np.searchsorted(steps, (after, up_to), side="right").tolist()
        return self._quantile(q, first, end)

    def quantiles(self, edges: NDArray[np.float64], q: float) -> list[float | None]:
        """The quantile of the steps after each edge, up to the next; empty without any value."""
        if not len(self):
            return []
        borders = np.searchsorted(np.frombuffer(self._steps), edges, side="right").tolist()
        return [self._quantile(q, first, end) for first, end in pairwise(borders)]

    def halve(self) -> None:
        """Forget every second value if there are very many."""
        if len(self) > MAX_VALUES:
            self._steps, self._values, self._counts = self._steps[::2], self._values[::2], self._counts[::2]

    def _quantile(self, q: float, first: int, end: int) -> float | None:
        if end <= first:
            return None
        return weighted_quantile(np.frombuffer(self._values)[first:end], np.frombuffer(self._counts)[first:end], q)


def weighted_quantile(values: NDArray[np.float64], counts: NDArray[np.float64], q: float) -> float:
    """Nearest rank: the smallest of the values that at least the share `q` of all does not exceed."""
    order = np.argsort(values)
    up_to_here = np.cumsum(counts[order])
    index = int(np.searchsorted(up_to_here, q * up_to_here[-1] - 1e-9))
    return float(values[order][min(index, len(values) - 1)])
