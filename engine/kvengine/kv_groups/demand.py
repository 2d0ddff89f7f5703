"""How many blocks a request may need at a time when it has the pool to itself."""

from collections.abc import Iterator
from math import lcm

from kvengine.config import EngineConfig
from kvengine.kv_groups.kinds import (
    ChunkedLocal,
    CrossAttention,
    FullAttention,
    GroupKind,
    LinearState,
    SlidingWindow,
    StateMode,
)
from kvengine.kv_groups.sizes import GroupSizes
from kvengine.request import Request
from kvengine.units import cdiv


def most_blocks_at_a_time(request: Request, config: EngineConfig, sizes: GroupSizes, num_tokens: int) -> int:
    """Most blocks that a request may need in one step, all groups together.

    It counts any chunk of a prefill, wherever it begins: after a preemption or a prefix hit the tokens are computed in
    other chunks than the first time. Where admission asks for blocks for all known tokens, that counts too.

    Args:
        request: The request.
        config: What the engine is built from.
        sizes: Its groups.
        num_tokens: Tokens that are computed for it in the end, its outputs included.
    """
    needed = max(_blocks_in_chunk(request, config, sizes, *chunk) for chunk in _chunks(config, sizes, num_tokens))
    if config.reserves_whole_prompts:
        needed = max(needed, _blocks_at_gate(request, config, sizes, num_tokens))
    return needed


def _chunks(config: EngineConfig, sizes: GroupSizes, num_tokens: int) -> Iterator[tuple[int, int]]:
    """Tokens before and after a chunk, for the chunks that can need most.

    That is the longest ones, as far back from the last one as the pattern of what is given back repeats; and of those
    the ones after which some group has just begun a block.
    """
    limits = config.scheduler
    length = min(limits.max_num_batched_tokens, num_tokens)
    period = lcm(*sizes.block_sizes, *(group.chunk for group in sizes.groups if isinstance(group, ChunkedLocal)))
    last = num_tokens - length
    first = max(0, last - period)
    for start in range(first, last + 1):
        num_slots = start + length + limits.num_lookahead_tokens
        if start in (first, last) or any((num_slots - 1) % size == 0 for size in sizes.block_sizes):
            yield start, start + length


def _blocks_in_chunk(request: Request, config: EngineConfig, sizes: GroupSizes, start: int, end: int) -> int:
    limits = config.scheduler
    num_blocks = 0
    for group, size in zip(sizes.groups, sizes.block_sizes, strict=True):
        if isinstance(group, LinearState) and group.mode is StateMode.ALIGN:
            # The state that a chunk writes, and the one that it, or a shorter one, starts from in another block.
            num_blocks += 2 if end > size else 1
        else:
            slots = _slots(group, request, min(end + limits.num_lookahead_tokens, limits.max_model_len))
            num_blocks += cdiv(slots, size) - _first_needed(group, start) // size
        if sizes.partial_hits and isinstance(group, FullAttention | LinearState):
            num_blocks += 1  # a private copy of a shared block, or a state saved for the cache
    return num_blocks


def _blocks_at_gate(request: Request, config: EngineConfig, sizes: GroupSizes, num_tokens: int) -> int:
    """Blocks that admission asks for on behalf of so many tokens."""
    limits = config.scheduler
    num_blocks = 0
    for group, size in zip(sizes.groups, sizes.block_sizes, strict=True):
        needed = cdiv(_slots(group, request, num_tokens), size)
        match group:
            case SlidingWindow():
                tokens = min(group.window - 1 + limits.max_num_batched_tokens, limits.max_model_len)
                needed = min(needed, cdiv(tokens, size) + 1)
            case ChunkedLocal():
                tokens = min(group.chunk + limits.max_num_batched_tokens, limits.max_model_len)
                needed = min(needed, cdiv(tokens, size))
            case LinearState():
                needed = 1
        num_blocks += needed
    return num_blocks


def _slots(group: GroupKind, request: Request, num_tokens: int) -> int:
    return request.num_encoder_tokens if isinstance(group, CrossAttention) else num_tokens


def _first_needed(group: GroupKind, num_computed: int) -> int:
    match group:
        case SlidingWindow():
            return max(0, num_computed - group.window + 1)
        case ChunkedLocal():
            return num_computed // group.chunk * group.chunk
        case _:
            return 0
