"""What an allocator makes of its memory: at a moment, and over a run. Slots are tokens' worth of KV memory."""

from dataclasses import dataclass, field
from typing import NamedTuple


class MemoryUse(NamedTuple):
    """Where the slots of a pool are at one moment.

    `held` is what requests keep from each other; the rest is free, cached prefixes that nobody uses included.
    A reservation of 32,768 slots for a prompt of 512 tokens and at most 100 of output that has come to 550 tokens:
    550 used, 62 pending, 32,156 reserved.
    """

    total: int
    """Slots that the pool has."""
    used: int
    """Slots with a token of a running request; a shared one counts once."""
    pending: int
    """Held for tokens that their request may still come to."""
    reserved: int
    """Held, and more than their request can ever fill, because the longest one could."""
    internal: int
    """Held because of the unit in which slots are handed out: the rest of a block, of a page, of a power of two."""
    external: int
    """Free, and of no use: too short a rest for anybody, or in pieces while a request waits for one that is long."""
    index_bytes: int
    """What says where each token is: block tables, extents, rows and tree; 4 bytes an entry, a token id or a slot."""

    @property
    def held(self) -> int:
        """Slots that requests keep from each other."""
        return self.used + self.pending + self.reserved + self.internal

    @property
    def unfilled(self) -> int:
        """Held slots without a token."""
        return self.pending + self.reserved + self.internal

    @property
    def wasted(self) -> int:
        """Slots that hold no token and can be had by no other request."""
        return self.unfilled + self.external

    def check_invariants(self) -> None:
        """Nothing is negative, and no slot is counted twice."""
        assert min(self) >= 0, f"a part is negative: {self}"
        assert self.held + self.external <= self.total, f"more slots than there are: {self}"


PARTS = ("used", "pending", "reserved", "internal", "external", "index_bytes")
"""The fields of `MemoryUse` that have a mean and a peak over a run."""


@dataclass(slots=True)
class MemoryMeter:
    """Means over time and peaks of `MemoryUse`, over the steps in which a request ran."""

    total: int = 0
    peaks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    _sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    _seconds: float = 0.0

    def add(self, use: MemoryUse, seconds: float) -> None:
        """Take in that memory was used like this for so long; in a simulation without times, for one step."""
        self.total = use.total
        self._seconds += seconds
        sums, peaks = self._sums, self.peaks
        for part, value in zip(PARTS, use[1:], strict=True):
            sums[part] += value * seconds
            if value > peaks[part]:
                peaks[part] = value

    @property
    def means(self) -> dict[str, float] | None:
        """Mean over time of each part; None before any time has passed."""
        if not self._seconds:
            return None
        return {part: total / self._seconds for part, total in self._sums.items()}
