"""What each kind of group can start from: the cached blocks of a prefix, and how far they reach."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, cast

from kvengine.block_pool import NULL_BLOCK, BlockId
from kvengine.kv_groups.kinds import ChunkedLocal, FullAttention, GroupKind, LinearState, SlidingWindow
from kvengine.kv_groups.sizes import GroupSizes
from kvengine.prefix_cache import BlockHash, BlockKey, PrefixCache, group_suffix
from kvengine.units import cdiv


class Found(NamedTuple):
    """A cached prefix of some groups."""

    tables: list[list[BlockId]]
    """One for each group: its blocks by position; the null block stands where none is needed."""
    num_tokens: int


class Lookup(ABC):
    """Searches for groups of one kind and size, which count only what all of them have.

    Args:
        cache: Where to search.
        members: The groups, by index.
        sizes: The spans of all groups.
    """

    def __init__(self, cache: PrefixCache, members: Sequence[int], sizes: GroupSizes) -> None:
        self.members = tuple(members)
        self._cache = cache
        self._suffixes = [group_suffix(member) for member in members]
        self._block_size = sizes.block_sizes[members[0]]
        self._alignment = sizes.hit_alignment
        self._unit = sizes.hash_unit
        self._units_per_block = self._block_size // sizes.hash_unit
        # The hashes are the keys then, one for each block.
        self._hashes_are_keys = self._suffixes == [b""] and self._units_per_block == 1

    @property
    def is_closed_downward(self) -> bool:
        """Whether every beginning of what was found serves too."""
        return False

    @abstractmethod
    def find(self, hashes: Sequence[BlockHash], limit: int) -> Found:
        """The longest usable prefix of at most `limit` tokens, a multiple of the hit alignment.

        Args:
            hashes: Of at least the whole units within `limit`.
            limit: Tokens.
        """

    def cut(self, found: Found, num_tokens: int) -> Found:
        """A shorter prefix of one that was found; only where every beginning serves."""
        assert self.is_closed_downward, "this kind of group must search again"
        num_blocks = cdiv(num_tokens, self._block_size)
        return Found([table[:num_blocks] for table in found.tables], num_tokens)

    def _at_unit(self, hashes: Sequence[BlockHash], unit: int) -> list[BlockId] | None:
        """Each group's block for the prefix that ends with a unit; None unless all have one."""
        blocks: list[BlockId] = []
        for suffix in self._suffixes:
            block = self._cache.find(BlockKey(hashes[unit] + suffix))
            if block is None:
                return None
            blocks.append(block)
        return blocks

    def _at_position(self, hashes: Sequence[BlockHash], position: int) -> list[BlockId] | None:
        """The same for the prefix that ends with the block at a position of the table."""
        return self._at_unit(hashes, (position + 1) * self._units_per_block - 1)

    def _ends_aligned(self, position: int) -> bool:
        return (position + 1) * self._block_size % self._alignment == 0

    def _tables(self, by_position: Sequence[Sequence[BlockId] | None]) -> list[list[BlockId]]:
        """One table for each group from the blocks at each position; None stands for the null block."""
        nulls = [NULL_BLOCK] * len(self.members)
        rows = [nulls if blocks is None else blocks for blocks in by_position]
        return [[blocks[index] for blocks in rows] for index in range(len(self.members))]


