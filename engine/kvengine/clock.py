"""Time, real or virtual, handed to whoever needs it."""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of seconds that never goes back."""

    def now_s(self) -> float:
        """Seconds since an arbitrary origin."""
        ...


class RealClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        """Seconds since an arbitrary origin."""
        return time.monotonic()


class VirtualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        """Seconds since the start, as moved so far."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move forward."""
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds} s")
        self._now_s += seconds
