"""Slots that are set aside and hold nothing: as it is now, and under two older allocators with the same requests."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvengine.telemetry.schema import Hello, RequestState, Status

_HOLDS_TOKENS = ("full", "mla", "sliding_window", "chunked_local")
"""Kinds of groups whose blocks are made of one slot for each token."""
_RESERVING = ("contiguous", "buddy")
"""Allocators that hold slots for tokens which have not come, beyond what a block table lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What one way of handing out slots does with the requests of now."""

    allocated_slots: int
    wasted_slots: int
    """Of those, the ones without a token in them."""
    num_fitting: int
    """How many of the requests the pool would hold at once."""

    @property
    def wasted_fraction(self) -> float | None:
        """Wasted over allocated; None when nothing is allocated."""
        return self.wasted_slots / self.allocated_slots if self.allocated_slots else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """The running requests under the engine's own allocator, and under two that share nothing between requests."""

    num_requests: int
    num_tokens: int
    """Tokens that they have in the cache, those of shared blocks counted for each."""
    now: Allocation
    """What the engine really holds: blocks or pages, the last of each request in part empty, shared ones counted once;
    or all that was reserved."""
    contiguous: Allocation
    """A slab of the longest length for each request."""
    buddy: Allocation
    """A slab of the next power of two for each request."""
    contiguous_slab: int
    """Slots of a slab of the longest length."""


def waste_now(facts: Hello, requests: Sequence[RequestState], num_in_use: int) -> Waste:
    """Compare the allocators on what runs now.

    Args:
        facts: Geometry of the pool.
        requests: The unfinished ones.
        num_in_use: Blocks that any of them holds.
    """
    running = [request for request in requests if request.status is Status.RUNNING and request.num_computed_tokens]
    lengths = [request.num_computed_tokens for request in running]
    num_slots = (facts.num_blocks - 1) * facts.block_size
    slab = facts.max_model_len
    return Waste(
        num_requests=len(running),
        num_tokens=sum(lengths),
        now=_reserved(facts, lengths, num_in_use)
        if facts.allocator in _RESERVING
        else _paged(facts, running, num_in_use),
        contiguous=Allocation(
            allocated_slots=slab * len(lengths),
            wasted_slots=sum(slab - length for length in lengths),
            num_fitting=min(num_slots // slab, len(lengths)),
        ),
        buddy=_buddy(lengths, num_slots),
        contiguous_slab=slab,
    )


def _paged(facts: Hello, running: Sequence[RequestState], num_in_use: int) -> Allocation:
    group, block_size = _token_group(facts)
    tables = [(request.tables[group] if group else request.block_table) for request in running]
    unused_by_tail: dict[int, int] = {}
    for request, table in zip(running, tables, strict=True):
        if table and table[-1]:
            unused = max(len(table) * block_size - request.num_computed_tokens, 0)
            # Of several that share a last block, the longest fills it furthest.
            unused_by_tail[table[-1]] = min(unused, unused_by_tail.get(table[-1], unused))
    num_blocks = len(set().union(*tables) - {0}) if facts.groups else num_in_use
    return Allocation(
        allocated_slots=num_blocks * block_size,
        wasted_slots=sum(unused_by_tail.values()),
        num_fitting=len(running),
    )


def _reserved(facts: Hello, lengths: Sequence[int], num_in_use: int) -> Allocation:
    held = num_in_use * facts.block_size
    return Allocation(allocated_slots=held, wasted_slots=held - sum(lengths), num_fitting=len(lengths))


def _token_group(facts: Hello) -> tuple[int, int]:
    """Index and block size of the first group that has a slot for each token."""
    for index, group in enumerate(facts.groups):
        if group.kind in _HOLDS_TOKENS:
            return index, group.block_size
    return 0, facts.block_size


def _buddy(lengths: Sequence[int], num_slots: int) -> Allocation:
    slabs = [1 << (length - 1).bit_length() for length in lengths]
    taken = num_fitting = 0
    for slab in slabs:
        taken += slab
        num_fitting += taken <= num_slots
    return Allocation(allocated_slots=sum(slabs), wasted_slots=sum(slabs) - sum(lengths), num_fitting=num_fitting)
