"""Runs of consecutive slots: what a reserving engine hands out, one to a request."""

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import ClassVar, NamedTuple

from kvengine.block_pool import NULL_BLOCK, BlockId


class Extent(NamedTuple):
    """Slots `start .. start + size - 1`."""

    start: int
    size: int

    @property
    def end(self) -> int:
        """The slot behind it."""
        return self.start + self.size


class ExtentPool(ABC):
    """Slots 1 .. `num_slots`, handed out in extents; as in every pool here, slot 0 is nobody's.

    What an extent is and which one is chosen is the subclass's business; this class keeps book of single slots for
    those who look at the pool slot by slot.

    Invariants (`check_invariants`): extents that were handed out, free ones, and what can never be handed out are
    disjoint and cover all slots.

    Args:
        num_slots: Slots that there are.

    Attributes:
        reserves_longest: Whether everybody is given as much as the longest request might need.
    """

    reserves_longest: ClassVar[bool] = False

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._is_held = bytearray(num_slots + 1)
        self._num_held = 0
        self._changes: list[Extent] | None = None

    @property
    def num_blocks(self) -> int:
        """All slots, slot 0 included."""
        return self._num_slots + 1

    @property
    def num_usable(self) -> int:
        """Slots without slot 0."""
        return self._num_slots

    @property
    def num_free(self) -> int:
        """Slots that nobody holds."""
        return self._num_slots - self._num_held

    @property
    def num_used(self) -> int:
        """Slots in extents that were handed out."""
        return self._num_held

    @property
    @abstractmethod
    def num_unusable(self) -> int:
        """Free slots that can never be handed out: too short a rest for any extent."""

    @abstractmethod
    def size_for(self, num_tokens: int) -> int:
        """Slots of the extent that so many tokens are given."""

    @property
    @abstractmethod
    def largest(self) -> int:
        """Slots of the largest extent that an empty pool could hand out."""

    @property
    @abstractmethod
    def largest_free(self) -> int:
        """Slots of the largest extent that could be handed out now; 0 if there is none."""

    @abstractmethod
    def free_extents(self) -> list[Extent]:
        """Free extents as they are kept, in order of their slots."""

    @abstractmethod
    def _try_take(self, size: int) -> int | None:
        """Choose the first slot of a free extent of such a size, as from `size_for`, and take it."""

    @abstractmethod
    def _give_back(self, extent: Extent) -> None:
        """Take back an extent."""

    def try_take(self, num_tokens: int) -> Extent | None:
        """Hand out an extent for so many tokens; None, and nothing taken, if no free run is long enough."""
        size = self.size_for(num_tokens)
        start = self._try_take(size)
        if start is None:
            return None
        extent = Extent(start, size)
        self._mark(extent, held=True)
        return extent

    def give_back(self, extent: Extent) -> None:
        """Take back an extent that was handed out."""
        self._give_back(extent)
        self._mark(extent, held=False)

    def ref_count(self, block: BlockId) -> int:
        """1 for a slot of an extent that was handed out: extents are never shared."""
        return self._is_held[block]

    def is_cached(self, block: BlockId) -> bool:  # noqa: ARG002 - the same for every slot
        """Nothing stays when its owner goes."""
        return False

    def free_blocks(self) -> list[BlockId]:
        """Every free slot, those that can never be handed out included."""
        return [BlockId(slot) for slot in range(1, self.num_blocks) if not self._is_held[slot]]

    def track_changes(self) -> None:
        """Keep a journal of touched slots from now on."""
        if self._changes is None:
            self._changes = []

    def forget_changes(self) -> None:
        """Keep no journal any more."""
        self._changes = None

    def take_changes(self) -> list[BlockId]:
        """Slots that were handed out or came back since the last call; empty unless `track_changes` was called."""
        changes = self._changes
        if not changes:
            return []
        self._changes = []
        return [BlockId(slot) for extent in changes for slot in range(extent.start, extent.end)]

    def _mark(self, extent: Extent, *, held: bool) -> None:
        value = b"\x01" if held else b"\x00"
        self._is_held[extent.start : extent.end] = value * extent.size
        self._num_held += extent.size if held else -extent.size
        if self._changes is not None:
            self._changes.append(extent)

    def check_invariants(self) -> None:
        """The books balance; see the class."""
        free = self.free_extents()
        for extent in free:
            assert extent.start > NULL_BLOCK, f"slot 0 is free in {extent}"
            assert extent.end <= self.num_blocks, f"{extent} ends behind the pool of {self._num_slots} slots"
            assert not any(self._is_held[extent.start : extent.end]), f"{extent} is free and held"
        for before, after in pairwise(free):
            assert before.end <= after.start, f"{before} and {after} overlap"
        assert sum(self._is_held) == self._num_held, f"{sum(self._is_held)} slots are held, counted {self._num_held}"
        num_listed = sum(extent.size for extent in free) + self.num_unusable
        assert num_listed == self.num_free, f"{num_listed} slots are listed as free, {self.num_free} are"


class SlabPool(ExtentPool):
    """Equal slabs of room for the longest request, whatever a request asks for; the one freed last goes first.

    A rest below a slab is lost: 13 slabs of 32,768 in 428,560 slots leave 2,576.

    Args:
        num_slots: Slots that there are.
        slab_slots: Slots of each slab.
    """

    reserves_longest = True

    def __init__(self, num_slots: int, slab_slots: int) -> None:
        super().__init__(num_slots)
        self._slab_slots = slab_slots
        self._num_slabs = num_slots // slab_slots
        self._free = [1 + index * slab_slots for index in reversed(range(self._num_slabs))]

    @property
    def num_unusable(self) -> int:
        """The rest below a slab."""
        return self._num_slots - self._num_slabs * self._slab_slots

    @property
    def largest(self) -> int:
        """A slab, if there is one."""
        return self._slab_slots if self._num_slabs else 0

    @property
    def largest_free(self) -> int:
        """A slab, if one is free."""
        return self._slab_slots if self._free else 0

    def size_for(self, num_tokens: int) -> int:
        """A slab, however short the request; one that is longer than a slab cannot be had."""
        return max(self._slab_slots, num_tokens)

    def free_extents(self) -> list[Extent]:
        """Free slabs in order of their slots."""
        return [Extent(start, self._slab_slots) for start in sorted(self._free)]

    def _try_take(self, size: int) -> int | None:
        return self._free.pop() if self._free and size == self._slab_slots else None

    def _give_back(self, extent: Extent) -> None:
        self._free.append(extent.start)
