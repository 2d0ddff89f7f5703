"""Results and plans of runs, drawn on stdout in the form that was asked for."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from kvengine.units import format_bytes
from kvplan.cli.output import Format, print_csv, print_json, print_rich, stdout_console
from kvplan.prepare import PreparedPoint
from kvplan.report import report_document, report_rows, report_table
from kvplan.results import PointResult
from kvplan.run_profile import show_setting

_WIDEST = 10_000
"""Columns that no table reaches."""


def print_results(points: Sequence[PointResult], output_format: Format, *, title: str) -> None:
    """Print the points of one sweep, or one run: planned beside measured."""
    if output_format is Format.JSON:
        print_json(report_document(points))
    elif output_format is Format.CSV:
        print_csv(report_rows(points))
    else:
        _print_result_table(points, title)


def print_plans(points: Sequence[tuple[PreparedPoint, bool]], output_format: Format, *, title: str) -> None:
    """Print what would be run: each point with its pool, and whether it was finished before."""
    records = [_plan_record(prepared, is_kept) for prepared, is_kept in points]
    if output_format is Format.JSON:
        print_json({"schema": "kvplan.points/1", "points": records})
    elif output_format is Format.CSV:
        print_csv(records)
    else:
        _print_whole(_plan_table(points, title))


def _print_result_table(points: Sequence[PointResult], title: str) -> None:
    report = report_table(points)
    table = _empty_table(title)
    for number, heading in enumerate(report.titles):
        table.add_column(heading, justify="left" if number < report.num_heads else "right", no_wrap=True)
    for row in report.rows:
        table.add_row(*row, style="bold" if row[report.num_heads - 1] == "measured" else "")
    _print_whole(table)
    print_rich("", *(Text(note, style="dim") for note in report.notes))


def _empty_table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)


def _print_whole(table: Table) -> None:
    """Print a table in its own width: on a narrower terminal lines wrap, but no figure is cut off."""
    console = stdout_console()
    unbounded = console.options.update(width=_WIDEST)
    console.width = max(console.width, Measurement.get(console, unbounded, table).maximum)
    console.print(table)


def _plan_record(prepared: PreparedPoint, is_kept: bool) -> dict[str, object]:
    config = prepared.config
    return {
        "label": prepared.point.label,
        "block_size": config.block_size,
        "num_blocks": config.num_blocks,
        "usable_blocks": max(config.num_blocks - 1, 0),
        "token_slots": max(config.num_blocks - 1, 0) * config.block_size,
        "bytes_per_block": config.kv_cache.block_bytes,
        "kv_cache_bytes": config.num_blocks * config.kv_cache.block_bytes,
        "max_model_len": config.scheduler.max_model_len,
        "is_kept": is_kept,
    }


def _plan_table(points: Sequence[tuple[PreparedPoint, bool]], title: str) -> Table:
    axes = points[0][0].point.axes
    table = _empty_table(title)
    for heading in (*axes, "blocks", "usable", "token slots", "a block", "the pool"):
        table.add_column(heading, justify="right")
    table.add_column("state")
    for prepared, is_kept in points:
        settings, record = prepared.point.profile.settings(), _plan_record(prepared, is_kept)
        table.add_row(
            *(show_setting(axis, settings[axis]) for axis in axes),
            *(f"{record[key]:,}" for key in ("num_blocks", "usable_blocks", "token_slots")),
            *(format_bytes(int(str(record[key]))) for key in ("bytes_per_block", "kv_cache_bytes")),
            "finished before" if is_kept else "to run",
        )
    return table
