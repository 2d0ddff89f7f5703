"""What a stream says, folded: the pool and every request after the last step seen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvengine.errors import TelemetryError
from kvengine.telemetry.block_book import BlockBook, BlockChanges, BlockCodes, BlockColumns
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
    TableChange,
    Totals,
)

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


_FIRST_SHARED_CODE = 2 << REF_COUNT_SHIFT
_STATE_OF_CODE = np.full(_FIRST_SHARED_CODE + 1, BlockState.SHARED, dtype=np.uint8)
"""By code, up to the first with two owners, which stands for all beyond."""
_STATE_OF_CODE[: 1 << REF_COUNT_SHIFT] = BlockState.CACHED_FREE
_STATE_OF_CODE[1 << REF_COUNT_SHIFT : _FIRST_SHARED_CODE] = BlockState.USED
_STATE_OF_CODE[0] = BlockState.FREE
_STATE_OF_CODE[BlockFlag.NULL] = BlockState.NULL


def block_states(codes: BlockCodes) -> BlockStates:
    """The `BlockState` of each block code."""
    return _STATE_OF_CODE[np.minimum(codes, _FIRST_SHARED_CODE)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """The state after one step, but for the blocks."""

    facts: Hello
    seq: int
    step: int
    time_s: float
    """Seconds since `facts.started_unix_s`."""
    totals: Totals
    counters: Counters
    requests: Sequence[RequestState]
    """Unfinished ones, in order of arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSnapshot(StepFigures):
    """The state after one step, the same whether it comes from a running engine or a recording."""

    blocks: BlockColumns
    """By block id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepUpdate(StepFigures):
    """The state after one step, of the blocks only what has changed since the update before."""

    blocks: BlockChanges


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
        self._blocks = BlockBook(facts)
        self._requests: dict[int, _Request] = {}

    @property
    def is_started(self) -> bool:
        """Whether a snapshot has been seen."""
        return self._last is not None

    @property
    def seq(self) -> int:
        """Number of the last delta that it includes; 0 before the first snapshot."""
        return self._last.seq if self._last is not None else 0

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
        if not math.isfinite(frame.time_s):
            raise TelemetryError(f"a frame of step {frame.step} at {frame.time_s} s")
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
        return StepSnapshot(**self._figures(), blocks=self._blocks.columns.copy())

    def take_update(self) -> StepUpdate:
        """The state, and what has changed since the last call; it costs what changed, not what there is."""
        return StepUpdate(**self._figures(), blocks=self._blocks.take_changes())

    def snapshot(self) -> Snapshot:
        """The state as a frame from which another reader can start."""
        figures = self._figures() | self._blocks.packed()
        del figures["facts"]
        figures["requests"] = list(figures["requests"])
        return Snapshot(**figures)

    def _figures(self) -> dict[str, Any]:
        last = self._last
        assert last is not None, "nothing to show before the first snapshot"
        return {
            "facts": self.facts,
            "seq": last.seq,
            "step": last.step,
            "time_s": last.time_s,
            "totals": last.totals,
            "counters": last.counters,
            "requests": tuple([request.freeze() for request in self._requests.values()]),
        }

    def _describe_gap(self, delta: Delta) -> str:
        if self._last is None:
            return f"the stream begins with delta {delta.seq}"
        first, last = self._last.seq + 1, delta.seq - 1
        if last < first:
            return f"delta {delta.seq} came after {self._last.seq}"
        return f"delta {first} is missing" if first == last else f"deltas {first} to {last} are missing"

    def _start_from(self, snapshot: Snapshot) -> None:
        highest = max((max(table, default=0) for state in snapshot.requests for table in state.tables), default=0)
        if highest >= self.facts.num_blocks:
            raise TelemetryError(f"a snapshot speaks of block {highest} in a pool of {self.facts.num_blocks}")
        self._blocks.load(snapshot)
        self._requests = {state.handle: _Request(state) for state in snapshot.requests}
        self.lost = ""

    def _advance(self, delta: Delta) -> None:
        requests, time_s = self._requests, delta.time_s
        try:
            for state in delta.arrived:
                requests[state.handle] = _Request(state)
            for preempted in delta.preempted:
                requests[preempted.handle].preempt()
            for admitted in delta.admitted:
                requests[admitted.handle].admit(admitted, time_s)
            for finished in delta.finished:
                del requests[finished.handle]
            for progress in delta.progress:
                requests[progress.handle].advance(progress, time_s)
            for change in delta.tables:
                requests[change.handle].change_table(change)
            self._blocks.advance(delta)
        except (KeyError, IndexError, ValueError, OverflowError) as error:
            raise TelemetryError(f"delta {delta.seq} speaks of a request or block that does not exist") from error


class _Request:
    """One unfinished request while it changes."""

    __slots__ = (
        "_frozen",
        "admitted_s",
        "block_table",
        "first",
        "first_token_s",
        "more_tables",
        "num_cached",
        "num_computed",
        "num_output",
        "num_preemptions",
        "status",
    )

    def __init__(self, state: RequestState) -> None:
        self.first = state
        self.status = state.status
        self.num_output = state.num_output_tokens
        self.num_computed = state.num_computed_tokens
        self.num_cached = state.num_cached_tokens
        self.num_preemptions = state.num_preemptions
        self.block_table = state.block_table
        self.more_tables = state.more_tables
        self.admitted_s = state.admitted_s
        self.first_token_s = state.first_token_s
        self._frozen: RequestState | None = state

    def admit(self, admitted: Admitted, time_s: float) -> None:
        if not admitted.resumed:
            self.admitted_s = time_s
        self.status = Status.RUNNING
        self.num_cached = admitted.num_cached_tokens
        self.block_table = admitted.block_table
        self.more_tables = admitted.more_tables
        self._frozen = None

    def preempt(self) -> None:
        self.status = Status.PREEMPTED
        self.num_preemptions += 1
        self.num_computed = 0
        self.block_table = []
        self.more_tables = []
        self._frozen = None

    def advance(self, progress: Progress, time_s: float) -> None:
        if progress.num_output_tokens and not self.num_output:
            self.first_token_s = time_s
        self.num_computed = progress.num_computed_tokens
        self.num_output = progress.num_output_tokens
        if progress.new_blocks:
            # A new list, so that the tables handed out by `freeze` stay as they were.
            self.block_table = self.block_table + progress.new_blocks
        self._frozen = None

    def change_table(self, change: TableChange) -> None:
        tables = [self.block_table, *self.more_tables]
        table = tables[change.group] + change.new_blocks
        for position, block in zip(change.replaced[::2], change.replaced[1::2], strict=True):
            table[position] = block
        tables[change.group] = table
        self.block_table, *self.more_tables = tables
        self._frozen = None

    def freeze(self) -> RequestState:
        """The state now; the same object while nothing changes, since most requests of a long queue only wait."""
        if self._frozen is None:
            self._frozen = RequestState(
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
                arrived_s=self.first.arrived_s,
                admitted_s=self.admitted_s,
                first_token_s=self.first_token_s,
                more_tables=self.more_tables,
            )
        return self._frozen