class FullLookup(Lookup):
    """From left to right to the first miss; then inside that block from its longest beginning to the shortest."""

    @property
    def is_closed_downward(self) -> bool:
        """What serves a prefix serves its beginnings."""
        return True

    def find(self, hashes: Sequence[BlockHash], limit: int) -> Found:
        """See `Lookup.find`."""
        tables = self._whole_blocks(hashes, limit // self._block_size)
        num_tokens = len(tables[0]) * self._block_size
        if self._alignment < self._block_size:
            return self._extend_into_block(Found(tables, num_tokens), hashes, limit)
        aligned = num_tokens // self._alignment * self._alignment
        found = Found(tables, num_tokens)
        return found if aligned == num_tokens else self.cut(found, aligned)

    def _whole_blocks(self, hashes: Sequence[BlockHash], max_blocks: int) -> list[list[BlockId]]:
        if self._hashes_are_keys:
            return [self._cache.find_prefix(cast("Sequence[BlockKey]", hashes), max_blocks)]
        by_position: list[list[BlockId]] = []
        for position in range(max_blocks):
            blocks = self._at_position(hashes, position)
            if blocks is None:
                break
            by_position.append(blocks)
        return self._tables(by_position)

    def _extend_into_block(self, found: Found, hashes: Sequence[BlockHash], limit: int) -> Found:
        first = found.num_tokens // self._unit
        last = min(first + self._units_per_block - 1, limit // self._unit)
        for unit in range(last - 1, first - 1, -1):
            blocks = self._at_unit(hashes, unit)
            if blocks is not None:
                tables = [[*table, block] for table, block in zip(found.tables, blocks, strict=True)]
                return Found(tables, (unit + 1) * self._unit)
        return found


class WindowLookup(Lookup):
    """From right to left to the first run of blocks that covers a window and ends on the alignment.

    A shorter run counts only if it reaches back to the first token. Nothing before the run is needed.
    """

    def __init__(self, cache: PrefixCache, members: Sequence[int], sizes: GroupSizes, kind: SlidingWindow) -> None:
        super().__init__(cache, members, sizes)
        self._num_needed = cdiv(kind.window - 1, self._block_size)

    def find(self, hashes: Sequence[BlockHash], limit: int) -> Found:
        """See `Lookup.find`."""
        run: list[list[BlockId]] = []
        """Of consecutive positions, the last first."""
        for position in range(limit // self._block_size - 1, -1, -1):
            blocks = self._at_position(hashes, position)
            if blocks is None:
                run.clear()
            elif run or self._ends_aligned(position):
                run.append(blocks)
                if len(run) >= self._num_needed:
                    return self._found(position, run)
        return self._found(0, run)

    def _found(self, first: int, run: list[list[BlockId]]) -> Found:
        by_position = [*[None] * first, *reversed(run)]
        return Found(self._tables(by_position), len(by_position) * self._block_size)


class ChunkLookup(Lookup):
    """Whole chunks before the one that the prefix ends in are granted without a look: nothing attends to them."""

    def __init__(self, cache: PrefixCache, members: Sequence[int], sizes: GroupSizes, kind: ChunkedLocal) -> None:
        super().__init__(cache, members, sizes)
        self._chunk = kind.chunk

    def find(self, hashes: Sequence[BlockHash], limit: int) -> Found:
        """See `Lookup.find`."""
        chunk_start = limit // self._chunk * self._chunk
        first = chunk_start // self._block_size
        by_position: list[list[BlockId] | None] = [None] * first
        for position in range(first, limit // self._block_size):
            blocks = self._at_position(hashes, position)
            if blocks is None:
                break
            by_position.append(blocks)
        num_tokens = len(by_position) * self._block_size
        if num_tokens < chunk_start:
            # The chunk begins inside a block that was not found: the prefix ends in the chunk before it.
            return self.find(hashes, num_tokens)
        return Found(self._tables(by_position), num_tokens)


class StateLookup(Lookup):
    """From right to left to the first state that ends on the alignment: it stands for all before it."""

    def find(self, hashes: Sequence[BlockHash], limit: int) -> Found:
        """See `Lookup.find`."""
        step = min(self._block_size, self._alignment)
        units_per_step = step // self._unit
        for index in range(limit // step - 1, -1, -1):
            num_tokens = (index + 1) * step
            if num_tokens % self._alignment:
                continue
            blocks = self._at_unit(hashes, (index + 1) * units_per_step - 1)
            if blocks is not None:
                position = (num_tokens - 1) // self._block_size
                return Found(self._tables([*[None] * position, blocks]), num_tokens)
        return Found(self._tables([]), 0)


def lookup_for(kind: GroupKind, cache: PrefixCache, members: Sequence[int], sizes: GroupSizes) -> Lookup:
    """The search of one kind of group."""
    match kind:
        case FullAttention():
            return FullLookup(cache, members, sizes)
        case SlidingWindow():
            return WindowLookup(cache, members, sizes, kind)
        case ChunkedLocal():
            return ChunkLookup(cache, members, sizes, kind)
        case LinearState():
            return StateLookup(cache, members, sizes)
        case _:
            raise AssertionError(f"a {kind.name} group has nothing cached")
