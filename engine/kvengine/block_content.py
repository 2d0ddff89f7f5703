"""What is in one block, for a viewer that asks: its tokens, and the hashes of its prefix."""

from collections.abc import Callable, Sequence

from kvengine.allocators.protocol import EngineScheduler
from kvengine.block_pool import BlockId
from kvengine.kv_cache_manager import KVCacheManager
from kvengine.request import Request
from kvengine.scheduler import Scheduler
from kvengine.telemetry.schema import BlockContent

TextOf = Callable[[Sequence[int]], str]
MAX_HASHES = 16
NOT_KEPT = "its tokens are not kept once nobody holds it"


def block_content(scheduler: EngineScheduler | None, block_id: int, text_of: TextOf | None) -> BlockContent:
    """Look into a block.

    Args:
        scheduler: Of the engine; None before its first step.
        block_id: Any number.
        text_of: Turns tokens into text, where that can be done.
    """
    if not isinstance(scheduler, Scheduler) or not isinstance(scheduler.kv_cache, KVCacheManager):
        return BlockContent(block_id=max(block_id, 0), note="this engine does not tell what is in its blocks")
    memory = scheduler.kv_cache
    if not 0 <= block_id < memory.pool.num_blocks:
        return BlockContent(block_id=max(block_id, 0), note=f"there is no block {block_id}")
    held = _holder_of(scheduler, memory, block_id)
    if held is None:
        key = memory.hash_of(BlockId(block_id))
        return BlockContent(block_id=block_id, hashes=[key] if key is not None else [], note=NOT_KEPT if key else "")
    request, group, index = held
    size = memory.sizes.block_sizes[group]
    tokens = request.all_token_ids[index * size : min((index + 1) * size, request.num_computed_tokens)]
    return BlockContent(
        block_id=block_id,
        token_ids=list(tokens),
        text=text_of(tokens) if text_of is not None else "",
        hashes=_hashes(memory, request, size, index) if len(tokens) == size else [],
    )


def _holder_of(scheduler: Scheduler, memory: KVCacheManager, block_id: int) -> tuple[Request, int, int] | None:
    """A running request that holds the block, the group, and the block's place in its table."""
    for request in scheduler.running:
        for group, table in enumerate(memory.group_tables(request.request_id)):
            if block_id and block_id in table:
                return request, group, list(table).index(BlockId(block_id))
    return None


def _hashes(memory: KVCacheManager, request: Request, size: int, index: int) -> list[bytes]:
    """The hash of the prefix that ends with each block, from this one backwards."""
    unit = memory.sizes.hash_unit
    hashes = memory.prefix_hashes(request, (index + 1) * size)
    ends = [(place + 1) * size // unit - 1 for place in range(index, max(index - MAX_HASHES, -1), -1)]
    return [hashes[end] for end in ends if end < len(hashes)]
