"""Options that several commands take, and what turns their text into values with one-line errors."""

from collections.abc import Mapping
from typing import Annotated, TypeVar

import typer

from kvengine.errors import ConfigError
from kvengine.units import MIB, parse_bytes
from kvplan.cli.output import Format

FormatOption = Annotated[
    Format | None, typer.Option("--format", help="Form of the result on stdout.  [default: table]", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="The same as --format json.")]

_MAX_COUNT = 10**9
_MAX_SIZE_BYTES = 2**60
_Choice = TypeVar("_Choice")


def read_size(option: str, text: str | None) -> int | None:
    """Read `52.32GiB`, `80GB` or a number of bytes; fewer than a MiB of them lack their unit."""
    if text is None:
        return None
    is_long = len(text) > 40
    size_bytes = _MAX_SIZE_BYTES + 1 if is_long else parse_bytes(text, where=option, least_without_unit=MIB)
    if size_bytes > _MAX_SIZE_BYTES:
        raise ConfigError(f"expected a size of at most 1 EiB, got {text[:40]!r}", where=option)
    return size_bytes


def read_count(option: str, text: str | None, *, minimum: int = 1) -> int | None:
    """Read a whole number of at least `minimum`; `32_768` and `32,768` are not whole numbers here."""
    if text is None:
        return None
    digits = text.strip()
    is_whole = digits.isascii() and digits.isdigit()
    if is_whole and (len(digits) > 13 or int(digits) > _MAX_COUNT):
        raise ConfigError(f"expected at most {_MAX_COUNT:,}, got {text[:40]!r}", where=option)
    value = int(digits) if is_whole else -1
    if value < minimum:
        raise ConfigError(f"expected a whole number >= {minimum}, got {text[:40]!r}", where=option)
    return value


def read_counts(option: str, text: str | None) -> tuple[int, ...]:
    """Read whole numbers >= 1 between commas: `17,31,32`."""
    if text is None:
        return ()
    entries = text.split(",")
    if len(entries) > 100_000:
        raise ConfigError(f"{len(entries):,} entries are too many", where=option)
    return tuple(count for entry in entries if (count := read_count(option, entry)) is not None)


def read_fraction(option: str, text: str | None) -> float | None:
    """Read a number above 0 and at most 1."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise ConfigError(f"expected a number above 0 and at most 1, got {text[:40]!r}", where=option)
    return value


def read_choice(option: str, text: str, choices: Mapping[str, _Choice]) -> _Choice:
    """Read one of the names of `choices`."""
    if text not in choices:
        from kvplan.loading import did_you_mean

        suggestion = did_you_mean(text, choices)
        raise ConfigError(f"expected one of {', '.join(choices)}, got {text[:40]!r}{suggestion}", where=option)
    return choices[text]
