"""The budget document on a terminal, as JSON and as CSV. It shows values and works nothing out but shares and bars."""

from typing import Any

from kvplan.cli.output import Format, flat_rows, print_csv, print_json


def show_budget(document: dict[str, Any], output_format: Format) -> None:
    """Print a document of schema `kvplan.budget/1`."""
    match output_format:
        case Format.JSON:
            print_json(document)
        case Format.CSV:
            print_csv({"key": key, "value": value} for key, value in flat_rows(document))
        case Format.TABLE:
            from kvplan.cli.budget_table import print_budget

            print_budget(document)
