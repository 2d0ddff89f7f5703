"""Times of requests and of steps as a table; of repeats the slowest is never averaged away."""

from collections.abc import Callable, Sequence
from statistics import median

from kvplan.figures import Figures
from kvplan.groups import PointGroup, group_repeats
from kvplan.latency import Percentiles
from kvplan.report import UNKNOWN, ReportTable, show_percent, two_lines
from kvplan.results import PointResult
from kvplan.run_profile import show_setting

_TITLES = (
    "TTFT s\np50",
    "\np99",
    "\nmax",
    "ITL ms\np50",
    "\np99",
    "\nmax",
    "E2E s\np50",
    "\np99",
    "\nmax",
)
_STEP_TITLES = ("sche-\ndule", "com-\npute", "up-\ndate")
_GOOD_TITLES = ("good\nrequests", "good-\nput/s")

TIMES_NOTE = (
    "times of requests: TTFT to the first token, ITL between tokens, E2E to the last token; of repeats p50 is the"
    " median, p99 and max the slowest of any"
)
_STEP_NOTE = "what all steps together were spent on: deciding (schedule), the model (compute), taking in (update)"
_GOOD_NOTE = "good: finished and within the service level ({level}); goodput: those a second"


def times_table(points: Sequence[PointResult]) -> ReportTable | None:
    """Measured times, a row a point; None where nothing was measured in seconds.

    Args:
        points: Results of the same profile.
    """
    groups = [group for group in group_repeats(points) if any(map(_has_times, _measured(group)))]
    if not groups:
        return None
    measured = [figures for group in groups for figures in _measured(group)]
    has_steps = any(figures.execute_s is not None for figures in measured)
    has_level = any(figures.good_requests is not None for figures in measured)
    axes, notes = points[0].axes, [TIMES_NOTE]
    notes += [_STEP_NOTE] if has_steps else []
    notes += [_GOOD_NOTE.format(level=_service_level(points[0]))] if has_level else []
    titles = [*_TITLES, *(_STEP_TITLES if has_steps else ()), *(_GOOD_TITLES if has_level else ())]
    rows = [
        [
            *(show_setting(axis, group.first.settings[axis]) for axis in axes),
            *_latency_cells(_measured(group)),
            *(_step_cells(_measured(group)) if has_steps else ()),
            *(_good_cells(_measured(group)) if has_level else ()),
        ]
        for group in groups
    ]
    return ReportTable(titles=[*map(two_lines, axes), *titles], rows=rows, num_heads=len(axes), notes=notes)


def _measured(group: PointGroup) -> list[Figures]:
    return [point.measured for point in group.points if point.measured is not None]


def _has_times(figures: Figures) -> bool:
    return figures.latencies is not None and figures.latencies.unit == "s"


def _latency_cells(repeats: Sequence[Figures]) -> list[str]:
    cells = []
    for name, factor in (("ttft", 1.0), ("itl", 1000.0), ("e2e", 1.0)):
        found = [
            times
            for figures in repeats
            if figures.latencies is not None and (times := getattr(figures.latencies, name)) is not None
        ]
        cells += [_time(found, rank, choose, factor) for rank, choose in (("p50", median), ("p99", max), ("max", max))]
    return cells


def _time(repeats: Sequence[Percentiles], rank: str, choose: Callable[[Sequence[float]], float], factor: float) -> str:
    if not repeats:
        return UNKNOWN
    value = factor * choose([getattr(times, rank) for times in repeats])
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _step_cells(repeats: Sequence[Figures]) -> list[str]:
    """Shares of the time of all steps, the median of the repeats."""
    parts = [
        (figures.schedule_s, figures.execute_s, figures.update_s)
        for figures in repeats
        if figures.execute_s is not None
    ]
    shares = [[(part or 0.0) / total for part in one] for one in parts if (total := sum(map(float, filter(None, one))))]
    return [show_percent(median(column)) for column in zip(*shares, strict=True)] or [UNKNOWN] * len(_STEP_TITLES)


def _good_cells(repeats: Sequence[Figures]) -> list[str]:
    good = [figures.good_requests for figures in repeats if figures.good_requests is not None]
    rates = [figures.goodput_per_s for figures in repeats if figures.goodput_per_s is not None]
    return [f"{median(good):,.0f}" if good else UNKNOWN, f"{median(rates):.3g}" if rates else UNKNOWN]


def _service_level(point: PointResult) -> str:
    limits = {key: point.settings.get(f"slo.{key}") for key in ("ttft_s", "tpot_s", "e2e_s")}
    return ", ".join(f"{key} {value:g}" for key, value in limits.items() if isinstance(value, int | float))
