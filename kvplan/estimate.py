"""An amount of bytes that knows how sure it is."""

from dataclasses import dataclass
from enum import StrEnum


class Evidence(StrEnum):
    """Where a number comes from, from the surest to the least sure."""

    GIVEN = "given"
    """Typed by the user."""
    EXACT = "exact"
    """From file headers."""
    MEASURED = "measured"
    """Read from the device."""
    CALIBRATED = "calibrated"
    """From a start-up log of the same engine, model and GPU."""
    TABLE = "table"
    """From a profile."""
    ESTIMATED = "estimated"
    """Worked out from rules of thumb; the range says how far off it may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """Bytes, with the least and the most that they may turn out to be."""

    size_bytes: int
    low_bytes: int
    high_bytes: int
    evidence: Evidence

    def __post_init__(self) -> None:
        assert self.low_bytes <= self.size_bytes <= self.high_bytes, f"range out of order: {self}"


def sure(size_bytes: int, evidence: Evidence) -> Amount:
    """Return an amount without a range."""
    return Amount(size_bytes=size_bytes, low_bytes=size_bytes, high_bytes=size_bytes, evidence=evidence)


def estimated(low_bytes: int, size_bytes: int, high_bytes: int) -> Amount:
    """Return an estimate with its range."""
    return Amount(size_bytes=size_bytes, low_bytes=low_bytes, high_bytes=high_bytes, evidence=Evidence.ESTIMATED)
