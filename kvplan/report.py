"""Results as a table, JSON, CSV or Markdown text: planned beside measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

import msgspec

from kvengine.units import format_bytes
from kvplan.figures import Figures, combined
from kvplan.groups import PointGroup, group_repeats
from kvplan.recommend import recommend
from kvplan.results import PointResult
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
    is_timed: bool = False
    """Only a run on a model has it."""
    is_rare: bool = False
    """Shown only where some point has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """Text cells, ready to be drawn; two rows a point, planned above measured."""

    titles: list[str]
    rows: list[list[str]]
    num_heads: int
    """How many columns, from the left, name the row."""
    notes: list[str]
    """Sentences that belong below it."""


def show_duration(seconds: float) -> str:
    """A time for people: `0.4 s`, `12 s`, `3 min`, `2.5 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def show_count(value: int | None) -> str:
    """A number for people: `1,024`."""
    return UNKNOWN if value is None else f"{value:,}"


def _rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def show_percent(value: float | None) -> str:
    """A share for people: `12.3 %`."""
    return UNKNOWN if value is None else f"{100 * value:.1f} %"


def _step_ms(figures: Figures) -> str:
    if figures.step_s_median is None or figures.step_s_p90 is None:
        return UNKNOWN
    return f"{1000 * figures.step_s_median:.0f}/{1000 * figures.step_s_p90:.0f}"


COLUMNS = (
    Column(title="\nblocks", show=lambda figures: show_count(figures.num_blocks)),
    Column(title="peak\nin use", show=lambda figures: show_count(figures.peak_blocks_in_use)),
    Column(title="pre-\nempted", show=lambda figures: show_count(figures.preemptions)),
    Column(title="prefix\nhits", show=lambda figures: show_count(figures.prefix_hit_tokens)),
    Column(title="recom-\nputed", show=lambda figures: show_count(figures.recomputed_tokens)),
    Column(title="swapped\nin", show=lambda figures: show_count(figures.swapped_in_tokens), is_rare=True),
    Column(title="peak\non host", show=lambda figures: show_count(figures.peak_host_blocks), is_rare=True),
    Column(title="tail\nwaste", show=lambda figures: show_percent(figures.tail_waste_fraction)),
    Column(title="prompt\ntok/s", show=lambda figures: _rate(figures.prompt_tokens_per_s), is_timed=True),
    Column(title="output\ntok/s", show=lambda figures: _rate(figures.output_tokens_per_s), is_timed=True),
    Column(title="step ms\np50/p90", show=_step_ms, is_timed=True),
)

_FIRST_HITS = Column(title="first\nhits", show=lambda figures: show_count(figures.first_prefix_hit_tokens))
"""In place of all prefix hits where a server does not count those of resumptions."""

PLANNED_NOTE = (
    "planned: the blocks from the budget, the rest simulated: the same scheduler on the same requests, without a model"
    " and with every output at its full length"
)
UNITS_NOTE = (
    "prefix hits, those of resumptions included (first hits: without them), recomputed and swapped in, in tokens; peak"
    " on host: most host blocks in use at a time; tail waste: unused slots in the last blocks of running requests, or"
    " in what is reserved for them, as a share of all slots in use, over the steps; prompt tok/s counts whole prompts,"
    " also what was found in the prefix cache"
)


def report_table(points: Sequence[PointResult]) -> ReportTable:
    """The points of one sweep, or a single run, as a table with two rows a point: planned above measured.

    Args:
        points: Results of the same profile; what they vary heads the rows. Times have no columns if none has any.
    """
    axes = points[0].axes
    is_timed = any(point.measured is not None for point in points)
    columns = [column for column in _columns(points) if (is_timed or not column.is_timed) and _is_known(column, points)]
    groups = group_repeats(points)
    return ReportTable(
        titles=[*map(two_lines, axes), "", *(column.title for column in columns)],
        rows=[row for group in groups for row in _group_rows(group, columns)],
        num_heads=len(axes) + 1,
        notes=[*_notes(points), *_repeat_notes(groups)],
    )


def _columns(points: Sequence[PointResult]) -> list[Column]:
    """All columns; hits are counted in the way that every point has them."""
    measured = [point.measured for point in points if point.measured is not None]
    tells_first = any(one.prefix_hit_tokens is None and one.first_prefix_hit_tokens is not None for one in measured)
    return [_FIRST_HITS if tells_first and column.title == "prefix\nhits" else column for column in COLUMNS]


def _is_known(column: Column, points: Sequence[PointResult]) -> bool:
    """Whether a column that is rarely of use has anything to show."""
    figures = [one for point in points for one in (point.planned, point.measured) if one is not None]
    return not column.is_rare or any(column.show(one) != UNKNOWN for one in figures)


def split_series(points: Sequence[PointResult]) -> list[list[PointResult]]:
    """Split results into what may be compared, each part in the order of its values.

    A changed profile, workload, model or version starts a new series, and results of two series are never compared.
    """
    series: dict[str, list[PointResult]] = {}
    for point in points:
        series.setdefault(point.series, []).append(point)
    return [_ordered(members) for members in series.values()]


def latest_series(points: Sequence[PointResult]) -> list[list[PointResult]]:
    """Of each profile the series that was run last: the points that were run as the profile reads now."""
    latest: dict[str, list[PointResult]] = {}
    for members in split_series(points):
        name = members[0].name
        if name not in latest or _last_finish(members) >= _last_finish(latest[name]):
            latest[name] = members
    return list(latest.values())


def series_title(points: Sequence[PointResult], series: Sequence[Sequence[PointResult]]) -> str:
    """A profile's name; where it was run in several forms, with the time at which this one was run last."""
    name = points[0].name
    if sum(members[0].name == name for members in series) == 1:
        return name
    ended = datetime.fromtimestamp(_last_finish(points), UTC)
    return f"{name}, run until {ended:%Y-%m-%d %H:%M:%S} UTC"


