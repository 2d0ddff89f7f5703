"""Blocks of the host's memory, where preempted requests keep what they have computed."""

from collections.abc import Sequence
from typing import NewType

HostBlockId = NewType("HostBlockId", int)


class HostPool:
    """Which host blocks are free; each has one owner at most.

    Invariants (`check_invariants`): no block is free twice, and none is outside the pool.

    Args:
        num_blocks: Blocks in the pool, 0 to `num_blocks` - 1; each has room for one block of the device.
    """

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._free = [HostBlockId(block) for block in range(num_blocks - 1, -1, -1)]
        self._peak = 0

    @property
    def num_blocks(self) -> int:
        """All blocks."""
        return self._num_blocks

    @property
    def num_free(self) -> int:
        """Blocks without an owner."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks with an owner."""
        return self._num_blocks - len(self._free)

    @property
    def peak_used(self) -> int:
        """Most blocks that had an owner at a time."""
        return self._peak

    def try_allocate(self, count: int) -> list[HostBlockId] | None:
        """Take `count` blocks, the last freed first; None, and nothing taken, if they are not there."""
        if count > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(count)]
        self._peak = max(self._peak, self.num_used)
        return taken

    def free(self, blocks: Sequence[HostBlockId]) -> None:
        """Give blocks back."""
        self._free += reversed(blocks)

    def free_blocks(self) -> list[HostBlockId]:
        """Every free block, the next to be handed out first."""
        return self._free[::-1]

    def check_invariants(self) -> None:
        """The pool's books balance; see the class."""
        free = set(self._free)
        assert len(free) == len(self._free), f"a host block is free twice: {self._free}"
        assert free <= set(range(self._num_blocks)), f"a host block is outside the pool: {self._free}"
