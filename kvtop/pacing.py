"""Keeping dear work to a share of the time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Pacer:
    """Says when work may be done again, so that it takes no more than a share of the time.

    Args:
        share: Of the time, 0 to 1.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._due_s = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the work may be done now."""
        return time.monotonic() >= self._due_s

    @contextmanager
    def work(self) -> Iterator[None]:
        """Time the work."""
        start_s = time.monotonic()
        yield
        end_s = time.monotonic()
        self._due_s = end_s + (end_s - start_s) * (1 / self._share - 1)
