from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvengine.block_pool import BlockId
from kvengine.prefix_cache import BlockKey, PrefixCache

NUM_BLOCKS = 8
LENGTHS = {BlockKey(b"v"): 2, BlockKey(b"w"): 4, BlockKey(b"x"): 4, BlockKey(b"y"): 8, BlockKey(b"z"): 12}
"""Tokens of the prefix that each key names."""
KEYS = list(LENGTHS)


class PrefixCacheMachine(RuleBasedStateMachine):
    """Entering, moving and forgetting blocks in any order agrees with one list of entries in order of entry."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(NUM_BLOCKS)
        self.entries: list[tuple[BlockKey, BlockId]] = []

    @rule(block=st.integers(1, NUM_BLOCKS - 1), key=st.sampled_from(KEYS))
    def add(self, block: int, key: BlockKey) -> None:
        """A block holds one prefix and its beginnings, so no two of its keys are for the same length."""
        owned = self._keys_of(BlockId(block))
        if any(LENGTHS[other] == LENGTHS[key] for other in owned - {key}):
            return
        self.cache.add(BlockId(block), key, LENGTHS[key])
        self._enter(BlockId(block), key)

    @rule(first=st.integers(1, NUM_BLOCKS - 2))
    def insert_full_blocks(self, first: int) -> None:
        blocks = [BlockId(first), BlockId(first + 1)]
        lengths = zip(blocks, (8, 12), strict=True)
        if any(LENGTHS[key] >= length for block, length in lengths for key in self._keys_of(block)):
            return
        self.cache.insert(blocks, [BlockKey(b"y"), BlockKey(b"z")], first_length=8, block_size=4)
        for block, key in zip(blocks, (BlockKey(b"y"), BlockKey(b"z")), strict=True):
            self._enter(block, key)

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.entries))[1]
        self.entries = [entry for entry in self.entries if entry[1] != block]
        self.cache.discard([block])

    @rule(block=st.integers(1, NUM_BLOCKS - 1), length=st.integers(0, 12))
    def discard_longer(self, block: int, length: int) -> None:
        is_left = self.cache.discard_longer(BlockId(block), length)
        self.entries = [entry for entry in self.entries if entry[1] != block or LENGTHS[entry[0]] <= length]
        assert is_left == bool(self._keys_of(BlockId(block)))

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), destination=st.integers(1, NUM_BLOCKS - 1))
    def move(self, data: st.DataObject, destination: int) -> None:
        source = data.draw(st.sampled_from(self.entries))[1]
        if self._keys_of(BlockId(destination)):
            return
        moved = sorted(self._keys_of(source), key=LENGTHS.__getitem__, reverse=True)
        self.entries = [entry for entry in self.entries if entry[1] != source]
        self.entries += [(key, BlockId(destination)) for key in moved]
        self.cache.move(source, BlockId(destination))

    @invariant()
    def the_first_entry_is_found(self) -> None:
        self.cache.check_invariants()
        for key in KEYS:
            assert self.cache.find(key) == next((block for entered, block in self.entries if entered == key), None)
        for block in map(BlockId, range(1, NUM_BLOCKS)):
            assert self.cache.entries_of(block) == {key: LENGTHS[key] for key in self._keys_of(block)}

    @invariant()
    def a_prefix_ends_at_the_first_miss(self) -> None:
        found = self.cache.find_prefix(KEYS, 3)
        known = {entered for entered, _ in self.entries}
        expected = next((index for index, key in enumerate(KEYS[:3]) if key not in known), 3)
        assert len(found) == expected

    def _keys_of(self, block: BlockId) -> set[BlockKey]:
        return {key for key, owner in self.entries if owner == block}

    def _enter(self, block: BlockId, key: BlockKey) -> None:
        owned = self._keys_of(block)
        if key in owned:
            return
        if all(LENGTHS[other] < LENGTHS[key] for other in owned):
            self.entries = [entry for entry in self.entries if entry[1] != block]
        self.entries.append((key, block))


TestPrefixCache = PrefixCacheMachine.TestCase
