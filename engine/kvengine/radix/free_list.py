"""Free slots or pages in the order in which they are handed out, as arrays: a call costs what it moves."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
"""Slots or pages. 32 bits: a pool of 2**31 tokens is larger than any GPU's memory."""


class FreeList(Protocol):
    """Ids waiting to be handed out from the front."""

    def __len__(self) -> int: ...

    def take(self, count: int) -> Ids:
        """Remove `count` ids from the front; there must be that many."""
        ...

    def put(self, ids: Ids) -> None:
        """Give ids back."""
        ...

    def ids(self) -> Ids:
        """A copy, front first."""
        ...

    def refill(self, ids: Ids) -> None:
        """Hold these instead, front first."""
        ...


class FreeQueue:
    """What comes back goes to the back: a ring of fixed capacity.

    Args:
        ids: What is free at first, front first.
    """

    def __init__(self, ids: Ids) -> None:
        self._ring = ids.copy()
        self._head = 0
        self._len = len(ids)

    def __len__(self) -> int:
        return self._len

    def take(self, count: int) -> Ids:
        """Remove `count` ids from the front; there must be that many."""
        assert count <= self._len, f"took {count} of {self._len} free ids"
        ring, head = self._ring, self._head
        end = head + count
        self._len -= count
        if end <= len(ring):
            self._head = end
            return ring[head:end].copy()
        self._head = end - len(ring)
        return np.concatenate((ring[head:], ring[: self._head]))

    def put(self, ids: Ids) -> None:
        """Give ids back behind all others."""
        ring, capacity = self._ring, len(self._ring)
        assert self._len + len(ids) <= capacity, f"gave back {len(ids)} ids to {self._len} of {capacity}"
        start = self._head + self._len
        if start >= capacity:
            start -= capacity
        self._len += len(ids)
        end = start + len(ids)
        if end <= capacity:
            ring[start:end] = ids
        else:
            split = capacity - start
            ring[start:] = ids[:split]
            ring[: end - capacity] = ids[split:]

    def ids(self) -> Ids:
        """A copy, front first."""
        wrapped = max(0, self._head + self._len - len(self._ring))
        return np.concatenate((self._ring[self._head : self._head + self._len], self._ring[:wrapped]))

    def refill(self, ids: Ids) -> None:
        """Hold these instead, front first."""
        self._head = 0
        self._len = len(ids)
        self._ring[: len(ids)] = ids


class FreeStack:
    """What comes back goes to the front: an array of fixed capacity whose front is its end.

    Args:
        ids: What is free at first, front first.
    """

    def __init__(self, ids: Ids) -> None:
        self._stack = ids[::-1].copy()
        self._len = len(ids)

    def __len__(self) -> int:
        return self._len

    def take(self, count: int) -> Ids:
        """Remove `count` ids from the front; there must be that many."""
        assert count <= self._len, f"took {count} of {self._len} free ids"
        end = self._len
        self._len = start = end - count
        return self._stack[start:end][::-1].copy()

    def put(self, ids: Ids) -> None:
        """Give ids back before all others, the first of them foremost."""
        start, end = self._len, self._len + len(ids)
        assert end <= len(self._stack), f"gave back {len(ids)} ids to {start} of {len(self._stack)}"
        self._stack[start:end] = ids[::-1]
        self._len = end

    def ids(self) -> Ids:
        """A copy, front first."""
        return self._stack[: self._len][::-1].copy()

    def refill(self, ids: Ids) -> None:
        """Hold these instead, front first."""
        self._len = len(ids)
        self._stack[: len(ids)] = ids[::-1]
