"""How many requests of a workload that come one after the other fit at the same time, wherever one begins."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvplan.shared_prefixes import SharedPrefixes


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingRuns:
    """Lengths of the longest runs of requests that fit, over all requests that one may begin with.

    A run that ends with the workload and not with the memory says nothing, and is left out; if all requests fit
    together, that is the only one.
    """

    fewest: int
    mean: Fraction
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaviestRun:
    """Of all runs of so many requests the one that takes most units."""

    start: int
    units: int


class ConsecutiveRequests:
    """Requests in their order, each with the units that it needs, and prefixes that are held once."""

    def __init__(self, needed: Sequence[int], prefixes: SharedPrefixes, shared_units: Sequence[int]) -> None:
        """Take the requests in.

        Args:
            needed: Units of each request by itself.
            prefixes: What the requests have in common; without stretches nothing is shared.
            shared_units: Whole units of each stretch.
        """
        self._needed = needed
        self._stretches = prefixes.of_request or ((),) * len(needed)
        self._shared_units = shared_units

    def fitting(self, room: int, most_requests: int | None = None) -> FittingRuns:
        """Find the runs that fit in so many units, of no more than so many requests."""
        count, end, runs = len(self._needed), 0, []
        window = _Window(self)
        for start in range(count):
            while end < count:
                window.add(end)
                if window.units > room or end - start == most_requests:
                    window.drop(end)
                    break
                end += 1
            if end == count:
                break
            runs.append(end - start)
            if end > start:
                window.drop(start)
            else:
                end += 1
        if not runs:
            return FittingRuns(fewest=count, mean=Fraction(count), most=count)
        return FittingRuns(fewest=min(runs), mean=Fraction(sum(runs), len(runs)), most=max(runs))

    def heaviest(self, length: int) -> HeaviestRun:
        """Find the run of so many requests that takes most; the first of equal ones."""
        window, best = _Window(self), HeaviestRun(start=0, units=-1)
        for index in range(len(self._needed)):
            window.add(index)
            if index >= length:
                window.drop(index - length)
            if index >= length - 1 and window.units > best.units:
                best = HeaviestRun(start=index - length + 1, units=window.units)
        return best


class _Window:
    """Requests that are there together, and the units that they take."""

    def __init__(self, requests: ConsecutiveRequests) -> None:
        self.units = 0
        self._needed = requests._needed
        self._stretches = requests._stretches
        self._shared_units = requests._shared_units
        self._holders = [0] * len(requests._shared_units)

    def add(self, index: int) -> None:
        self.units += self._needed[index]
        for stretch in self._stretches[index]:
            if self._holders[stretch]:
                self.units -= self._shared_units[stretch]
            self._holders[stretch] += 1

    def drop(self, index: int) -> None:
        self.units -= self._needed[index]
        for stretch in self._stretches[index]:
            self._holders[stretch] -= 1
            if self._holders[stretch]:
                self.units += self._shared_units[stretch]
