"""What the paged manager makes of its memory."""

from collections.abc import Iterable, Sequence

from kvengine.allocators.memory_use import MemoryUse
from kvengine.block_pool import BlockId, BlockPool

INDEX_ENTRY_BYTES = 4
CACHE_ENTRY_BYTES = 36
"""A digest of 32 bytes and a block id."""


def paged_use(
    tables: Iterable[tuple[Sequence[BlockId], int]], *, pool: BlockPool, block_size: int, num_cached: int
) -> MemoryUse:
    """Where all slots of a block pool are.

    A block that several requests end in counts as filled as far as the longest of them goes.

    Args:
        tables: The block table of every running request, and its tokens in the cache.
        pool: The blocks.
        block_size: Tokens of each.
        num_cached: Entries of the prefix cache.
    """
    unused_by_block: dict[int, int] = {}
    num_entries = 0
    for block_ids, num_tokens in tables:
        if not block_ids:
            continue
        last, num_blocks = block_ids[-1], len(block_ids)
        num_entries += num_blocks
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
