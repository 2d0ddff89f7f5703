"""Results as one HTML page: tables as HTML, plots drawn by a script from the data in the page."""

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

import msgspec

from kvplan.groups import PointGroup, group_repeats, judged_figures, objective, present_metrics
from kvplan.heatmap import read_heat_map
from kvplan.memory_table import memory_table
from kvplan.recommend import recommend
from kvplan.report import ReportTable, report_table
from kvplan.results import PointResult
from kvplan.run_profile import show_setting
from kvplan.side_tables import side_tables

_PLANNED = (
    "peak_blocks_in_use",
    "preemptions",
    "prefix_hit_tokens",
    "first_prefix_hit_tokens",
    "recomputed_tokens",
    "swapped_in_tokens",
    "steps",
)


def html_page(series: Sequence[Sequence[PointResult]], *, title: str) -> str:
    """Write the report of one or more series of points.

    Args:
        series: Of each sweep the points that may be compared.
        title: Of the page.
    """
    folder = files("kvplan.html")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    sections = "\n".join(_section(points, number) for number, points in enumerate(series))
    data = json.dumps([_data(points) for points in series], separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline';"
        f" script-src 'unsafe-inline'; img-src data:\">\n"
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<main>\n<h1>{escape(title)}</h1>\n{sections}\n</main>\n"
        f'<script type="application/json" id="data">{data}</script>\n<script>\n{script}</script>\n</body>\n</html>\n'
    )


def _section(points: Sequence[PointResult], number: int) -> str:
    groups = group_repeats(points)
    advice = recommend(groups)
    parts = [f"<h2>{escape(points[0].name)}</h2>"]
    if advice is not None:
        parts.append(f'<p class="advice">{escape(advice.sentence)}</p>')
    parts += [_facts(points), f'<div class="plots" data-series="{number}"></div>', _table(report_table(points))]
    parts += [f"<h3>{escape(title)}</h3>{_table(table)}" for title, table in side_tables(points)]
    return "<section>\n" + "\n".join(parts) + "\n</section>"


def _facts(points: Sequence[PointResult]) -> str:
    """What all points have in common, and where they were run."""
    first = points[0]
    fixed = {key: value for key, value in first.settings.items() if key not in (*first.axes, "seed")}
    shown = [f"{key} {show_setting(key, value)}" for key, value in fixed.items() if value not in (None, "", False, 0)]
    environment = [f"{key} {value}" for key, value in first.environment.items()]
    return f'<p class="facts">{escape(" · ".join(shown))}<br>{escape(" · ".join(environment))}</p>'


def _table(report: ReportTable) -> str:
    titles = [title.replace("_\n", "_").replace("-\n", "").replace("\n", " ").strip() for title in report.titles]
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    rows = []
    for row in report.rows:
        kind = row[report.num_heads - 1]
        tags = ["th" if index < report.num_heads else "td" for index in range(len(row))]
        cells = "".join(f"<{tag}>{escape(cell)}</{tag}>" for tag, cell in zip(tags, row, strict=True))
        rows.append(f'<tr class="{escape(kind)}">{cells}</tr>')
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        f'<ul class="notes">{notes}</ul>'
    )


def _data(points: Sequence[PointResult]) -> dict[str, object]:
    groups = group_repeats(points)
    metrics, goal = present_metrics(groups), objective(groups)
    by_allocator = memory_table(points) is not None
    return {
        "axes": list(points[0].axes),
        "objective": goal.key if goal is not None else None,
        "simulated": all(point.measured is None for point in points),
        "metrics": [
            {
                "key": metric.key,
                "title": metric.title,
                "unit": "%" if metric.is_share else metric.unit,
                "scale": 100 if metric.is_share else 1,
                "better": {True: "higher", False: "lower", None: ""}[metric.higher_is_better],
            }
            for metric in metrics
        ],
        "groups": [
            {
                "label": group.label,
                "settings": {axis: group.first.settings[axis] for axis in group.first.axes},
                "shown": {axis: show_setting(axis, group.first.settings[axis]) for axis in group.first.axes},
                "finished": group.is_finished,
                "message": next((point.message for point in group.points if point.message), ""),
                "values": {metric.key: list(group.values(metric).values()) for metric in metrics},
                "planned": _planned(group),
                "usable": judged_figures(group.first).usable_blocks,
                "timeline": msgspec.to_builtins(judged_figures(group.first).timeline),
                "unit": latencies.unit if (latencies := judged_figures(group.first).latencies) else "",
                "heat": _heat(group),
                "memory": msgspec.to_builtins(judged_figures(group.first).memory) if by_allocator else None,
                "quality": msgspec.to_builtins(judged_figures(group.first).quality),
            }
            for group in groups
        ],
    }


def _planned(group: PointGroup) -> list[dict[str, object]]:
    """Planned beside measured, where both are known."""
    if group.first.measured is None:
        return []
    return [
        {"name": name.replace("_", " "), "planned": planned, "measured": measured}
        for name in _PLANNED
        if (planned := getattr(group.first.planned, name)) is not None
        and (measured := getattr(group.first.measured, name)) is not None
    ]


def _heat(group: PointGroup) -> object:
    if not group.first.recording:
        return None
    return msgspec.to_builtins(read_heat_map(Path(group.first.recording)))
