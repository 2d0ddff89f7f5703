from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvengine.block_pool import BlockId
from kvengine.prefix_cache import BlockKey, PrefixCache

NUM_BLOCKS = 8
HASHES = [BlockKey(name.encode()) for name in "wxyz"]


class PrefixCacheMachine(RuleBasedStateMachine):
    """Entering and forgetting blocks in any order agrees with one list of entries in order of entry."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(NUM_BLOCKS)
        self.entries: list[tuple[BlockKey, BlockId]] = []

    @rule(block=st.integers(1, NUM_BLOCKS - 1), block_hash=st.sampled_from(HASHES))
    def insert(self, block: int, block_hash: BlockKey) -> None:
        if all(entered != block for _, entered in self.entries):
            self.cache.insert([BlockId(block)], [block_hash], first_length=4, block_size=4)
            self.entries.append((block_hash, BlockId(block)))

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        _, block = self.entries.pop(data.draw(st.integers(0, len(self.entries) - 1)))
        self.cache.discard([block])

    @invariant()
    def the_first_entry_is_found(self) -> None:
        self.cache.check_invariants()
        for block_hash in HASHES:
            expected = next((block for entered, block in self.entries if entered == block_hash), None)
            assert self.cache.find(block_hash) == expected

    @invariant()
    def a_prefix_ends_at_the_first_miss(self) -> None:
        found = self.cache.find_prefix(HASHES, 3)
        known = {entered for entered, _ in self.entries}
        expected = next((index for index, block_hash in enumerate(HASHES[:3]) if block_hash not in known), 3)
        assert len(found) == expected


TestPrefixCache = PrefixCacheMachine.TestCase
