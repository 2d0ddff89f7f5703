"""What the tables of a budget have in common: tables without lines, short sizes, counted words."""

from typing import TYPE_CHECKING

from kvengine.units import format_bytes
from kvplan.cli.output import stdout_width

if TYPE_CHECKING:
    from rich.table import Table


def plural(count: int, word: str) -> str:
    """Count a word: `1 request`, `1,200 requests`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def short_size(size_bytes: int) -> str:
    """Print a size with one decimal at most: `2 MiB`, `32.1 MiB`."""
    number, _, unit = format_bytes(size_bytes).partition(" ")
    return f"{float(number.replace(',', '')):.1f}".removesuffix(".0") + f" {unit}"


def plain_table(*columns: str) -> "Table":
    """Return a table without lines. A column is its heading; `>` sets it to the right, `wrap` lets it wrap."""
    from rich.table import Table

    headings = [column.removeprefix(">").removeprefix("wrap").strip() for column in columns]
    table = Table(
        header_style="dim",
        show_header=any(headings),
        box=None,
        padding=(0, 2 if stdout_width() >= 100 else 1, 0, 0),
        pad_edge=False,
    )
    for column, heading in zip(columns, headings, strict=True):
        table.add_column(heading, justify="right" if column.startswith(">") else "left", no_wrap=column != "wrap")
    return table
