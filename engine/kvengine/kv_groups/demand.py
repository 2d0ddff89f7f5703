"""How many blocks a request holds at its peak when it has the pool to itself."""

from collections.abc import Iterator
from math import lcm

from kvengine.config import EngineConfig
from kvengine.kv_groups.chunk_ends import chunk_ends_for
from kvengine.kv_groups.kinds import ChunkedLocal, CrossAttention, GroupKind, LinearState, SlidingWindow, StateMode
from kvengine.kv_groups.sizes import GroupSizes
from kvengine.request import Request
from kvengine.units import cdiv

Step = tuple[int, int]
"""Tokens computed before and after a step."""


def peak_blocks(request: Request, config: EngineConfig, sizes: GroupSizes, num_tokens: int) -> int:
    """Most blocks that a request needs in one step, all groups together, without hits and without preemptions.

    Args:
        request: A request that has not been admitted yet.
        config: What the engine is built from.
        sizes: Its groups.
        num_tokens: Tokens that are computed for it in the end, its outputs included.
    """
    steps = [*_prefill_steps(request, config, sizes), *_decode_steps(request, config, sizes, num_tokens)]
    return max(_blocks_in_step(request, config, sizes, step) for step in steps)


def blocks_at_gate(request: Request, config: EngineConfig, sizes: GroupSizes, num_tokens: int) -> int:
    """Blocks that admission asks for on behalf of `num_tokens` tokens, if it asks for all that are known.

    For groups that give blocks back this is what any chunk of a prefill may hold, wherever it begins.
    """
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


def _prefill_steps(request: Request, config: EngineConfig, sizes: GroupSizes) -> Iterator[Step]:
    ends, budget = chunk_ends_for(sizes, config.scheduler), config.scheduler.max_num_batched_tokens
    start = 0
    while start < request.num_tokens:
        count = min(budget, request.num_tokens - start)
        if ends is not None:
            count = ends.shorten(request, start, count, junction=0)
        assert count > 0, f"{request.request_id} stops at token {start} although it is alone"
        yield start, start + count
        start += count


def _decode_steps(request: Request, config: EngineConfig, sizes: GroupSizes, num_tokens: int) -> Iterator[Step]:
    """The decode steps in which a table grows, as far back from the last one as the groups' patterns repeat."""
    chunks = [group.chunk for group in sizes.groups if isinstance(group, ChunkedLocal)]
    period = lcm(*sizes.block_sizes, *chunks)
    lookahead = config.scheduler.num_lookahead_tokens
    first = max(request.num_tokens, num_tokens - period)
    for start in range(first, num_tokens):
        if start in (first, num_tokens - 1) or any((start + lookahead) % size == 0 for size in sizes.block_sizes):
            yield start, start + 1


def _blocks_in_step(request: Request, config: EngineConfig, sizes: GroupSizes, step: Step) -> int:
    start, end = step
    limits = config.scheduler
    num_blocks = 0
    for group, size in zip(sizes.groups, sizes.block_sizes, strict=True):
        if isinstance(group, LinearState) and group.mode is StateMode.ALIGN:
            num_blocks += _states_in_step(request, sizes, size, step)
            continue
        slots = _slots(group, request, min(end + limits.num_lookahead_tokens, limits.max_model_len))
        num_blocks += cdiv(slots, size) - _first_needed(group, start) // size
    return num_blocks


def _states_in_step(request: Request, sizes: GroupSizes, size: int, step: Step) -> int:
    """The state a step starts from, if it is not in the block that the step writes, and one saved for the cache."""
    start, end = step
    prompt_end = (request.num_prompt_tokens - 1) // sizes.hash_unit * sizes.hash_unit
    is_saved = sizes.partial_hits and start == prompt_end > 0 and start % size != 0
    has_other_source = start > 0 and (start - 1) // size != (end - 1) // size
    return 1 + has_other_source + is_saved


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
