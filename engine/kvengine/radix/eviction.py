"""Who is evicted first: policies by name, and the queue of leaves that applies one."""

import heapq
from collections.abc import Callable
from enum import StrEnum
from operator import attrgetter
from typing import Any

from kvengine.radix.node import RadixNode


class EvictionPolicy(StrEnum):
    """Which leaf goes first; "oldest" is by last access."""

    LRU = "lru"
    """The oldest."""
    LFU = "lfu"
    """Fewest hits, then oldest."""
    SLRU = "slru"
    """Those with fewer than two hits first, then oldest."""
    PRIORITY = "priority"
    """Lowest priority, then oldest."""
    FIFO = "fifo"
    """First created."""
    FILO = "filo"
    """Last created."""
    MRU = "mru"
    """The youngest."""


Rank = Any
"""Something that sorts: the lowest goes first. Ints or tuples of ints, of one form within a policy."""

SLRU_PROTECTED_HITS = 2
"""Hits from which a node is in slru's protected segment."""

_RANKS: dict[EvictionPolicy, Callable[[RadixNode], Rank]] = {
    EvictionPolicy.LRU: attrgetter("last_access"),
    EvictionPolicy.LFU: attrgetter("num_hits", "last_access"),
    EvictionPolicy.SLRU: lambda node: (node.num_hits >= SLRU_PROTECTED_HITS, node.last_access),
    EvictionPolicy.PRIORITY: attrgetter("priority", "last_access"),
    EvictionPolicy.FIFO: attrgetter("created"),
    EvictionPolicy.FILO: lambda node: -node.created,
    EvictionPolicy.MRU: lambda node: -node.last_access,
}

_RANKS_THAT_FALL = frozenset({EvictionPolicy.MRU})
"""Policies in which a use brings a node closer to its eviction."""

_OUTDATED_SHARE = 64
"""When one eviction comes across more than this part of the entries out of date, all are ranked anew.

Low, since afterwards none is: at 4,096 leaves that were all used, 1/16 takes 1.9 ms, 1/64 1.5 ms, one by one 3.0 ms.
"""


def rank_of(policy: EvictionPolicy) -> Callable[[RadixNode], Rank]:
    """What a policy sorts leaves by."""
    return _RANKS[policy]


def is_evictable(node: RadixNode) -> bool:
    """Whether a node is a leaf that nobody uses, below the root and in the tree."""
    return not node.children and not node.lock_count and node.parent is not None


class EvictionQueue:
    """Leaves without locks, the next to be evicted first.

    A heap whose entries may be out of date: a use changes a leaf's rank, a lock or a child takes it out of the
    running, and neither touches the heap. Except with `mru` a rank only grows, so an entry is never too late: one
    that comes up too early goes back with its present rank, and one that no longer counts is dropped. Using a
    cached prefix therefore costs the queue nothing. When many come up too early, all are ranked anew at once.

    Invariant (`check_invariants`): every leaf without locks has one entry, at most at its present rank.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._rank = rank_of(policy)
        self._ranks_fall = policy in _RANKS_THAT_FALL
        self._num_outdated = 0
        # The count in the middle keeps entries of equal rank, of which at most one is up to date, from comparing nodes.
        self._heap: list[tuple[Rank, int, RadixNode]] = []
        self._num_entries_made = 0

    def offer(self, node: RadixNode) -> None:
        """Note that a node is now a leaf without locks."""
        if not node.is_queued:
            node.is_queued = True
            self._num_entries_made += 1
            heapq.heappush(self._heap, (self._rank(node), self._num_entries_made, node))

    def begin(self) -> None:
        """Make the queue ready for some `pop`s, before which no rank changes."""
        self._num_outdated = 0
        if self._ranks_fall:
            self._rank_anew()

    def pop(self) -> RadixNode | None:
        """Take the leaf that goes first; None if there is none."""
        rank = self._rank
        while self._heap:
            then, count, node = self._heap[0]
            if not is_evictable(node):
                heapq.heappop(self._heap)
                node.is_queued = False
                continue
            now = rank(node)
            if now == then:
                heapq.heappop(self._heap)
                node.is_queued = False
                return node
            self._num_outdated += 1
            if self._num_outdated * _OUTDATED_SHARE > len(self._heap):
                self._rank_anew()
            else:
                heapq.heapreplace(self._heap, (now, count, node))
        return None

    def _rank_anew(self) -> None:
        nodes = [node for _, _, node in self._heap]
        self._heap = list(zip(map(self._rank, nodes), range(len(nodes)), nodes, strict=True))
        heapq.heapify(self._heap)
        self._num_outdated = 0

    def check_invariants(self, leaves: set[RadixNode]) -> None:
        """`leaves`, all leaves without locks, have one entry each; see the class."""
        queued = [node for _, _, node in self._heap]
        assert len(set(queued)) == len(queued), "a node has two entries in the eviction queue"
        assert all(node.is_queued for node in queued), "a node in the eviction queue does not know it"
        missing = leaves - set(queued)
        assert not missing, f"{len(missing)} evictable leaves are not in the eviction queue"
        if not self._ranks_fall:
            late = [node for then, _, node in self._heap if then > self._rank(node)]
            assert not late, f"{len(late)} entries of the eviction queue rank later than their nodes"
