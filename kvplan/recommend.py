"""What a sweep says to do, in one sentence with its evidence and how sure it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from kvplan.groups import GOODPUT, METRICS, OUTPUT_RATE, PREEMPTIONS, Metric, PointGroup, objective
from kvplan.run_profile import RunProfile
from kvplan.statistics import Change, change


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The point to take."""

    chosen: PointGroup
    base: PointGroup
    """What it is compared with: the point nearest to the defaults."""
    sentence: str


def recommend(groups: Sequence[PointGroup]) -> Recommendation | None:
    """Choose the point with the highest objective, and say against what; None with fewer than two finished points."""
    metric = objective(groups)
    finished = [group for group in groups if group.is_finished and metric is not None and group.values(metric)]
    if metric is None or len(finished) < 2:
        return None
    best = max(finished, key=lambda group: median(group.values(metric).values()))
    base = _nearest_to_defaults(finished)
    gain = _change(base, best, metric)
    is_worth_it = gain is None or gain.margin is None or gain.is_distinguishable
    return Recommendation(
        chosen=best if is_worth_it else base, base=base, sentence=_sentence(finished, best, base, metric)
    )


_MOST_NAMED = 4
_WORTH_NAMING = 0.5
"""By how much of the largest the smallest value must be less to be named where the objective tells no points apart."""


def _nearest_to_defaults(groups: Sequence[PointGroup]) -> PointGroup:
    defaults = RunProfile().settings()

    def num_equal(group: PointGroup) -> int:
        return sum(group.first.settings[axis] == defaults.get(axis) for axis in group.first.axes)

    return max(groups, key=num_equal)


def _sentence(groups: Sequence[PointGroup], best: PointGroup, base: PointGroup, metric: Metric) -> str:
    others = [group for group in groups if group is not best]
    alike = [group for group in others if not _is_told_apart(group, best, metric)]
    rivals = [best, *alike]
    gain, is_tie = _change(base, best, metric), False
    if best is base:
        runner_up = max(others, key=lambda group: median(group.values(metric).values()))
        is_tie = _has_spread(groups) and runner_up in alike
        lead = f"{show_change(_change(runner_up, best, metric))} against {runner_up.label}"
        head = f"{best.label}: the most {metric.title} of {len(groups)} points, {lead}"
        if is_tie:
            head = f"{best.label}: no point has distinguishably more {metric.title}"
    elif gain is not None and gain.margin is not None and not gain.is_distinguishable:
        head = f"{base.label}: no point has distinguishably more {metric.title}; {best.label} has {show_change(gain)}"
        alike, is_tie = [group for group in alike if group is not base], True
    else:
        head = f"{best.label}: {show_change(gain)} {metric.title} against {base.label}{_preemptions_beside(base, best)}"
    parts = [
        head,
        *(_other_differences(rivals, metric) if is_tie else ()),
        *_quality_of(best),
        *([f"not distinguishable from {_listed(alike)}"] if alike and _has_spread(groups) else []),
    ]
    return "; ".join([*parts, _evidence(groups)]) + "."


def _has_spread(groups: Sequence[PointGroup]) -> bool:
    return all(len(group.points) > 1 for group in groups)


def _is_told_apart(one: PointGroup, other: PointGroup, metric: Metric) -> bool:
    found = _change(one, other, metric)
    return found is not None and found.is_distinguishable


def _change(base: PointGroup, other: PointGroup, metric: Metric) -> Change | None:
    return change(base.values(metric), other.values(metric))


def show_change(found: Change | None) -> str:
    """`+6.0 % ± 2.1`, or without the margin where single runs leave it unknown."""
    if found is None:
        return "an unknown change"
    margin = "" if found.margin is None else f" ± {100 * found.margin:.1f}"
    return f"{100 * found.share:+.1f} %{margin}"


def _preemptions_beside(base: PointGroup, best: PointGroup) -> str:
    before, after = base.values(PREEMPTIONS), best.values(PREEMPTIONS)
    if not before or not after or fmean(before.values()) == fmean(after.values()):
        return ""
    return f", preemptions: {fmean(after.values()):,.4g} instead of {fmean(before.values()):,.4g}"


def _other_differences(groups: Sequence[PointGroup], metric: Metric) -> list[str]:
    """In what points are farthest apart that the objective does not tell apart; nothing where they are close in all."""
    found = []
    for other in METRICS:
        medians = [(median(values), group) for group in groups if (values := group.values(other).values())]
        if other in (metric, OUTPUT_RATE, GOODPUT) or other.higher_is_better is None or len(medians) < len(groups):
            continue
        (low, least), (high, most) = (choose(medians, key=lambda one: one[0]) for choose in (min, max))
        if high > 0 and (high - low) / high >= _WORTH_NAMING:
            ends = f"{_shown(low, other)} ({least.label}) to {_shown(high, other)} ({most.label})"
            found.append(((high - low) / high, f"{other.title}: {ends}"))
    return [max(found, key=lambda one: one[0])[1]] if found else []


def _shown(value: float, metric: Metric) -> str:
    return f"{100 * value:.1f} %" if metric.is_share else f"{value:,.4g} {metric.unit}".strip()


def _quality_of(best: PointGroup) -> list[str]:
    """What more of something costs in output quality."""
    measured = best.first.measured
    if measured is None or measured.quality is None or measured.quality.kl_max == 0:
        return []
    quality = measured.quality
    return [
        f"{best.label} diverges from a {quality.reference} cache by {quality.kl_mean:.2g} nats on average, with the"
        f" same likeliest token at {100 * quality.top1_agreement:.1f} % of {quality.num_positions:,} positions"
    ]


def _listed(groups: Sequence[PointGroup]) -> str:
    names = [group.label for group in groups]
    if len(names) > _MOST_NAMED:
        names = [*names[: _MOST_NAMED - 1], f"{len(names) - _MOST_NAMED + 1} others"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _evidence(groups: Sequence[PointGroup]) -> str:
    counts = {len(group.points) for group in groups}
    source = "measured" if any(group.first.measured is not None for group in groups) else "simulated"
    if counts == {1}:
        return f"{source} once a point, so the spread is not known (set repeats)"
    number = str(min(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    return f"{source} {number} times a point, 95 % intervals"
