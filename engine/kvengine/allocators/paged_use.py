"""What the paged manager makes of its memory."""

from collections.abc import Iterable, Sequence

from kvengine.allocators.memory_use import MemoryUse
from kvengine.block_pool import BlockPool

INDEX_ENTRY_BYTES = 4
CACHE_ENTRY_BYTES = 36
"""A digest of 32 bytes and a block id."""


def paged_use(
    tables: Iterable[tuple[Sequence[int], int]],
    *,
    pinned: Sequence[tuple[Sequence[int], int]] = (),
    pool: BlockPool,
    block_size: int,
    num_cached: int,
) -> MemoryUse:
    """Where all slots of a block pool are.

    A block that several requests end in counts as filled as far as the longest of them goes.

    Args:
        tables: The block table of every running request, and its tokens in the cache.
        pinned: Block table and tokens of every transfer, which keeps them when their request is gone.
        pool: The blocks.
        block_size: Tokens of each.
        num_cached: Entries of the prefix cache.
    """
    held = [pair for pair in tables if pair[0]]
    num_entries = sum([len(block_ids) for block_ids, _ in held])
    internal = num_entries * block_size - sum([num_tokens for _, num_tokens in held])
    if pinned or len({block_ids[-1] for block_ids, _ in held}) < len(held):
        internal = _unused_once([*held, *(pair for pair in pinned if pair[0])], block_size)
    return MemoryUse(
        total=pool.num_usable * block_size,
        used=pool.num_used * block_size - internal,
        pending=0,
        reserved=0,
        internal=internal,
        external=0,
        index_bytes=num_entries * INDEX_ENTRY_BYTES + num_cached * CACHE_ENTRY_BYTES,
    )


def _unused_once(held: Iterable[tuple[Sequence[int], int]], block_size: int) -> int:
    """Empty slots of last blocks, one that several end in once."""
    unused_by_block: dict[int, int] = {}
    for block_ids, num_tokens in held:
        unused = len(block_ids) * block_size - num_tokens
        unused_by_block[block_ids[-1]] = min(unused, unused_by_block.get(block_ids[-1], unused))
    return sum(unused_by_block.values())
