"""Which free block is handed out next, as plainly as it can be said: sort all of them each time."""

from collections.abc import Sequence
from math import inf

from kvengine.eviction_policies import PROTECTED_SHARE, EvictionPolicy


class PlainUses:
    """What is known of each block's use, and the order that a policy makes of it."""

    def __init__(self, policy: EvictionPolicy, num_blocks: int) -> None:
        self.policy = policy
        self.hits = [0] * num_blocks
        self.entered = [0] * num_blocks
        self.most_urgent = [inf] * num_blocks
        self.protected: list[int] = []
        self.most_protected = int(PROTECTED_SHARE * num_blocks)
        self.num_entered = 0

    def enter(self, blocks: Sequence[int]) -> None:
        self.num_entered += 1
        for block in blocks:
            self.hits[block], self.entered[block], self.most_urgent[block] = 0, self.num_entered, inf

    def hold(self, block: int, priority: int) -> None:
        self.most_urgent[block] = min(self.most_urgent[block], priority)

    def freed(self, queue: list[int], blocks: Sequence[int]) -> list[int]:
        """The queue with these blocks, all with content, at its end; slru sends the oldest of too many back."""
        queue = queue + list(blocks)
        self.protected += [block for block in blocks if self.hits[block]]
        while self.policy is EvictionPolicy.SLRU and len(self.protected) > self.most_protected:
            fallen = self.protected.pop(0)
            queue.remove(fallen)
            queue.append(fallen)
        return queue

    def taken(self, block: int) -> None:
        if block in self.protected:
            self.protected.remove(block)

    def order(self, cached: Sequence[int]) -> list[int]:
        """Free blocks with content, given in the order in which they were freed, in the order in which they go."""
        match self.policy:
            case EvictionPolicy.LRU:
                return list(cached)
            case EvictionPolicy.LFU:
                return sorted(cached, key=lambda block: self.hits[block])
            case EvictionPolicy.FIFO:
                return sorted(cached, key=lambda block: self.entered[block])
            case EvictionPolicy.PRIORITY:
                return sorted(cached, key=lambda block: -self.most_urgent[block])
            case EvictionPolicy.SLRU:
                return sorted(cached, key=lambda block: block in self.protected)
