"""The only place that prints: results on stdout, everything else on stderr."""

import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING

from kvengine.errors import ConfigError
from kvengine.plain_text import one_line, plain, plain_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


class Format(StrEnum):
    """Forms of a result; they agree value for value."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def chosen_format(output_format: Format | None, as_json: bool) -> Format:
    """Resolve `--format` and its short form `--json`; a table where neither was typed.

    Raises:
        ConfigError: They contradict each other.
    """
    refuse_two_forms(output_format, as_json)
    return Format.JSON if as_json else output_format or Format.TABLE


def refuse_two_forms(output_format: StrEnum | None, as_json: bool) -> None:
    """Refuse `--json` beside another `--format`.

    Raises:
        ConfigError: They contradict each other.
    """
    if as_json and output_format not in (None, Format.JSON.value):
        raise ConfigError(f"--json and --format {output_format} contradict each other", hint="give one of them")


def print_json(document: Mapping[str, object]) -> None:
    """Print one JSON document; equal documents are equal byte for byte."""
    sys.stdout.write(plain_json(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)) + "\n")


def print_csv(rows: Iterable[Mapping[str, object]]) -> None:
    """Print rows under a header of their keys, in order of first appearance; what is missing stays empty."""
    import csv

    listed = list(rows)
    columns = list(dict.fromkeys(key for row in listed for key in row))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for row in listed:
        writer.writerow([csv_cell(row.get(column)) for column in columns])


def csv_cell(value: object) -> str:
    """Write a value as JSON does, text without quotes and nothing for None; text that steers no terminal."""
    if value is None:
        return ""
    return plain(value) if isinstance(value, str) else json.dumps(value)


def flat_rows(document: object, path: str = "") -> list[tuple[str, object]]:
    """Flatten a document to `(path, value)`: `capacity.num_blocks`, `parts.0.name`."""
    if isinstance(document, Mapping):
        return [row for key, value in document.items() for row in flat_rows(value, f"{path}.{key}" if path else key)]
    if isinstance(document, list):
        return [row for index, value in enumerate(document) for row in flat_rows(value, f"{path}.{index}")]
    return [(path, document)]


def print_text(text: str) -> None:
    """Print text as it is, but for what would steer a terminal."""
    sys.stdout.write(plain(text if text.endswith("\n") else f"{text}\n"))


def print_rich(*renderables: "RenderableType", console: "Console | None" = None) -> None:
    """Print tables and text, coloured on a terminal and plain elsewhere, on a console of stdout."""
    from rich.segment import Segment, Segments

    console = console or stdout_console()
    with console.capture() as capture:
        for renderable in renderables:
            rendered = console.render_lines(renderable, pad=False, new_lines=True)
            segments = (segment for line in rendered for segment in line)
            console.print(Segments(Segment(plain(text), style, control) for text, style, control in segments), end="")
    # Columns are padded to their width; away from a terminal the blanks at line ends help nobody.
    lines = capture.get().split("\n")
    sys.stdout.write("\n".join(lines if console.is_terminal else [line.rstrip() for line in lines]))


def stdout_console() -> "Console":
    """Return a console on stdout that neither guesses at numbers nor eats square brackets."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def stdout_width() -> int:
    """Return the columns that a table on stdout may take."""
    return stdout_console().width


def stderr_console() -> "Console":
    """Return a console on stderr, for progress."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def print_note(text: str) -> None:
    """Tell something beside the result, on stderr; without a stderr nobody is told."""
    if sys.stderr is None:
        return
    with suppress(OSError):
        sys.stderr.write(f"note: {one_line(text)}\n")
