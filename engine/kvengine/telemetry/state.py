"""What a stream says, folded: the pool and every request after the last step seen."""

import zlib
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from kvengine.errors import TelemetryError
from kvengine.telemetry.schema import (
    REF_COUNT_SHIFT,
    Admitted,
    BlockFlag,
    Counters,
    Delta,
    End,
    Hello,
    Progress,
    RequestState,
    Snapshot,
    Status,
    Totals,
)

BlockCodes = NDArray[np.uint32]
BlockStates = NDArray[np.uint8]


class BlockState(IntEnum):
    """What a block is to a reader. Of many blocks drawn as one, the larger number matters more."""

    NULL = 0
    """The placeholder that is never handed out."""
    FREE = 1
    """Nobody holds it and its content is forgotten."""
    CACHED_FREE = 2
    """Nobody holds it; its content can be hit until it is evicted."""
    USED = 3
    """One request holds it."""
    SHARED = 4
    """Several requests hold it."""


def block_states(codes: BlockCodes) -> BlockStates:
    """The `BlockState` of each block code."""
    states: BlockStates = np.minimum(codes >> REF_COUNT_SHIFT, 2).astype(np.uint8)
    states += np.uint8(BlockState.CACHED_FREE)
    states[codes == 0] = BlockState.FREE
    states[codes & BlockFlag.NULL != 0] = BlockState.NULL
    return states


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSnapshot:
    """The state after one step, the same whether it comes from a running engine or a recording."""

    facts: Hello
    seq: int
    step: int
    time_s: float
    """Seconds since `facts.started_unix_s`."""
    totals: Totals
    counters: Counters
    block_codes: BlockCodes
    """By block id; not to be written to."""
    requests: tuple[RequestState, ...]
    """Unfinished ones, in order of arrival."""


class StreamState:
    """Folds snapshots and deltas, in the order of the stream, into the state that they describe.

    After a gap in the sequence numbers it keeps the last consistent state, and `lost` says so, until a snapshot comes.
    """

    def __init__(self, facts: Hello) -> None:
        self.facts = facts
        self.end: End | None = None
        self.lost = ""
        """What is missing, in words; empty while every frame has followed the one before."""
        self._last: Snapshot | Delta | None = None
        self._codes: BlockCodes = np.zeros(facts.num_blocks, dtype=np.uint32)
        self._requests: dict[int, _Request] = {}

    @property
    def is_started(self) -> bool:
        """Whether a snapshot has been seen."""
        return self._last is not None

    def apply(self, frame: Snapshot | Delta | End) -> bool:
        """Take the next frame.

        Returns:
            Whether the state is now the one after this frame; False for a delta that does not follow.

        Raises:
            TelemetryError: The frame contradicts the state or the facts.
        """
        if isinstance(frame, End):
            self.end = frame
            return True
        if isinstance(frame, Snapshot):
            self._start_from(frame)
        elif self._last is None or frame.seq != self._last.seq + 1 or self.lost:
            self.lost = self.lost or f"{self._describe_gap(frame)}, waiting for a snapshot"
            return False
        else:
            self._advance(frame)
        self._last = frame
        return True

    def freeze(self) -> StepSnapshot:
        """A copy of the state that later frames do not change."""
        last = self._last
        assert last is not None, "nothing to freeze before the first snapshot"
        codes = self._codes.copy()
        codes.flags.writeable = False
        return StepSnapshot(
            facts=self.facts,
            seq=last.seq,
            step=last.step,
            time_s=last.time_s,
            totals=last.totals,
            counters=last.counters,
            block_codes=codes,
            requests=tuple(request.freeze() for request in self._requests.values()),
        )

    def _describe_gap(self, delta: Delta) -> str:
        if self._last is None:
            return f"the stream begins with delta {delta.seq}"
        first, last = self._last.seq + 1, delta.seq - 1
        if last < first:
            return f"delta {delta.seq} came after {self._last.seq}"
        return f"delta {first} is missing" if first == last else f"deltas {first} to {last} are missing"

    def _start_from(self, snapshot: Snapshot) -> None:
        self._codes = _unpack_codes(snapshot.block_codes, self.facts.num_blocks)
        self._requests = {state.handle: _Request(state) for state in snapshot.requests}
        self.lost = ""

    def _advance(self, delta: Delta) -> None:
        requests = self._requests
        try:
            for state in delta.arrived:
                requests[state.handle] = _Request(state)
            for preempted in delta.preempted:
                requests[preempted.handle].preempt()
            for admitted in delta.admitted:
                requests[admitted.handle].admit(admitted)
            for finished in delta.finished:
                del requests[finished.handle]
            for progress in delta.progress:
                requests[progress.handle].advance(progress)
            self._codes[delta.blocks[::2]] = delta.blocks[1::2]
        except (KeyError, IndexError, ValueError) as error:
            raise TelemetryError(f"delta {delta.seq} speaks of a request or block that does not exist") from error


class _Request:
    """One unfinished request while it changes."""

    __slots__ = ("block_table", "first", "num_cached", "num_computed", "num_output", "num_preemptions", "status")

    def __init__(self, state: RequestState) -> None:
        self.first = state
        self.status = state.status
        self.num_output = state.num_output_tokens
        self.num_computed = state.num_computed_tokens
        self.num_cached = state.num_cached_tokens
        self.num_preemptions = state.num_preemptions
        self.block_table = state.block_table

    def admit(self, admitted: Admitted) -> None:
        self.status = Status.RUNNING
        self.num_cached = admitted.num_cached_tokens
        self.block_table = admitted.block_table

    def preempt(self) -> None:
        self.status = Status.PREEMPTED
        self.num_preemptions += 1
        self.num_computed = 0
        self.block_table = []

    def advance(self, progress: Progress) -> None:
        self.num_computed = progress.num_computed_tokens
        self.num_output = progress.num_output_tokens
        if progress.new_blocks:
            # A new list, so that the tables handed out by `freeze` stay as they were.
            self.block_table = self.block_table + progress.new_blocks

    def freeze(self) -> RequestState:
        return RequestState(
            handle=self.first.handle,
            request_id=self.first.request_id,
            status=self.status,
            num_prompt_tokens=self.first.num_prompt_tokens,
            max_tokens=self.first.max_tokens,
            num_output_tokens=self.num_output,
            num_computed_tokens=self.num_computed,
            num_cached_tokens=self.num_cached,
            num_preemptions=self.num_preemptions,
            block_table=self.block_table,
        )


def pack_codes(codes: bytes) -> bytes:
    """Compress the codes of all blocks, one little-endian uint32 each, for a snapshot."""
    return zlib.compress(codes, level=1)


def _unpack_codes(packed: bytes, num_blocks: int) -> BlockCodes:
    try:
        codes = np.frombuffer(zlib.decompress(packed), dtype="<u4").astype(np.uint32)
    except (zlib.error, ValueError) as error:
        raise TelemetryError(f"a snapshot's block states cannot be unpacked ({error})") from error
    if len(codes) != num_blocks:
        raise TelemetryError(f"a snapshot of {len(codes)} blocks in a stream about {num_blocks}")
    return codes
