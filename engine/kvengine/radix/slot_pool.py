"""What allocation of slots has in common, whatever the page size: the free list, waiting frees, held frees."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvengine.radix.free_list import FreeList, Ids


class Growth(NamedTuple):
    """One sequence's part of an allocation."""

    num_tokens: int
    """Tokens it has slots for."""
    last_slot: int
    """Slot of the last of them; not read when there are none."""
    num_new: int
    """Tokens it grows by."""


class SlotPool(ABC):
    """Owns every slot that nobody else owns, and hands them out in a fixed order.

    Slots are counted in whole pages. Allocation takes pages from the front of the free list, all or nothing.

    Invariants (`check_invariants`): no page is free twice, and page 0 is never free.

    Args:
        num_tokens: Slots of the pool; a rest below a page is lost.
        page_size: Tokens per page.
        free: Pages `1 .. num_tokens // page_size`, in the order in which they are handed out.
        need_sort: Freed pages wait aside and are merged in, sorted, when an allocation seems to need them.
    """

    def __init__(self, num_tokens: int, page_size: int, free: FreeList, *, need_sort: bool) -> None:
        self.page_size = page_size
        self.num_pages = num_tokens // page_size
        self._free = free
        self._need_sort = need_sort
        self._waiting: list[Ids] = []
        self._num_waiting = 0
        self._is_holding = False

    @property
    def num_slots(self) -> int:
        """All slots that can be handed out."""
        return self.num_pages * self.page_size

    @property
    def num_free(self) -> int:
        """Free slots, those that wait aside included, those that are held back not."""
        return (len(self._free) + self._num_waiting) * self.page_size

    def free_pages(self) -> Ids:
        """Free pages (with page size 1: slots), the next to be handed out first; without those that wait aside."""
        return self._free.ids()

    def waiting_pages(self) -> Ids:
        """Free pages that wait aside, in the order in which they came."""
        return np.concatenate(self._waiting) if self._waiting else np.empty(0, np.int32)

    @abstractmethod
    def try_allocate(self, count: int) -> Ids | None:
        """Take slots for `count` tokens, cut down to whole pages; None, and nothing taken, if they are not there."""

    @abstractmethod
    def try_extend(self, growths: Sequence[Growth]) -> list[Ids] | None:
        """Take the new slots of each sequence, in batch order; None, and nothing taken, if they are not there."""

    @abstractmethod
    def try_extend_by_one(self, num_tokens: Ids, last_slots: Ids) -> Ids | None:
        """Take one new slot for each sequence: a decode step.

        Args:
            num_tokens: Tokens that each sequence has slots for, at least 1.
            last_slots: Slot of the last of them.

        Returns:
            One slot for each; None, and nothing taken, if they are not there.
        """

    @abstractmethod
    def demand(self, num_new: int, num_sequences: int) -> int:
        """Free slots to look for before `num_sequences` grow by `num_new` tokens in all."""

    @abstractmethod
    def free(self, slots: Ids) -> None:
        """Give back the whole page of each of these slots."""

    @abstractmethod
    def free_stretch(self, slots: Ids) -> None:
        """Give back a stretch of one sequence that starts on a page border; its last page whole."""

    @abstractmethod
    def _give_back_held(self) -> None:
        """Give back all that was freed since `hold_frees`."""

    def hold_frees(self) -> None:
        """Hold back what is freed from now on."""
        assert not self._is_holding, "frees are held back already"
        self._is_holding = True

    def release_frees(self) -> None:
        """Give back what was held, as one free, and hold nothing from now on."""
        assert self._is_holding, "no frees are held back"
        self._is_holding = False
        self._give_back_held()

    def merge_waiting(self) -> None:
        """Merge the pages that wait aside into the free list, sorted."""
        if not self._num_waiting:
            return
        everything = np.concatenate((self._free.ids(), *self._waiting))
        everything.sort()
        self._free.refill(everything)
        self._waiting = []
        self._num_waiting = 0

    def _give_back(self, pages: Ids) -> None:
        if self._need_sort:
            self._waiting.append(pages.copy())
            self._num_waiting += len(pages)
        else:
            self._free.put(pages)

    def check_invariants(self) -> None:
        """The pool's books balance; see the class."""
        pages = np.concatenate((self.free_pages(), self.waiting_pages()))
        assert len(pages) * self.page_size == self.num_free, f"{len(pages)} pages are free, {self.num_free} slots"
        assert len(np.unique(pages)) == len(pages), f"a page is free twice: {np.sort(pages).tolist()}"
        in_range = (pages >= 1) & (pages <= self.num_pages)
        assert in_range.all(), f"free pages out of 1 .. {self.num_pages}: {pages[~in_range].tolist()}"


def as_ids(slots: Sequence[int] | Ids) -> Ids:
    """Slots or pages as an array."""
    return np.asarray(slots, dtype=np.int32)