def report_document(points: Sequence[PointResult]) -> dict[str, object]:
    """All figures of all points for JSON, sizes in bytes and times in seconds; None is not known."""
    return {"schema": SCHEMA, "points": [_record(point) for point in points]}


def report_rows(points: Sequence[PointResult]) -> list[dict[str, object]]:
    """The values of `report_document` with one row a point: `planned_preemptions`, `measured_preemptions`."""
    return [_flat(_record(point)) for point in points]


def report_markdown(points: Sequence[PointResult]) -> str:
    """The table of `report_table` as Markdown, with its notes below."""
    return table_markdown(report_table(points))


def table_markdown(table: ReportTable) -> str:
    """A table as Markdown, with its notes below."""
    lines = [[title.replace("_\n", "_").replace("-\n", "").replace("\n", " ").strip() for title in table.titles]]
    lines.append(["---" if column < table.num_heads else "---:" for column in range(len(table.titles))])
    lines += [[cell.replace("|", "\\|") for cell in row] for row in table.rows]
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([*rows, "", *(f"- {note}" for note in table.notes), ""])


def two_lines(key: str) -> str:
    """Break a key at the underscore nearest to its middle: `max_num_` and `batched_tokens`."""
    breaks = [index + 1 for index, letter in enumerate(key) if letter == "_"]
    if not breaks:
        return f"\n{key}"
    middle = min(breaks, key=lambda index: abs(index - len(key) / 2))
    return f"{key[:middle]}\n{key[middle:]}"


def _group_rows(group: PointGroup, columns: Sequence[Column]) -> list[list[str]]:
    """Planned above measured; of repeats the medians, and below them how far they reach."""
    point = group.first
    heads = [show_setting(axis, point.settings[axis]) for axis in point.axes]
    source = "simulated" if point.settings.get("target") == "simulated" else "planned"
    planned = [repeat.planned for repeat in group.points]
    measured = [repeat.measured for repeat in group.points if repeat.measured is not None]
    rows = [[*heads, source, *_cells(planned, columns, median)]]
    blanks = ["" for _ in heads]
    if measured:
        rows.append([*blanks, "measured", *_cells(measured, columns, median)])
    if len(group.points) > 1:
        low, high = (_cells(measured or planned, columns, choose) for choose in (min, max))
        ends = [f"{one}–{other}" if one != other else "" for one, other in zip(low, high, strict=True)]
        rows.append([*blanks, "spread", *ends])
    return rows


def _cells(figures: Sequence[Figures], columns: Sequence[Column], choose: Callable[[list[float]], float]) -> list[str]:
    one = combined(figures, choose)
    return [column.show(one) for column in columns]


