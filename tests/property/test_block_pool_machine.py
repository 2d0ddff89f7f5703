from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvengine.block_pool import BlockId, BlockPool
from kvengine.eviction_policies import EvictionPolicy
from tests.builders import a_pool
from tests.plain_eviction import PlainUses


class BlockPoolMachine(RuleBasedStateMachine):
    """Any order of taking, sharing, caching, withholding and releasing agrees with one plain list of free blocks."""

    @initialize(
        num_blocks=st.integers(2, 14),
        uncached_first=st.sampled_from([True, True, False]),
        policy=st.sampled_from([EvictionPolicy.LRU] * 3 + [*EvictionPolicy]),
    )
    def build(self, num_blocks: int, uncached_first: bool, policy: EvictionPolicy) -> None:
        self.evicted: list[BlockId] = []
        self.uncached_first = uncached_first or policy is not EvictionPolicy.LRU
        self.pool: BlockPool = a_pool(
            num_blocks=num_blocks, evicted=self.evicted, uncached_first=self.uncached_first, policy=policy
        )
        self.uses = PlainUses(policy, num_blocks)
        self.withheld: list[int] = []
        self.num_to_withhold = 0
        self.pool.track_changes()
        self.free_queue = list(range(1, num_blocks))
        self.owners = dict.fromkeys(range(num_blocks), 0)
        self.cached: set[int] = set()
        self.tables: list[list[BlockId]] = []
        self.seen: dict[int, tuple[int, bool]] = {}

    @rule(count=st.integers(0, 6))
    def allocate(self, count: int) -> None:
        del self.evicted[:]
        taken = self.pool.try_allocate(count)
        if count > len(self.free_queue):
            assert taken is None
            return
        expected = self.free_order()[:count]
        self.free_queue = [block for block in self.free_queue if block not in expected]
        for block in expected:
            self.uses.taken(block)
        assert taken == expected
        assert self.evicted == [block for block in expected if block in self.cached]
        self.cached -= set(expected)
        self.owners.update(dict.fromkeys(expected, 1))
        self.tables.append(taken)

    @rule(data=st.data())
    def share_cached_blocks(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(sorted(self.cached)), unique=True)) if self.cached else []
        self.pool.share([BlockId(block) for block in blocks])
        self.pool.note_hits([BlockId(block) for block in blocks])
        for block in blocks:
            self.owners[block] += 1
            self.uses.hits[block] += 1
            self.uses.taken(block)
        self.free_queue = [block for block in self.free_queue if block not in blocks]
        self.tables.append([BlockId(block) for block in blocks])

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), priority=st.integers(-1, 2))
    def free_a_table(self, data: st.DataObject, priority: int) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.note_holder(table, priority)
        self.pool.free(table)
        for block in table:
            self.uses.hold(block, priority)
        self._release(table[::-1])

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free_several_tables_in_one_order(self, data: st.DataObject) -> None:
        """A block may be listed once for each of its owners."""
        count = data.draw(st.integers(1, len(self.tables)))
        blocks = data.draw(st.permutations([block for table in self.tables[:count] for block in table]))
        del self.tables[:count]
        self.pool.free_in_order(blocks)
        self._release(blocks)

    @precondition(lambda self: any(self.owners.values()))
    @rule(data=st.data(), cached=st.booleans())
    def change_whether_owned_blocks_are_cached(self, data: st.DataObject, cached: bool) -> None:
        owned = [block for block, count in self.owners.items() if count and (block in self.cached) != cached]
        blocks = data.draw(st.lists(st.sampled_from(owned), unique=True)) if owned else []
        if cached:
            self.uses.enter(blocks)
        change = self.pool.mark_cached if cached else self.pool.unmark_cached
        change([BlockId(block) for block in blocks])
        self.cached = self.cached | set(blocks) if cached else self.cached - set(blocks)

    @rule(share=st.floats(0, 1))
    def withhold(self, share: float) -> None:
        count = int(share * (self.pool.num_blocks - 1))
        del self.evicted[:]
        self.pool.withhold(count)
        while len(self.withheld) > count:
            self.free_queue.insert(0, self.withheld.pop())
        self.num_to_withhold = count - len(self.withheld)
        self._withhold()

    @rule()
    def read_the_journal(self) -> None:
        """Whatever changed since the last reading is in the journal."""
        changed = set(self.pool.take_changes())
        state = {block: (count, block in self.cached) for block, count in self.owners.items()}
        assert {block for block in state if self.seen.get(block, (0, False)) != state[block]} <= changed
        self.seen = state
        assert self.pool.take_changes() == []

    def _release(self, blocks: list[BlockId]) -> None:
        head: list[int] = []
        tail: list[int] = []
        for block in blocks:
            self.owners[block] -= 1
            if not self.owners[block]:
                is_first = self.uncached_first and block not in self.cached
                (head if is_first else tail).append(block)
        self.free_queue = head + self.uses.freed(self.free_queue, tail)
        self._withhold()

    def _withhold(self) -> None:
        while self.num_to_withhold and self.free_queue:
            block = self.free_order()[0]
            self.free_queue.remove(block)
            self.uses.taken(block)
            self.cached.discard(block)
            self.withheld.append(block)
            self.num_to_withhold -= 1

    def free_order(self) -> list[int]:
        if self.uses.policy is EvictionPolicy.LRU:
            return self.free_queue
        uncached = [block for block in self.free_queue if block not in self.cached]
        return uncached + self.uses.order([block for block in self.free_queue if block in self.cached])

    @invariant()
    def books_agree(self) -> None:
        self.pool.check_invariants()
        assert self.pool.free_blocks() == self.free_order()
        assert (self.pool.num_withheld, self.pool.num_to_withhold) == (len(self.withheld), self.num_to_withhold)
        assert [block for block in self.owners if self.pool.is_withheld(BlockId(block))] == sorted(self.withheld)
        assert self.pool.num_usable == self.pool.num_blocks - 1 - len(self.withheld)
        assert self.pool.num_evictable == len(set(self.free_queue) & self.cached)
        assert (self.pool.num_free, self.pool.num_used) == (
            len(self.free_queue),
            self.pool.num_usable - len(self.free_queue),
        )
        for block, count in self.owners.items():
            assert self.pool.ref_count(BlockId(block)) == count
            assert self.pool.is_cached(BlockId(block)) == (block in self.cached)


TestBlockPool = BlockPoolMachine.TestCase
