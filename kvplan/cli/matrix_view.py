"""A table of plans on a terminal, as JSON and as CSV."""

import math
from typing import Any

from kvengine.units import format_bytes
from kvplan.cli.output import Format, print_csv, print_json, print_note, print_rich, stdout_width

_VERDICTS = {"fits": "✔ fits", "marginal": "≈ marginal", "does_not_fit": "✘ does not fit"}
_SHORT_VERDICTS = {"fits": "✔ fits", "marginal": "≈ maybe", "does_not_fit": "✘ no"}
_WIDE = 110


def show_matrix(document: dict[str, Any], output_format: Format) -> None:
    """Print a document of schema `kvplan.budget-matrix/1`; what was refused goes to stderr in table and CSV."""
    if output_format is Format.JSON:
        print_json(document)
        return
    if output_format is Format.CSV:
        print_csv(document["plans"])
    else:
        _print_table(document)
    for entry in document["refused"]:
        chosen = " ".join(f"{axis}={entry[axis]}" for axis in document["axes"])
        print_note(f"{chosen}: {entry['reason']}")


def _print_table(document: dict[str, Any]) -> None:
    """Show a row for each plan; on a narrow terminal with short verdicts, and names of options over several lines."""
    from rich.table import Table

    wide = stdout_width() >= _WIDE
    verdicts = _VERDICTS if wide else _SHORT_VERDICTS
    table = Table(header_style="dim", box=None, padding=(0, 2 if wide else 1, 0, 0), pad_edge=False)
    for axis in document["axes"]:
        table.add_column(axis if wide else axis.replace("-", "-\n"), no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for heading in ("KV cache", "blocks", "tokens", "requests", "longest"):
        table.add_column(heading, justify="right", no_wrap=True)
    asked = any(plan["needed_utilization"] is not None for plan in document["plans"])
    if asked:
        table.add_column("needs", justify="right", no_wrap=True)
    for plan in document["plans"]:
        table.add_row(
            *(plan[axis] for axis in document["axes"]),
            verdicts[plan["verdict"]],
            format_bytes(plan["available_kv_bytes"]),
            f"{plan['num_blocks']:,}",
            f"{plan['kv_cache_tokens']:,}",
            f"{plan['max_concurrency']:,.2f}" if plan["requests_fit"] is None else f"{plan['requests_fit']:,}",
            f"{plan['estimated_max_model_len']:,}",
            *([_share(plan["needed_utilization"])] if asked else []),
        )
    print_rich(table)


def _share(needed: float | None) -> str:
    """Print the share of the card that is enough, rounded up."""
    if needed is None:
        return "–"
    return f"{math.ceil(needed * 1000) / 1000:.1%}" if needed <= 1 else "> 100%"
