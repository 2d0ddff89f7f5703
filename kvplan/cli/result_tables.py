"""Results and plans of runs, drawn on stdout in the form that was asked for."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from kvengine.units import format_bytes
from kvplan.budget_report import part_record
from kvplan.cli.budget_table import memory_section
from kvplan.cli.output import Format, print_csv, print_json, print_rich, stdout_console
from kvplan.report import UNKNOWN, ReportTable, report_document, report_rows, report_table, show_duration
from kvplan.results import PointResult
from kvplan.run_profile import show_setting
from kvplan.side_tables import side_tables
from kvplan.time_estimate import PlannedPoint

if TYPE_CHECKING:
    from rich.console import RenderableType

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


def print_plans(plans: Sequence[PlannedPoint], output_format: Format, *, title: str) -> None:
    """Print what would be run: each point with its pool, what it asks for, and how long it may take."""
    records = [_plan_record(plan) for plan in plans]
    if output_format is Format.JSON:
        points = [record | _plan_parts(plan) for record, plan in zip(records, plans, strict=True)]
        print_json({"schema": "kvplan.points/1", "points": points, "estimate_s": _total_s(plans)})
    elif output_format is Format.CSV:
        print_csv(records)
    else:
        print_whole(_plan_table(plans, title))
        print_rich(*_cards(plans), "", Text(_plan_note(plans), style="dim"))


def _print_result_table(points: Sequence[PointResult], title: str) -> None:
    _print_table(report_table(points), title)
    for name, table in side_tables(points):
        print_rich("")
        _print_table(table, name)


def _print_table(report: ReportTable, title: str) -> None:
    table = empty_table(title)
    for number, heading in enumerate(report.titles):
        table.add_column(heading, justify="left" if number < report.num_heads else "right", no_wrap=True)
    for row in report.rows:
        table.add_row(*row, style="bold" if row[report.num_heads - 1] == "measured" else "")
    print_whole(table)
    print_rich("", *(Text(note, style="dim") for note in report.notes))


def empty_table(title: str) -> Table:
    """A table in the style of all results."""
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)


def print_whole(table: Table) -> None:
    """Print a table in its own width: on a narrower terminal lines wrap, but no figure is cut off."""
    console = stdout_console()
    unbounded = console.options.update(width=_WIDEST)
    console.width = max(console.width, Measurement.get(console, unbounded, table).maximum)
    print_rich(table, console=console)


def _plan_record(plan: PlannedPoint) -> dict[str, object]:
    prepared, demand = plan.prepared, plan.demand
    config = prepared.config
    return {
        "label": prepared.point.label,
        "seed": prepared.point.profile.seed,
        "block_size": config.block_size,
        "num_blocks": config.num_blocks,
        "usable_blocks": max(config.num_blocks - 1, 0),
        "token_slots": max(config.num_blocks - 1, 0) * config.block_size,
        "bytes_per_block": config.kv_cache.block_bytes,
        "kv_cache_bytes": config.num_blocks * config.kv_cache.block_bytes,
        "max_model_len": config.scheduler.max_model_len,
        "num_requests": demand.num_requests if demand else None,
        "prompt_tokens": demand.prompt_tokens if demand else None,
        "output_tokens": demand.output_tokens if demand else None,
        "estimate_s": plan.estimate_s,
        "is_kept": plan.is_kept,
    }


def _plan_parts(plan: PlannedPoint) -> dict[str, object]:
    """What a pool is made of, beside its figures: groups of layers, and the parts of the card that sizes it."""
    config, budget = plan.prepared.config, plan.prepared.budget
    layers = config.group_layers or ((),)
    return {
        "groups": [
            {"kind": group.name, "window": getattr(group, "window", None), "layers": len(indices) or None}
            for group, indices in zip(config.kv_groups, layers, strict=True)
        ],
        "parts": None if budget is None else [part_record(part) for part in budget.parts],
    }


def _cards(plans: Sequence[PlannedPoint]) -> Iterator["RenderableType"]:
    """The parts of each card that sizes a pool; points mostly share one."""
    budgets = {plan.prepared.budget: plan for plan in plans}
    for budget, plan in budgets.items():
        if budget is None:
            continue
        card = str(plan.prepared.point.profile.gpu)
        name = f"{card}; {plan.prepared.point.label}" if len(budgets) > 1 else card
        yield from memory_section([part_record(part) for part in budget.parts], budget.total_bytes, card=name)
        yield Text("what is neither weights nor cache is taken from vLLM's memory model, without graphs", style="dim")


def _plan_table(plans: Sequence[PlannedPoint], title: str) -> Table:
    axes = plans[0].prepared.point.axes
    is_repeated = len({plan.prepared.point.profile.seed for plan in plans}) > 1 and "seed" not in axes
    table = empty_table(title)
    for heading in (*axes, *(["seed"] if is_repeated else []), "blocks", "token slots", "a block", "the pool"):
        table.add_column(heading, justify="right")
    for heading in ("requests", "tokens", "about"):
        table.add_column(heading, justify="right")
    table.add_column("state")
    for plan in plans:
        settings, record = plan.prepared.point.settings, _plan_record(plan)
        demand = plan.demand
        table.add_row(
            *(show_setting(axis, settings[axis]) for axis in axes),
            *([str(record["seed"])] if is_repeated else []),
            *(f"{record[key]:,}" for key in ("num_blocks", "token_slots")),
            *(format_bytes(int(str(record[key]))) for key in ("bytes_per_block", "kv_cache_bytes")),
            f"{demand.num_requests:,}" if demand else UNKNOWN,
            f"{demand.prompt_tokens + demand.output_tokens:,}" if demand else UNKNOWN,
            UNKNOWN if plan.estimate_s is None else show_duration(plan.estimate_s),
            "finished before" if plan.is_kept else "to run",
        )
    return table


def _plan_note(plans: Sequence[PlannedPoint]) -> str:
    to_run = [plan for plan in plans if not plan.is_kept]
    total_s = _total_s(plans)
    if not to_run:
        return f"{len(plans)} points, all finished before"
    about = (
        "how long is known once the first has run" if total_s is None else f"about {show_duration(total_s)}, estimated"
    )
    return f"{len(to_run)} of {len(plans)} points to run: {about}"


def _total_s(plans: Sequence[PlannedPoint]) -> float | None:
    """Of the points that are to be run; None if any of them cannot be told."""
    estimates = [plan.estimate_s for plan in plans if not plan.is_kept]
    known = [estimate for estimate in estimates if estimate is not None]
    return sum(known) if len(known) == len(estimates) else None
