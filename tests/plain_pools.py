"""Pools of slots as plain lists: the rules, one line each, for comparison."""

from collections.abc import Iterable, Sequence


class PlainPool:
    """Free pages in a list, front first; `growths` are (tokens with slots, last slot, new tokens)."""

    def __init__(self, num_tokens: int, page_size: int, *, need_sort: bool) -> None:
        self.page_size = page_size
        self.need_sort = need_sort
        self.free_pages = list(range(1, num_tokens // page_size + 1))
        self.waiting: list[int] = []
        self.held: list[int] | None = None
        self.held_stretches: list[int] = []

    @property
    def num_free(self) -> int:
        return (len(self.free_pages) + len(self.waiting)) * self.page_size

    def allocate(self, count: int) -> list[int] | None:
        num_pages = count // self.page_size
        if num_pages > len(self.free_pages):
            self.merge()
        pages = self._take(num_pages)
        return None if pages is None else [slot for page in pages for slot in self._slots(page)]

    def extend(self, growths: Sequence[tuple[int, int, int]]) -> list[list[int]] | None:
        num_new = sum(growth[2] for growth in growths)
        bound = num_new if self.page_size == 1 else num_new // self.page_size + len(growths) + 1
        if bound > len(self.free_pages):
            self.merge()
        shares, free = [], list(self.free_pages)
        for length, last, count in growths:
            share: list[int] = []
            for position in range(length, length + count):
                if position % self.page_size == 0:
                    if not free:
                        return None
                    last = free.pop(0) * self.page_size
                else:
                    last += 1
                share.append(last)
            shares.append(share)
        self.free_pages = free
        return shares

    def extend_by_one(self, lengths: Sequence[int], last_slots: Sequence[int]) -> list[int] | None:
        if len(lengths) > len(self.free_pages):
            self.merge()
        opening = sum(length % self.page_size == 0 for length in lengths)
        pages = self._take(opening)
        if pages is None:
            return None
        return [
            pages.pop(0) * self.page_size if length % self.page_size == 0 else last + 1
            for length, last in zip(lengths, last_slots, strict=True)
        ]

    def free(self, slots: Sequence[int]) -> None:
        if self.held is not None:
            self.held += slots
        elif slots:
            pages = [slot // self.page_size for slot in slots]
            self._give_back(pages if self.page_size == 1 else sorted(set(pages)))

    def free_stretch(self, slots: Sequence[int]) -> None:
        if self.page_size == 1:
            self.free(slots)
            return
        pages = [slot // self.page_size for slot in slots[:: self.page_size]]
        if self.held is not None:
            self.held_stretches += pages
        elif pages:
            self._give_back(pages)

    def hold(self) -> None:
        self.held = []

    def release(self) -> None:
        held, self.held = self.held or [], None
        stretches, self.held_stretches = self.held_stretches, []
        self.free(held)
        if stretches:
            self._give_back(stretches)

    def merge(self) -> None:
        if self.waiting:
            self.free_pages = sorted(self.free_pages + self.waiting)
            self.waiting = []

    def _take(self, count: int) -> list[int] | None:
        if count > len(self.free_pages):
            return None
        taken, self.free_pages = self.free_pages[:count], self.free_pages[count:]
        return taken

    def _give_back(self, pages: list[int]) -> None:
        if self.need_sort:
            self.waiting += pages
        elif self.page_size == 1:
            self.free_pages = self.free_pages + pages
        else:
            self.free_pages = pages + self.free_pages

    def _slots(self, page: int) -> Iterable[int]:
        return range(page * self.page_size, (page + 1) * self.page_size)
