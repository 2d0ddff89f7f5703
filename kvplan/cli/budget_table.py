"""The budget document on a terminal."""

from typing import Any

from kvplan.cli.output import print_rich


def print_budget(document: dict[str, Any]) -> None:
    """Print it."""
    print_rich(str(document["verdict"]) + ": " + document["reason"])
