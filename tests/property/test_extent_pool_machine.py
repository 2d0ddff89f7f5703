"""Slabs and buddies in any order, against a list that says of every slot whether it is held."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvengine.allocators.buddy import BuddyPool
from kvengine.allocators.extents import Extent, ExtentPool, SlabPool


class ExtentPoolMachine(RuleBasedStateMachine):
    """What can be had is decided by the list: an aligned run of free slots that is long enough."""

    @initialize(num_slots=st.integers(1, 100), slab=st.integers(1, 30), is_buddy=st.booleans())
    def make(self, num_slots: int, slab: int, is_buddy: bool) -> None:
        self.slab = None if is_buddy else slab
        self.pool: ExtentPool = BuddyPool(num_slots) if is_buddy else SlabPool(num_slots, slab)
        self.is_held = [False] * num_slots
        self.extents: list[Extent] = []

    @rule(num_tokens=st.integers(1, 40))
    def take(self, num_tokens: int) -> None:
        size = self.slab or 2 ** len(f"{num_tokens - 1:b}" if num_tokens > 1 else "")
        possible = [] if num_tokens > size else self._free_runs(size)
        extent = self.pool.try_take(num_tokens)
        assert (extent is not None) == bool(possible)
        if extent is None:
            return
        assert extent.size == size
        assert extent.start - 1 in possible
        self._mark(extent, held=True)
        self.extents.append(extent)

    @precondition(lambda self: self.extents)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        extent = self.extents.pop(data.draw(st.integers(0, len(self.extents) - 1)))
        self.pool.give_back(extent)
        self._mark(extent, held=False)

    @invariant()
    def pool_and_list_agree(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_invariants()
        free = [number for number, held in enumerate(self.is_held, start=1) if not held]
        assert self.pool.free_blocks() == free
        assert self.pool.num_free == len(free)
        assert self.pool.num_used == self.is_held.count(True)
        sizes = [self.slab] if self.slab else [2**order for order in range(8)]
        assert self.pool.largest_free == max((size for size in sizes if self._free_runs(size)), default=0)

    def _free_runs(self, size: int) -> list[int]:
        """Offsets, multiples of a size, at which so many slots are free."""
        offsets = range(0, len(self.is_held) - size + 1, size)
        return [offset for offset in offsets if not any(self.is_held[offset : offset + size])]

    def _mark(self, extent: Extent, *, held: bool) -> None:
        for slot in range(extent.start, extent.end):
            assert self.is_held[slot - 1] != held
            self.is_held[slot - 1] = held


TestExtentPool = ExtentPoolMachine.TestCase
TestExtentPool.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
