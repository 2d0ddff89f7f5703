"""Slots one by one: what is freed first is used first."""

from collections.abc import Sequence

import numpy as np

from kvengine.radix.free_list import FreeQueue, Ids
from kvengine.radix.slot_pool import Growth, SlotPool


class TokenPool(SlotPool):
    """A pool with page size 1: any slot will do for any token, and freed slots go to the back of the free list.

    Args:
        num_tokens: Slots; they are numbered from 1.
        need_sort: Freed slots wait aside and are merged in, sorted, when an allocation is larger than the free list.
    """

    def __init__(self, num_tokens: int, *, need_sort: bool = False) -> None:
        free = FreeQueue(np.arange(1, num_tokens + 1, dtype=np.int32))
        super().__init__(num_tokens, 1, free, need_sort=need_sort)
        self._held: list[Ids] = []

    def try_allocate(self, count: int) -> Ids | None:
        """Take `count` slots; None, and nothing taken, if they are not there."""
        if count > len(self._free):
            self.merge_waiting()
            if count > len(self._free):
                return None
        return self._free.take(count)

    def try_extend(self, growths: Sequence[Growth]) -> list[Ids] | None:
        """Take the new slots of each sequence, in batch order; None, and nothing taken, if they are not there."""
        slots = self.try_allocate(sum(growth.num_new for growth in growths))
        if slots is None:
            return None
        shares: list[Ids] = []
        start = 0
        for growth in growths:
            shares.append(slots[start : start + growth.num_new])
            start += growth.num_new
        return shares

    def try_extend_by_one(self, num_tokens: Ids, last_slots: Ids) -> Ids | None:
        """Take one new slot for each sequence; None, and nothing taken, if they are not there."""
        assert len(num_tokens) == len(last_slots), f"{len(num_tokens)} lengths for {len(last_slots)} sequences"
        return self.try_allocate(len(last_slots))

    def demand(self, num_new: int, num_sequences: int) -> int:  # noqa: ARG002 - the sequences matter to pages only
        """Exactly the new tokens."""
        return num_new

    def free(self, slots: Ids) -> None:
        """Give slots back."""
        if self._is_holding:
            self._held.append(slots.copy())
        elif len(slots):
            self._give_back(slots)

    def free_stretch(self, slots: Ids) -> None:
        """Give back a stretch of one sequence."""
        self.free(slots)

    def _give_back_held(self) -> None:
        held, self._held = self._held, []
        if held:
            self._give_back(np.concatenate(held))
