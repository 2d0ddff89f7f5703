"""What one comparison with an outside answer came to."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class OracleInputError(Exception):
    """A file of known answers that cannot be read: one line that says which and why."""


class Mismatch(NamedTuple):
    """A value that differs from the known answer."""

    what: str
    expected: object
    got: object

    def line(self) -> str:
        return f"{self.what}: expected {short(self.expected)}, got {short(self.got)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One case: passed when nothing differs and nothing kept it from being run."""

    case: str
    mismatches: tuple[Mismatch, ...] = ()
    unsupported: str = ""
    """What the case needs and the product does not have; such a case has failed."""
    note: str = ""
    """What is said of the case whether it passed or not."""
    apart: str = ""
    """Why the case alone proves little, in a word; such cases are counted by themselves."""

    @property
    def passed(self) -> bool:
        return not self.mismatches and not self.unsupported

    def lines(self) -> Iterable[str]:
        if self.note:
            yield self.note
        if self.unsupported:
            yield f"FAILED {self.case}: {self.unsupported}"
        for mismatch in self.mismatches[:MAX_MISMATCHES_SHOWN]:
            yield f"FAILED {self.case}: {mismatch.line()}"
        hidden = len(self.mismatches) - MAX_MISMATCHES_SHOWN
        if hidden > 0:
            yield f"FAILED {self.case}: and {hidden} more differences"


MAX_MISMATCHES_SHOWN = 5
_MAX_VALUE_WIDTH = 160


def short(value: object) -> str:
    """A value's text, cut where it would fill the screen."""
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_WIDTH else f"{text[: _MAX_VALUE_WIDTH - 1]}…"
