"""`kvplan doctor`: what this machine and this installation can do."""

from kvplan.cli.options import FormatOption, JsonOption
from kvplan.cli.output import Format, chosen_format, print_csv, print_json, print_rich


def doctor(output_format: FormatOption = Format.TABLE, as_json: JsonOption = False) -> None:
    """Say what this machine and this installation can do: GPU, driver, torch, triton, and clashing names."""
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
