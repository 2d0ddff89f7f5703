"""Printed figures as intervals: 3.51 stands for everything that rounds to it."""

from fractions import Fraction
from typing import NamedTuple


class Span(NamedTuple):
    """All values that a printed figure can stand for."""

    low: Fraction
    high: Fraction

    def __add__(self, other: "Span") -> "Span":  # type: ignore[override]
        return Span(self.low + other.low, self.high + other.high)

    def __sub__(self, other: "Span") -> "Span":
        return Span(self.low - other.high, self.high - other.low)

    def __mul__(self, other: "Span") -> "Span":  # type: ignore[override]
        corners = [a * b for a in self for b in other]
        return Span(min(corners), max(corners))

    def __truediv__(self, other: "Span") -> "Span":
        corners = [a / b for a in self for b in other]
        return Span(min(corners), max(corners))

    @property
    def middle(self) -> float:
        """The value in the middle."""
        return float(self.low + self.high) / 2

    def meets(self, other: "Span") -> bool:
        """Whether one value can be both."""
        return self.low <= other.high and other.low <= self.high


def exact(value: int | Fraction) -> Span:
    """A span of one value."""
    return Span(Fraction(value), Fraction(value))


def printed(text: str, *, decimals: int = 0) -> Span:
    """The span of a printed number, rounded to its last decimal or to `decimals` if it shows fewer.

    Later releases drop trailing zeros (`18.0` was rounded to two decimals), so callers name the decimals they know.
    """
    digits = text.replace(",", "")
    shown = len(digits.partition(".")[2])
    half = Fraction(1, 2 * 10 ** max(shown, decimals)) if shown or decimals else Fraction(0)
    value = Fraction(digits)
    return Span(value - half, value + half)


def printed_gib(text: str) -> Span:
    """The span of a size in GiB, which engines round to two decimals or more."""
    return printed(text, decimals=2)
