"""Which cached block that nobody owns is given up first: policies by name, and the queues that apply them.

`lru` is `block_pool.EvictionQueue`. The others know how a block was used since its content became findable. Sequences
share blocks from the beginning on and free them from the end, so that in every policy but `fifo` the end of a prefix
goes before its beginning; `fifo` gives up old beginnings first, after which what lies behind them cannot be hit.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from heapq import heapify, heappop, heappush
from math import inf

from kvengine.block_pool import BlockId, EvictionQueue, UsageQueue


class EvictionPolicy(StrEnum):
    """Which cached block goes first of those that nobody owns."""

    LRU = "lru"
    """The one that was freed first."""
    LFU = "lfu"
    """The one that admissions have found least often; of equals the one that was freed first."""
    SLRU = "slru"
    """Those that were never found again, then the others, each part in the order in which they were freed. The part of
    the others is limited: what was freed first of it falls back among the first."""
    FIFO = "fifo"
    """The one whose content became findable first."""
    PRIORITY = "priority"
    """The one whose most urgent holder was least urgent; of equals the one that was freed first."""


PROTECTED_SHARE = 0.8
"""Most blocks of the pool in slru's protected part; Karedla, Love and Wherry (1994) found 60 to 80 % best."""


class _Uses:
    """How each block was used since its content became findable."""

    def __init__(self, num_blocks: int) -> None:
        self.num_hits = [0] * num_blocks
        self.entered = [0] * num_blocks
        """Number of the call that made the content findable."""
        self.priority: list[float] = [inf] * num_blocks
        """The most urgent, that is lowest, of its holders."""
        self._num_calls = 0

    def begin(self, blocks: Sequence[BlockId]) -> None:
        """Other content has just become findable in these blocks."""
        self._num_calls += 1
        for block in blocks:
            self.num_hits[block] = 0
            self.entered[block] = self._num_calls
            self.priority[block] = inf

    def hit(self, blocks: Sequence[BlockId]) -> None:
        """An admission has found these blocks."""
        for block in blocks:
            self.num_hits[block] += 1

    def held(self, blocks: Sequence[BlockId], priority: int) -> None:
        """A request of this priority holds these blocks."""
        for block in blocks:
            if priority < self.priority[block]:
                self.priority[block] = priority


class RankedQueue(_Uses):
    """Blocks by rank, the lowest first, ties in the order in which they were freed: O(log n) an operation.

    A heap whose entries are dropped late: a block that left the queue leaves its entry behind until that comes to the
    front, or until most entries are such.

    Args:
        num_blocks: Blocks in the pool.
        rank: What a queue and a block come to; it does not change while the block is in the queue.
    """

    def __init__(self, num_blocks: int, rank: Callable[["RankedQueue", BlockId], float]) -> None:
        super().__init__(num_blocks)
        self._rank = rank
        self._heap: list[tuple[float, int, BlockId]] = []
        self._place: dict[BlockId, int] = {}
        """By block in the queue: which entry is its own."""
        self._num_freed = 0

    def __len__(self) -> int:
        return len(self._place)

    def __iter__(self) -> Iterator[BlockId]:
        return (block for _, _, block in sorted(filter(self._is_live, self._heap)))

    def extend(self, blocks: Sequence[BlockId]) -> None:
        """Take in blocks that were freed, in this order."""
        for block in blocks:
            self._num_freed += 1
            self._place[block] = self._num_freed
            heappush(self._heap, (self._rank(self, block), self._num_freed, block))

    def remove(self, block: BlockId) -> None:
        """Take one block out."""
        del self._place[block]
        if len(self._heap) > 2 * len(self._place) + 64:
            self._heap = [entry for entry in self._heap if self._is_live(entry)]
            heapify(self._heap)

    def take(self, count: int) -> list[BlockId]:
        """Take out the first `count` blocks; there must be that many."""
        taken: list[BlockId] = []
        while len(taken) < count:
            entry = heappop(self._heap)
            if self._is_live(entry):
                del self._place[entry[2]]
                taken.append(entry[2])
        return taken

    def _is_live(self, entry: tuple[float, int, BlockId]) -> bool:
        return self._place.get(entry[2]) == entry[1]

    def check_invariants(self) -> None:
        """Each block of the queue has one entry, with the rank that it has now."""
        live = list(filter(self._is_live, self._heap))
        assert len(live) == len(self._place), f"{len(self._place)} blocks have {len(live)} entries"
        for rank, _, block in live:
            assert rank == self._rank(self, block), f"block {block} was ranked {rank} and is {self._rank(self, block)}"


class SegmentedQueue(_Uses):
    """Two queues in the order of freeing: blocks that were found again go behind all others. O(1) an operation.

    Args:
        num_blocks: Blocks in the pool.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._probation = EvictionQueue(num_blocks)
        self._protected = EvictionQueue(num_blocks)
        self._is_protected = bytearray(num_blocks)
        self._most_protected = int(PROTECTED_SHARE * num_blocks)

    def __len__(self) -> int:
        return len(self._probation) + len(self._protected)

    def __iter__(self) -> Iterator[BlockId]:
        yield from self._probation
        yield from self._protected

    def extend(self, blocks: Sequence[BlockId]) -> None:
        """Take in blocks that were freed, in this order."""
        protected = [block for block in blocks if self.num_hits[block]]
        self._probation.extend([block for block in blocks if not self.num_hits[block]])
        self._protected.extend(protected)
        for block in protected:
            self._is_protected[block] = True
        surplus = len(self._protected) - self._most_protected
        if surplus > 0:
            fallen = self._protected.take(surplus)
            self._probation.extend(fallen)
            for block in fallen:
                self._is_protected[block] = False

    def remove(self, block: BlockId) -> None:
        """Take one block out."""
        (self._protected if self._is_protected[block] else self._probation).remove(block)
        self._is_protected[block] = False

    def take(self, count: int) -> list[BlockId]:
        """Take out the first `count` blocks; there must be that many."""
        num_first = min(count, len(self._probation))
        taken = self._probation.take(num_first) + self._protected.take(count - num_first)
        for block in taken[num_first:]:
            self._is_protected[block] = False
        return taken

    def check_invariants(self) -> None:
        """The protected part is within its limit, and each block is where it is noted to be."""
        self._probation.check_invariants()
        self._protected.check_invariants()
        assert len(self._protected) <= self._most_protected, f"{len(self._protected)} blocks are protected"
        noted = [block for block, is_protected in enumerate(self._is_protected) if is_protected]
        assert noted == sorted(self._protected), f"noted as protected: {noted}, in the queue: {list(self._protected)}"


def usage_queue(policy: EvictionPolicy, num_blocks: int) -> UsageQueue | None:
    """The queue of a policy; None for `lru`, which the pool has by itself."""
    match policy:
        case EvictionPolicy.LRU:
            return None
        case EvictionPolicy.LFU:
            return RankedQueue(num_blocks, lambda queue, block: queue.num_hits[block])
        case EvictionPolicy.FIFO:
            return RankedQueue(num_blocks, lambda queue, block: queue.entered[block])
        case EvictionPolicy.PRIORITY:
            return RankedQueue(num_blocks, lambda queue, block: -queue.priority[block])
        case EvictionPolicy.SLRU:
            return SegmentedQueue(num_blocks)
