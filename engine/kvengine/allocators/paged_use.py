"""What the paged manager makes of its memory."""

from collections.abc import Iterable, Sequence

from kvengine.allocators.memory_use import MemoryUse
from kvengine.block_pool import BlockId, BlockPool

INDEX_ENTRY_BYTES = 4
CACHE_ENTRY_BYTES = 36
"""A digest of 32 bytes and a block id."""


def paged_use(
    tables: Iterable[tuple[Sequence[BlockId], int]],
    *,
    pinned: Sequence[tuple[Sequence[BlockId], int]] = (),
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
    held = [(block_ids[-1], len(block_ids), num_tokens) for block_ids, num_tokens in tables if block_ids]
    num_entries = sum([num_blocks for _, num_blocks, _ in held])
    internal = num_entries * block_size - sum([num_tokens for _, _, num_tokens in held])
    held += [(block_ids[-1], len(block_ids), num_tokens) for block_ids, num_tokens in pinned if block_ids]
    if pinned or len({last for last, _, _ in held}) < len(held):
        unused_by_block: dict[int, int] = {}
        for last, num_blocks, num_tokens in held:
            unused = num_blocks * block_size - num_tokens
            unused_by_block[last] = min(unused, unused_by_block.get(last, unused))
        internal = sum(unused_by_block.values())
    return MemoryUse(
        total=pool.num_usable * block_size,
        used=pool.num_used * block_size - internal,
        pending=0,
        reserved=0,
        internal=internal,
        external=0,
        index_bytes=num_entries * INDEX_ENTRY_BYTES + num_cached * CACHE_ENTRY_BYTES,
    )
