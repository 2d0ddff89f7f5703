"""Results as a table, JSON, CSV or Markdown text: planned beside measured."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from kvplan.results import Figures, PointResult
from kvplan.run_profile import show_setting

UNKNOWN = "–"
"""Stands in a table for what is not known; never 0."""

SCHEMA = "kvplan.results/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of figures in a table."""

    title: str
    """Two lines, so that a table fits into 80 columns."""
    show: Callable[[Figures], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """Text cells, ready to be drawn; two rows a point, planned above measured."""

    titles: list[str]
    rows: list[list[str]]
    notes: list[str]
    """Sentences that belong below it."""


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.1f} %"


def _step_ms(figures: Figures) -> str:
    if figures.step_s_median is None or figures.step_s_p90 is None:
        return UNKNOWN
    return f"{1000 * figures.step_s_median:.0f} / {1000 * figures.step_s_p90:.0f}"


COLUMNS = (
    Column(title="blocks\n ", show=lambda figures: _count(figures.num_blocks)),
    Column(title="peak\nin use", show=lambda figures: _count(figures.peak_blocks_in_use)),
    Column(title="preemp-\ntions", show=lambda figures: _count(figures.preemptions)),
    Column(title="prefix-hit\ntokens", show=lambda figures: _count(figures.prefix_hit_tokens)),
    Column(title="recomp.\ntokens", show=lambda figures: _count(figures.recomputed_tokens)),
    Column(title="tail\nwaste", show=lambda figures: _percent(figures.tail_waste_fraction)),
    Column(title="prompt\ntokens/s", show=lambda figures: _rate(figures.prompt_tokens_per_s)),
    Column(title="output\ntokens/s", show=lambda figures: _rate(figures.output_tokens_per_s)),
    Column(title="step ms\np50 / p90", show=_step_ms),
)


def report_table(points: Sequence[PointResult]) -> ReportTable:
    """The points of one sweep, or a single run, as a table with two rows a point: planned above measured.

    Args:
        points: Results of the same profile; what they vary heads the rows.
    """
    axes = points[0].axes if points else ()
    titles = [*(f"{axis}\n " for axis in axes), " \n ", *(column.title for column in COLUMNS)]
    rows = [row for point in points for row in _point_rows(point)]
    return ReportTable(titles=titles, rows=rows, notes=_notes(points))


def latest_by_name(points: Sequence[PointResult]) -> list[list[PointResult]]:
    """Split results by profile, and of each profile keep the points that were run as it reads now.

    A changed profile, workload, model or version starts a new series, and results of two series are never compared.
    """
    newest: dict[str, PointResult] = {}
    for point in points:
        if point.name not in newest or point.finished_unix_s >= newest[point.name].finished_unix_s:
            newest[point.name] = point
    return [
        _ordered([point for point in points if (point.name, point.series) == (name, last.series)])
        for name, last in newest.items()
    ]


def report_json(points: Sequence[PointResult]) -> str:
    """All figures of all points, sizes in bytes and times in seconds; null is not known."""
    return json.dumps({"schema": SCHEMA, "points": [_record(point) for point in points]}, indent=2)


def report_csv(points: Sequence[PointResult]) -> str:
    """One line a point with the values of `report_json`; an empty cell is not known."""
    text = io.StringIO()
    rows = [_flat(_record(point)) for point in points]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def report_markdown(points: Sequence[PointResult]) -> str:
    """The table of `report_table` as Markdown, with its notes below."""
    table = report_table(points)
    lines = [[title.replace("-\n", "").replace("\n", " ").strip() for title in table.titles]]
    lines.append(["---" if column <= len(points[0].axes) else "---:" for column in range(len(table.titles))])
    lines += [[cell.replace("|", "\\|") for cell in row] for row in table.rows]
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([*rows, "", *(f"- {note}" for note in table.notes), ""])


def _point_rows(point: PointResult) -> list[list[str]]:
    heads = [show_setting(axis, point.settings[axis]) for axis in point.axes]
    rows = [[*heads, "planned", *(column.show(point.planned) for column in COLUMNS)]]
    if point.measured is not None:
        rows.append([*("" for _ in heads), "measured", *(column.show(point.measured) for column in COLUMNS)])
    return rows


def _notes(points: Sequence[PointResult]) -> list[str]:
    notes = [
        "planned: blocks from the budget; all else simulated: the same scheduler on the same requests without a model,"
        " each output at its full length"
    ]
    for point in points:
        label = f"{point.label}: " if point.label else ""
        if point.outcome != "finished":
            verdict = "does not fit" if point.outcome == "does_not_fit" else "did not finish"
            notes.append(f"{label}{verdict}: {point.message}")
        elif point.measured is not None and point.measured.output_tokens != point.planned.output_tokens:
            ended = f"{point.measured.output_tokens:,} of {point.planned.output_tokens:,}"
            notes.append(f"{label}outputs ended early at end-of-sequence tokens: {ended} planned tokens")
    if len({json.dumps(point.environment, sort_keys=True) for point in points if point.measured is not None}) > 1:
        notes.append("the points were measured on different devices or versions; do not compare their times")
    return notes


def _ordered(points: list[PointResult]) -> list[PointResult]:
    """By the values that vary, numbers as numbers."""

    def key(point: PointResult) -> list[tuple[bool, float, str]]:
        values = [point.settings[axis] for axis in point.axes]
        return [
            (False, float(value), "") if isinstance(value, int | float) else (True, 0.0, str(value)) for value in values
        ]

    return sorted(points, key=key)


def _record(point: PointResult) -> dict[str, object]:
    record: dict[str, object] = msgspec.to_builtins(point)
    del record["finished_unix_s"]
    record["label"] = point.label
    record["finished_at"] = datetime.fromtimestamp(point.finished_unix_s, UTC).isoformat(timespec="seconds")
    return record


def _flat(record: dict[str, object]) -> dict[str, object]:
    """Join the keys of inner mappings: `planned_preemptions`; settings and environment keep their own names."""
    flat: dict[str, object] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            prefix = "" if key in ("settings", "environment") else f"{key}_"
            flat |= {f"{prefix}{inner}": _cell(item) for inner, item in value.items()}
        elif key != "measured":  # nothing was measured: no columns of its own
            flat[key] = _cell(value)
    return flat


def _cell(value: object) -> object:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else value
