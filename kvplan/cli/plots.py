"""Plots of a report for the terminal: a bar a point, and how full its pool was over the run."""

from collections.abc import Sequence
from itertools import pairwise

from rich.table import Table
from rich.text import Text

from kvplan.cli.output import print_rich
from kvplan.cli.result_tables import empty_table, print_whole
from kvplan.groups import Metric, PointGroup, group_repeats, judged_figures, present_metrics
from kvplan.report import UNKNOWN
from kvplan.results import PointResult
from kvplan.statistics import Spread, spread
from kvplan.timeline import Timeline

_BAR_WIDTH = 40
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"
_USAGE_WIDTH = 60


def print_plots(points: Sequence[PointResult]) -> None:
    """Draw each figure in which the points differ, and the usage of their pools.

    Args:
        points: Of one sweep; repeats become one bar at their median, with the smallest and the largest value beside it.
    """
    groups = group_repeats(points)
    for metric in present_metrics(groups):
        spreads = [spread([*group.values(metric).values()]) for group in groups]
        if len({found.median for found in spreads if found is not None}) > 1:
            print_rich("")
            print_whole(_bars(metric, groups, spreads))
    timelines = [judged_figures(group.first).timeline for group in groups]
    if any(timelines):
        print_rich("")
        print_whole(_usages(groups, timelines))


def _bars(metric: Metric, groups: Sequence[PointGroup], spreads: Sequence[Spread | None]) -> Table:
    unit = "%" if metric.is_share else metric.unit
    table = _table(metric.title if not unit or unit in metric.title else f"{metric.title}, {unit}")
    largest = max((found.median for found in spreads if found is not None), default=0.0)
    for group, found in zip(groups, spreads, strict=True):
        if found is None:
            table.add_row(group.label, UNKNOWN, "", "")
            continue
        table.add_row(
            group.label,
            show_value(metric, found.median),
            Text(bar(found.median / largest if largest else 0.0, _BAR_WIDTH), style="cyan"),
            _ends(metric, found),
        )
    return table


def _usages(groups: Sequence[PointGroup], timelines: Sequence[Timeline | None]) -> Table:
    table = _table("pool in use over the run, peaks; full height is the whole pool")
    for group, timeline in zip(groups, timelines, strict=True):
        usable = judged_figures(group.first).usable_blocks
        if timeline is None or not usable:
            table.add_row(group.label, UNKNOWN, "", "")
            continue
        peaks = [used / usable for used in timeline.max_used_blocks]
        table.add_row(group.label, f"{100 * max(peaks):.0f} %", Text(levels(peaks, _USAGE_WIDTH), style="green"), "")
    return table


def _table(title: str) -> Table:
    table = empty_table(title)
    table.show_header = False
    for justify in ("left", "right", "left", "left"):
        table.add_column(justify=justify, no_wrap=True)
    table.padding = (0, 1, 0, 0)
    return table


def bar(share: float, width: int) -> str:
    """A bar of up to `width` cells, to an eighth of a cell; anything above 0 can be seen."""
    eighths = round(share * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


def levels(shares: Sequence[float], width: int) -> str:
    """A line of up to `width` heights; where several values share a cell, the largest is drawn."""
    cells = min(width, len(shares))
    edges = [len(shares) * cell // cells for cell in range(cells + 1)]
    peaks = [max(shares[begin:end]) for begin, end in pairwise(edges)]
    return "".join(_LEVELS[min(int(peak * len(_LEVELS)), len(_LEVELS) - 1)] for peak in peaks)


def show_value(metric: Metric, value: float) -> str:
    """A value of a metric in few digits."""
    if metric.is_share:
        return f"{100 * value:.1f}"
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:,.3g}"


def _ends(metric: Metric, found: Spread) -> Text:
    if found.low == found.high:
        return Text("")
    return Text(f"{show_value(metric, found.low)} to {show_value(metric, found.high)}", style="dim")
