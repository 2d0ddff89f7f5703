"""One request of a trace, and how files of them are read line by line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvengine.errors import ConfigError

MAX_TOKENS = 2**24
MAX_SECONDS = 1e11
"""Three thousand years: later than any recorded time, Unix times in milliseconds included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One recorded request."""

    arrival_s: float | None = None
    """Seconds from an arbitrary origin; None if the trace has no times."""
    input_tokens: int
    output_tokens: int
    """0: it came to nothing, such as a failed request."""
    block_ids: Sequence[int] = ()
    """Numbers of the prompt's blocks, from its start; equal numbers stand for equal tokens with equal ones before."""
    session: str = ""
    """Which conversation it belongs to; empty if that is not known."""


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Read a text file line by line, numbered from 1, without line ends.

    Raises:
        ConfigError: There is no such file, or it is not UTF-8 text.
    """
    number = 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                yield number, line.rstrip("\r\n")
    except FileNotFoundError:
        raise ConfigError("no such file", where=str(path)) from None
    except UnicodeDecodeError:
        raise ConfigError("not a text file (expected UTF-8)", where=f"{path}: line {number + 1}") from None
    except OSError as error:
        raise ConfigError(error.strerror or str(error), where=str(path)) from None


def read_tokens(value: object, name: str, where: str, *, minimum: int) -> int:
    """Read a number of tokens, from text or a number.

    Args:
        value: What the trace says.
        name: Of the column or field.
        where: File and line.
        minimum: Fewer are refused.

    Raises:
        ConfigError: It is not a whole number in range.
    """
    number = _whole(value)
    if number is None or not minimum <= number <= MAX_TOKENS:
        allowed = f"a whole number from {minimum} to {MAX_TOKENS}"
        raise ConfigError(f"{name}: expected {allowed}, got {_shown(value)}", where=where)
    return number


def read_seconds(value: object, name: str, where: str) -> float:
    """Read a time in seconds, or in another unit that the caller divides by.

    Raises:
        ConfigError: It is not a number, or beyond all measure.
    """
    try:
        seconds = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        seconds = None
    if seconds is None or not abs(seconds) <= MAX_SECONDS * 1000:
        raise ConfigError(f"{name}: expected a time as a number, got {_shown(value)}", where=where)
    return seconds


def _whole(value: object) -> int | None:
    """A whole number, also one that is written as `512.0`."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return int(number) if number.is_integer() else None


def _shown(value: object) -> str:
    text = "nothing" if value is None or value == "" else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
