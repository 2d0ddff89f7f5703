"""Powers of two, split in halves and merged again: the buddy system (Knowlton 1965)."""

from kvengine.allocators.extents import Extent, ExtentPool


def next_power_of_two(value: int) -> int:
    """Round up to a power of two: 612 to 1,024."""
    return 1 << (value - 1).bit_length()


class BuddyPool(ExtentPool):
    """Extents of a power of two of slots, each at a multiple of its size.

    A request gets the next power of two. The smallest free extent that is large enough is halved until it fits, the
    lower half going on; one that comes back is merged with its other half, its buddy, for as long as that is free. Two
    free neighbours that are no buddies stay apart, so there may be enough free slots and no run of them that is long
    enough: external fragmentation.

    A pool that is no power of two is the sum of several, the largest first: 39 slots are 32, 4, 2 and 1.

    Invariants (`check_invariants`): those of the pool; a free extent is a power of two at a multiple of its size, and
    its buddy is not free in the same size.

    Args:
        num_slots: Slots that there are.
    """

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self._top = num_slots.bit_length() - 1
        # By order, offsets of free extents of 2**order slots; of several the one freed last goes first.
        self._free: list[dict[int, None]] = [{} for _ in range(self._top + 1)]
        offset = 0
        for order in range(self._top, -1, -1):
            if num_slots >> order & 1:
                self._free[order][offset] = None
                offset += 1 << order

    @property
    def num_unusable(self) -> int:
        """None: a single slot is an extent."""
        return 0

    @property
    def largest(self) -> int:
        """The largest power of two in the pool."""
        return 1 << self._top if self._top >= 0 else 0

    @property
    def largest_free(self) -> int:
        """The largest free extent; 0 if there is none."""
        return next((1 << order for order in range(self._top, -1, -1) if self._free[order]), 0)

    def size_for(self, num_tokens: int) -> int:
        """The next power of two."""
        return next_power_of_two(num_tokens)

    def free_extents(self) -> list[Extent]:
        """Free extents in order of their slots."""
        return sorted(Extent(1 + offset, 1 << order) for order, free in enumerate(self._free) for offset in free)

    def _try_take(self, size: int) -> int | None:
        wanted = size.bit_length() - 1
        order = next((order for order in range(wanted, self._top + 1) if self._free[order]), None)
        if order is None:
            return None
        offset, _ = self._free[order].popitem()
        while order > wanted:
            order -= 1
            self._free[order][offset + (1 << order)] = None
        return 1 + offset

    def _give_back(self, extent: Extent) -> None:
        offset, order = extent.start - 1, extent.size.bit_length() - 1
        while (buddy := offset ^ 1 << order) in self._free[order]:
            del self._free[order][buddy]
            offset = min(offset, buddy)
            order += 1
        self._free[order][offset] = None

    def check_invariants(self) -> None:
        """The books balance; see the class."""
        super().check_invariants()
        for order, free in enumerate(self._free):
            for offset in free:
                assert offset % (1 << order) == 0, f"{1 << order} free slots at offset {offset}, no multiple of it"
                assert offset ^ 1 << order not in free, f"buddies at {offset} of {1 << order} slots are not merged"
