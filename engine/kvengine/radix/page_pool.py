"""Slots in pages: a sequence's slots are consecutive inside a page, and what is freed last is used first."""

from collections.abc import Iterable, Sequence

import numpy as np

from kvengine.radix.free_list import FreeStack, Ids
from kvengine.radix.slot_pool import Growth, SlotPool


class PagePool(SlotPool):
    """A pool with a page size above 1: freed pages go to the front of the free list.

    A freed page is given back whole, whatever part of it was named: the caller never frees a part of a page of
    which it still needs another.

    Args:
        num_tokens: Slots; pages are numbered from 1, and a rest below a page is lost.
        page_size: Tokens per page.
        need_sort: Freed pages wait aside and are merged in, sorted, when an upper bound of an allocation's pages is
            larger than the free list.
    """

    def __init__(self, num_tokens: int, page_size: int, *, need_sort: bool = False) -> None:
        free = FreeStack(np.arange(1, num_tokens // page_size + 1, dtype=np.int32))
        super().__init__(num_tokens, page_size, free, need_sort=need_sort)
        self._offsets = np.arange(page_size, dtype=np.int32)
        self._held: list[Ids] = []
        self._held_stretches: list[Ids] = []

    def try_allocate(self, count: int) -> Ids | None:
        """Take slots for `count` tokens, cut down to whole pages; None, and nothing taken, if they are not there."""
        num_pages = count // self.page_size
        self._ready(num_pages)
        if num_pages > len(self._free):
            return None
        return self._slots_of(self._free.take(num_pages))

    def try_extend(self, growths: Sequence[Growth]) -> list[Ids] | None:
        """Take the new slots of each sequence, in batch order; None, and nothing taken, if they are not there.

        A sequence fills its open page, then takes whole pages, then one for the tail.
        """
        page_size = self.page_size
        self._ready(sum(growth.num_new for growth in growths) // page_size + len(growths) + 1)
        counts = [
            -(-(num_tokens + num_new) // page_size) + -num_tokens // page_size for num_tokens, _, num_new in growths
        ]
        num_pages = sum(counts)
        if num_pages > len(self._free):
            return None
        pages = self._free.take(num_pages)
        shares: list[Ids] = []
        start = 0
        for growth, count in zip(growths, counts, strict=True):
            shares.append(self._grow(growth, pages[start : start + count]))
            start += count
        return shares

    def try_extend_by_one(self, num_tokens: Ids, last_slots: Ids) -> Ids | None:
        """Take one new slot for each sequence; None, and nothing taken, if they are not there.

        Only sequences whose length is a multiple of the page take one, in batch order.
        """
        self._ready(len(last_slots))
        opens_page = num_tokens % self.page_size == 0
        num_pages = int(np.count_nonzero(opens_page))
        if num_pages > len(self._free):
            return None
        slots = last_slots + 1
        slots[opens_page] = self._free.take(num_pages) * self.page_size
        return slots

    def demand(self, num_new: int, num_sequences: int) -> int:
        """The new tokens, and one page for each sequence even if its open page has room."""
        return num_new + num_sequences * self.page_size

    def free(self, slots: Ids) -> None:
        """Give back the page of each of these slots, each page once, sorted."""
        if self._is_holding:
            self._held.append(slots.copy())
        elif len(slots):
            self._give_back(np.unique(slots // self.page_size))

    def free_stretch(self, slots: Ids) -> None:
        """Give back the pages of a stretch of one sequence, in sequence order.

        The stretch starts on a page border; its last page goes whole.
        """
        if not len(slots):
            return
        assert slots[0] % self.page_size == 0, f"a stretch starts at slot {slots[0]}, inside a page"
        pages = slots[:: self.page_size] // self.page_size
        if self._is_holding:
            self._held_stretches.append(pages)
        else:
            self._give_back(pages)

    def _ready(self, bound: int) -> None:
        """Merge what waits aside if `bound` pages might not be there without it."""
        if bound > len(self._free):
            self.merge_waiting()

    def _grow(self, growth: Growth, pages: Ids) -> Ids:
        """The new slots of one sequence: the rest of its open page, then its new pages."""
        num_open = min(-growth.num_tokens % self.page_size, growth.num_new)
        if not num_open:
            return self._slots_of(pages)[: growth.num_new]
        opened = growth.last_slot + 1 + self._offsets[:num_open]
        return np.concatenate((opened, self._slots_of(pages)[: growth.num_new - num_open]))

    def _slots_of(self, pages: Ids) -> Ids:
        return (pages[:, None] * self.page_size + self._offsets).ravel()

    def _give_back_held(self) -> None:
        held, self._held = self._held, []
        stretches, self._held_stretches = self._held_stretches, []
        if held:
            self.free(_joined(held))
        if stretches:
            self._give_back(_joined(stretches))


def _joined(parts: Iterable[Ids]) -> Ids:
    return np.concatenate(tuple(parts))
