"""What one scheduling step decided: the hand-over from scheduler to model runner."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvengine.request import Request, RequestId


class ScheduledRequest(NamedTuple):
    """One request's part of a step: tokens `start .. start + num_tokens - 1` are computed."""

    request: Request
    start: int
    """Tokens already in the cache: the position of the first token computed in this step."""
    num_tokens: int
    block_ids: Sequence[int]
    """The whole block table, logical to physical; the scheduler's own list, not to be kept or changed. With several KV
    cache groups that of the first; see `SchedulerOutput.group_blocks`."""
    new_block_ids: Sequence[int]
    """Blocks taken from the free queue for this request in this step; prefix hits are not among them. With several KV
    cache groups those of the first."""

    @property
    def samples(self) -> bool:
        """Whether this step reaches the last known token, so that the next one is sampled."""
        return self.start + self.num_tokens >= self.request.num_tokens

    @property
    def sampled_ids(self) -> tuple[RequestId, ...]:
        """Whose next tokens are sampled from the last position: its own, and with the first token of parallel sampling
        those of the sequences that part from it there; none if the step does not reach the last known token."""
        if not self.samples:
            return ()
        request = self.request
        return (request.request_id, *request.sample_ids) if request.is_to_be_sampled_from else (request.request_id,)

    @property
    def num_drafts(self) -> int:
        """How many of the tokens are drafts behind the known ones; until the step is taken in by `update`."""
        return max(0, self.start + self.num_tokens - self.request.num_tokens)


class GroupBlocks(NamedTuple):
    """One scheduled request's blocks in every KV cache group."""

    tables: Sequence[Sequence[int]]
    """One for each group, logical to physical: 0, the null block, where there is no block (any more). The scheduler's
    own lists, not to be kept or changed; a table grows at its end, and at a position of it a block may be replaced by
    the null block, or by its copy (see `SchedulerOutput.block_copies`)."""
    new_block_ids: Sequence[Sequence[int]]
    """For each group, blocks taken from the free queue in this step; a 0 is a null block appended to the table."""


class Admission(NamedTuple):
    """A request that entered the running list in this step."""

    request_id: RequestId
    num_cached_tokens: int
    """Tokens found in the prefix cache."""
    resumed: bool
    """It ran before and had been preempted."""


class SwapMove(NamedTuple):
    """A block whose content moves between device and host."""

    source: int
    destination: int


class Swap(NamedTuple):
    """What moves of a request that is swapped out or in."""

    request_id: RequestId
    num_tokens: int
    """Tokens that it has computed, and keeps."""
    moves: Sequence[SwapMove]
    """From device to host blocks, or back. Blocks that it shares on the device are not among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOutput:
    """One step: what to compute, and what happened while deciding it."""

    step: int
    scheduled: Sequence[ScheduledRequest]
    """Running requests in running order, then the newly admitted in order of admission."""
    admitted: Sequence[Admission]
    """First-time admissions first, then resumed ones."""
    preempted: Sequence[RequestId]
    """In order of preemption."""
    block_copies: Sequence[tuple[int, int]]
    """(source, destination) blocks to copy on the device before the forward pass, one pair after another: what one pair
    writes may be the source of a later one. See `independent_copies`."""
    num_tokens: int
    """All tokens scheduled."""
    rewritten: Collection[RequestId] = ()
    """Scheduled requests whose tables may differ from those of their last step before its end, besides the admitted."""
    group_blocks: Sequence[GroupBlocks] = ()
    """One for each of `scheduled`, in the same order, where there are several KV cache groups; else empty."""
    swapped_out: Sequence[Swap] = ()
    """Moves to the host, which run before all else of the step: their sources may be written in it already."""
    swapped_in: Sequence[Swap] = ()
    """Moves back to the device, which run after those to the host and before `block_copies`."""

    @property
    def moves_out(self) -> list[tuple[int, int]]:
        """(device block, host block) of all that moves to the host."""
        return [(move.source, move.destination) for swap in self.swapped_out for move in swap.moves]

    @property
    def moves_in(self) -> list[tuple[int, int]]:
        """(host block, device block) of all that moves back."""
        return [(move.source, move.destination) for swap in self.swapped_in for move in swap.moves]

    @property
    def is_work(self) -> bool:
        """Whether the device has anything to do."""
        return bool(self.scheduled or self.block_copies or self.swapped_out or self.swapped_in)

    @property
    def independent_copies(self) -> list[tuple[int, int]]:
        """The block copies with a result that does not depend on their order: each reads what nothing overwrites.

        [(4, 7), (7, 9)] becomes [(4, 7), (4, 9)]. A block is written once, and never after it was read.
        """
        origin: dict[int, int] = {}
        for source, destination in self.block_copies:
            origin[destination] = origin.get(source, source)
        return [(source, destination) for destination, source in origin.items()]