def _repeat_notes(groups: Sequence[PointGroup]) -> list[str]:
    notes = []
    if any(len(group.points) > 1 for group in groups):
        notes.append("of repeats: medians, and as spread the smallest and largest value")
    advice = recommend(groups)
    return notes if advice is None else [*notes, advice.sentence]


def _notes(points: Sequence[PointResult]) -> list[str]:
    notes = [_facts(points), PLANNED_NOTE, UNITS_NOTE]
    for point in points:
        label = f"{point.label}: " if point.label else ""
        if point.outcome != "finished":
            verdict = "does not fit" if point.outcome == "does_not_fit" else "did not finish"
            notes.append(f"{label}{verdict}: {point.message}{f' ({point.hint})' if point.hint else ''}")
        elif point.measured is not None and point.measured.output_tokens != point.planned.output_tokens:
            ended = f"{point.measured.output_tokens:,} of {point.planned.output_tokens:,}"
            notes.append(f"{label}outputs ended early at end-of-sequence tokens: {ended} planned tokens")
    notes += _memory_notes(points)
    if len({_computed_on(point) for point in points if point.measured is not None}) > 1:
        notes.append("the points were measured on different devices or versions; do not compare their times")
    return notes


_FACTS = ("target", "model", "kv_cache_dtype", "available_kv", "num_blocks", "tensor_parallel", "workload")
"""Keys without which a table does not say what it is about."""


def _facts(points: Sequence[PointResult]) -> str:
    """What all points have in common: model, KV type, pool, workload, and where they were measured."""
    first = points[0]
    settings = {key: value for key, value in first.settings.items() if key not in first.axes}
    shown = [f"{key} {show_setting(key, settings[key])}" for key in _FACTS if settings.get(key) not in (None, 1)]
    devices = sorted({point.environment["device"] for point in points if "device" in point.environment})
    return "; ".join([*shown, *(f"measured on {device}" for device in devices)])


def _memory_notes(points: Sequence[PointResult]) -> list[str]:
    """What the device really gave, beside what was planned; once for all points that have it in common."""
    notes: dict[tuple[str, str], list[str]] = {}
    for point in points:
        planned, measured = point.planned, point.measured
        if measured is None or measured.weight_bytes is None or measured.kv_cache_bytes is None:
            continue
        weights = _planned_and_held(planned.weight_bytes, measured.weight_bytes)
        pool = _planned_and_held(planned.kv_cache_bytes, measured.kv_cache_bytes)
        labels = notes.setdefault((weights, pool), [])
        if point.label not in labels:
            labels.append(point.label)
    differs = len(notes) > 1
    return [
        f"memory{' of ' + ', '.join(labels) if differs and any(labels) else ''}: weights {weights}; blocks {pool}"
        for (weights, pool), labels in notes.items()
    ]


def _planned_and_held(planned: int | None, held: int) -> str:
    """`as planned`, where it is so: the sizes of pools that differ are in the table as blocks."""
    if planned == held:
        return "as planned"
    return f"{UNKNOWN if planned is None else format_bytes(planned)} planned, {format_bytes(held)} held"


_COMPUTED_ON = ("pagedkv", "device", "torch", "threads", "dtype", "attention", "server")
"""Keys of an environment that decide whether times may be compared: not the port of a server, or what its log says."""


def _computed_on(point: PointResult) -> tuple[str | None, ...]:
    return tuple(point.environment.get(key) for key in _COMPUTED_ON)


def _last_finish(points: Sequence[PointResult]) -> float:
    return max(point.finished_unix_s for point in points)


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
    """Join the keys of inner mappings; those of settings and environment stand for themselves, lists stay out."""
    flat: dict[str, object] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            prefix = "" if key in ("settings", "environment") else f"{key}_"
            flat |= {f"{prefix}{inner}": item for inner, item in _flat(value).items()}
        elif isinstance(value, tuple):
            flat[key] = " ".join(map(str, value))
        elif not isinstance(value, list) and not (key in _GROUPS and value is None):
            flat[key] = value
    return flat


_GROUPS = ("measured", "latencies", "timeline", "memory", "gpus", "quality", "ttft", "itl", "tpot", "e2e")
"""Mappings that a run may be without: they then have no columns of their own."""
