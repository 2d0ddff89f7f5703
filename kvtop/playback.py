"""Where a recording stands and how fast it plays: plain arithmetic on the times of its steps."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
STEPS_PER_S = 10.0
"""Speed 1 of a recording in which no time passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Playhead:
    """Where a recording stands, to be shown."""

    position: int
    num_positions: int
    time_s: float
    last_time_s: float
    speed: float
    is_playing: bool
    is_growing: bool
    """An engine still adds to the recording."""
    note: str
    """What is odd about the end of the recording; empty for one that was closed."""

    @property
    def fraction(self) -> float:
        """Part of the steps that lies behind, 0 to 1."""
        return self.position / (self.num_positions - 1) if self.num_positions > 1 else 1.0


class Playback:
    """Moves through the positions of a recording.

    Args:
        times_s: Stream time of each position, ascending; the list may grow.
    """

    def __init__(self, times_s: Sequence[float]) -> None:
        self._times_s = times_s
        self._elapsed_s = 0.0
        """Time played since the position was last set by hand."""
        self._origin = 0
        self.position = 0
        self.speed = 1.0
        self.is_playing = False
        self.is_growing = False
        """More positions will come: the end is followed, not stopped at."""

    @property
    def last(self) -> int:
        """The last position."""
        return len(self._times_s) - 1

    def go_to(self, position: int) -> None:
        """Stand at a position, or at the nearest there is."""
        self.position = self._origin = min(max(position, 0), self.last)
        self._elapsed_s = 0.0

    def step(self, count: int) -> None:
        """Stop, and move by so many positions."""
        self.is_playing = False
        self.go_to(self.position + count)

    def toggle(self) -> None:
        """Play or stop; at the end, play from the beginning."""
        self.is_playing = not self.is_playing
        at_end = self.position == self.last and not self.is_growing
        self.go_to(0 if self.is_playing and at_end else self.position)

    def change_speed(self, faster: bool) -> None:
        """To the next faster or slower speed."""
        index = SPEEDS.index(self.speed) + (1 if faster else -1)
        self.speed = SPEEDS[min(max(index, 0), len(SPEEDS) - 1)]
        self.go_to(self.position)

    def advance(self, seconds: float) -> None:
        """Let real time pass."""
        if not self.is_playing:
            return
        self._elapsed_s += seconds * self.speed
        if self._times_s[-1] > self._times_s[0]:
            reached = bisect_right(self._times_s, self._times_s[self._origin] + self._elapsed_s) - 1
        else:
            reached = self._origin + int(self._elapsed_s * STEPS_PER_S)
        self.position = min(max(reached, self.position), self.last)
        if self.position == self.last:
            self.is_playing = self.is_growing
            self.go_to(self.last)
