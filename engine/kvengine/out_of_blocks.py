"""What to say when there are not enough blocks: what was asked, what is free or evictable, and who holds the rest."""

from kvengine.allocators.protocol import KVView, SlotBook
from kvengine.block_pool import BlockPool
from kvengine.errors import CapacityError
from kvengine.kv_cache_manager import KVCacheManager


def out_of_blocks(asked: str, kv_cache: KVView, *, num_running: int, hint: str = "") -> CapacityError:
    """Make the error.

    Args:
        asked: What was asked, as a clause: `request 'a' needs 5 blocks of 16`.
        kv_cache: The memory.
        num_running: Requests that hold blocks.
        hint: What would help.
    """
    return CapacityError(f"{asked}; {blocks_in_words(kv_cache, num_running=num_running)}", hint=hint)


def blocks_in_words(kv_cache: KVView, *, num_running: int) -> str:
    """Where the blocks are: `3 of 8 usable blocks are free, 2 of them evictable, and 5 are held by 1 request`."""
    pool = kv_cache.pool
    holders = f"{num_running} request{'' if num_running == 1 else 's'}"
    parts = [f"{pool.num_free} of {pool.num_usable} usable blocks are free, {_num_evictable(pool)} of them evictable"]
    num_pinned = num_kept = 0
    if isinstance(kv_cache, KVCacheManager):
        num_pinned = len(kv_cache.pinned_blocks)
        num_kept = len(set(kv_cache.swap_space.held_blocks())) if kv_cache.swap_space is not None else 0
    if num_pinned:
        parts.append(f"{num_pinned} are pinned by transfers")
    if num_kept:
        parts.append(f"{num_kept} are kept by swapped-out requests")
    if isinstance(pool, BlockPool) and pool.num_withheld:
        parts.append(f"{pool.num_withheld} more are withheld")
    return ", ".join([*parts, f"and {pool.num_used} are held by {holders}"])


def _num_evictable(pool: SlotBook) -> int:
    if isinstance(pool, BlockPool):
        return pool.num_evictable
    return sum(map(pool.is_cached, pool.free_blocks()))
