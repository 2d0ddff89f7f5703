"""Two results files beside each other: what became better or worse, and what only looks so."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from kvplan.groups import Metric, PointGroup, group_repeats, present_metrics
from kvplan.results import PointResult
from kvplan.statistics import Change, change

Verdict = Literal["better", "worse", "changed", "same", "not distinguishable", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One metric of one point, before and after."""

    name: str
    """The profile's name."""
    label: str
    metric: Metric
    before: float
    """Median over the repeats."""
    after: float
    change: Change | None
    """None where the value before is 0."""
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What two files say of the points that they share."""

    differences: Sequence[Difference]
    only_before: Sequence[str]
    """Points that the newer file does not have."""
    only_after: Sequence[str]

    @property
    def regressions(self) -> list[Difference]:
        """What became worse, beyond doubt."""
        return [difference for difference in self.differences if difference.verdict == "worse"]


def compare(before: Sequence[PointResult], after: Sequence[PointResult]) -> Comparison:
    """Compare points of the same profile and label."""
    old, new = _by_name(before), _by_name(after)
    shared = [key for key in old if key in new]
    return Comparison(
        differences=[difference for key in shared for difference in _differences(key, old[key], new[key])],
        only_before=[" ".join(key) for key in old if key not in new],
        only_after=[" ".join(key) for key in new if key not in old],
    )


def _by_name(points: Sequence[PointResult]) -> dict[tuple[str, str], PointGroup]:
    return {(group.first.name, group.label): group for group in group_repeats(points)}


def _differences(key: tuple[str, str], old: PointGroup, new: PointGroup) -> list[Difference]:
    name, label = key
    found = []
    for metric in present_metrics([old, new]):
        before, after = old.values(metric), new.values(metric)
        if before and after:
            difference = change(before, after)
            found.append(
                Difference(
                    name=name,
                    label=label,
                    metric=metric,
                    before=median(before.values()),
                    after=median(after.values()),
                    change=difference,
                    verdict=_verdict(metric, before, after, difference),
                )
            )
    return found


def _verdict(metric: Metric, before: dict[int, float], after: dict[int, float], found: Change | None) -> Verdict:
    if before == after:
        return "same"
    if found is not None and found.margin is None:
        return "unknown"
    if found is not None and not found.is_distinguishable:
        return "not distinguishable"
    rises = fmean(after.values()) > fmean(before.values())
    if found is None and (len(before) < 2 or len(after) < 2):
        return "unknown"
    if metric.higher_is_better is None:
        return "changed"
    return "better" if rises == metric.higher_is_better else "worse"
