"""`kvplan doctor`: what this machine and this installation can do."""

from dataclasses import asdict
from typing import Annotated

import typer

from kvplan.cli.options import FormatOption, JsonOption
from kvplan.cli.output import Format, chosen_format, print_csv, print_json, print_rich, print_text

KernelsOption = Annotated[
    bool,
    typer.Option(
        "--kernels",
        help="Instead compile every GPU kernel for sm_80, sm_90 and sm_100, no GPU needed, and show registers, spills "
        "and shared memory; exit 1 if one is beyond its bounds.",
    ),
]


def doctor(kernels: KernelsOption = False, output_format: FormatOption = None, as_json: JsonOption = False) -> None:
    """Say what this machine and this installation can do: GPU, driver, torch, triton, and clashing names."""
    if kernels:
        _show_kernels(chosen_format(output_format, as_json))
        return
    from kvplan.doctor import examine

    findings = examine()
    rows: list[dict[str, object]] = [
        {"check": finding.check, "status": finding.status.value, "detail": finding.detail} for finding in findings
    ]
    match chosen_format(output_format, as_json):
        case Format.JSON:
            print_json({"schema": "kvplan.doctor/1", "checks": rows})
        case Format.CSV:
            print_csv(rows)
        case Format.TABLE:
            _print_table(rows)


_SIGNS = {"ok": ("✔ ok", "green"), "absent": ("– absent", "yellow"), "clash": ("✘ clash", "red")}


def _print_table(rows: list[dict[str, object]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for no_wrap in (True, True, False):
        table.add_column(no_wrap=no_wrap)
    for row in rows:
        sign, style = _SIGNS[str(row["status"])]
        table.add_row(str(row["check"]), Text(sign, style=style), str(row["detail"]))
    print_rich(table)


def _show_kernels(form: Format) -> None:
    from kvplan.kernel_check import compile_kernels

    compiler, variants = compile_kernels()
    num_faulty = sum(bool(variant.faults) for variant in variants)
    match form:
        case Format.JSON:
            rows = [asdict(variant) for variant in variants]
            print_json({"schema": "kvplan.doctor/1", "compiler": compiler, "kernels": rows})
        case Format.CSV:
            print_csv(asdict(variant) for variant in variants)
        case Format.TABLE:
            from kvkernels.compile_table import table_text

            # As wide as it is: eleven columns that a terminal has wrapped say nothing.
            print_text(table_text(variants))
            print_text(f"{len(variants)} variants compiled by {compiler}, not run; {num_faulty} beyond their bounds")
    if num_faulty:
        raise typer.Exit(1)
