"""What the telemetry stream has to say of a step, given what it has said so far."""

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Self

from kvengine.block_pool import NULL_BLOCK, BlockId, BlockPool
from kvengine.request import FinishReason, Request, RequestId, RequestStatus
from kvengine.scheduler import Scheduler
from kvengine.scheduler_output import ScheduledRequest, SchedulerOutput
from kvengine.telemetry.schema import (
    REF_COUNT_SHIFT,
    Admitted,
    BlockFlag,
    Counters,
    Delta,
    Finished,
    Preempted,
    Progress,
    RequestState,
    Snapshot,
    Status,
    Totals,
)
from kvengine.telemetry.state import pack_codes

_STATUS = {
    RequestStatus.WAITING: Status.WAITING,
    RequestStatus.RUNNING: Status.RUNNING,
    RequestStatus.PREEMPTED: Status.PREEMPTED,
}
_NO_BLOCKS: list[int] = []
_NOTHING_COUNTED = Counters(*[0] * len(Counters.__struct_fields__))


class _Tracked:
    """One unfinished request that the stream speaks of."""

    __slots__ = ("handle", "num_blocks")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.num_blocks = 0


class StepFrames:
    """Makes the frames of one stream, each step's from the pool's journal and the scheduler's output.

    The cost of a delta grows with what the step scheduled and changed, never with the pool or the queue.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.seq = 0
        self._step = 0
        self._scheduler = scheduler
        self._ledger = _BlockLedger(scheduler.kv_cache.pool)
        self._tracked: dict[RequestId, _Tracked] = {}
        self._num_handles = 0
        self._arrived: list[RequestState] = []
        self._aborted: list[Finished] = []

    @classmethod
    def before_first_step(cls, scheduler: Scheduler, queued: Sequence[Request]) -> Self:
        """A stream that begins with an empty pool: its first delta lists all that the first step changed."""
        frames = cls(scheduler)
        for request in queued:
            frames.add(request)
        return frames

    @classmethod
    def after_step(cls, scheduler: Scheduler, num_steps: int) -> Self:
        """A stream that begins with what the scheduler holds after so many steps."""
        frames = cls(scheduler)
        frames._step = num_steps
        frames._ledger.take_changes()
        for request in (*scheduler.running, *scheduler.waiting):
            frames._track(request)
        return frames

    @property
    def has_news(self) -> bool:
        """Whether requests came or went since the last frame."""
        return bool(self._arrived or self._aborted)

    def add(self, request: Request) -> None:
        """Note a request that was queued; the next delta tells of it."""
        self._arrived.append(_initial_state(request, self._track(request).handle))

    def remove(self, request: Request) -> None:
        """Note a request that was aborted; the next delta tells of it."""
        tracked = self._tracked.pop(request.request_id)
        self._aborted.append(Finished(tracked.handle, FinishReason.ABORT, request.num_output_tokens))

    def blank_snapshot(self) -> Snapshot:
        """The state before the first step: an empty pool, and no request yet."""
        return Snapshot(
            seq=self.seq,
            step=0,
            time_s=0.0,
            totals=self._ledger.totals(running=0, waiting=0),
            counters=_NOTHING_COUNTED,
            requests=[],
            block_codes=self._ledger.packed_codes(),
        )

    def delta(
        self, output: SchedulerOutput | None, finished: Sequence[Request], counters: Counters, time_s: float
    ) -> Delta:
        """What changed since the last frame.

        Args:
            output: What the step scheduled; None between steps, to tell of requests that came or went.
            finished: The requests that ended in the step.
            counters: The engine's counters after the step.
            time_s: Stream time.
        """
        preempted: list[Preempted] = []
        admitted: list[Admitted] = []
        progress: list[Progress] = []
        taken: list[int] = []
        if output is not None:
            self._step = output.step + 1
            preempted = [self._preempt(request_id) for request_id in output.preempted]
            if output.admitted:
                admitted = self._admit(output)
            progress = self._advance(output.scheduled, len(output.scheduled) - len(admitted), taken)
        blocks, num_evicted = self._ledger.take_changes(taken)
        self.seq += 1
        delta = Delta(
            seq=self.seq,
            step=self._step,
            time_s=time_s,
            totals=self._totals(),
            counters=counters,
            num_evicted=num_evicted,
            arrived=self._arrived,
            preempted=preempted,
            admitted=admitted,
            finished=self._aborted + [self._finish(request) for request in finished],
            progress=progress,
            blocks=blocks,
        )
        self._arrived, self._aborted = [], []
        return delta

    def snapshot(self, counters: Counters, time_s: float) -> Snapshot:
        """The state after the last delta, all at once; nothing may be queued or aborted since then."""
        scheduler = self._scheduler
        requests = [*scheduler.running, *scheduler.waiting]
        states = [self._state(request) for request in requests]
        states.sort(key=lambda state: state.handle)
        return Snapshot(
            seq=self.seq,
            step=self._step,
            time_s=time_s,
            totals=self._totals(),
            counters=counters,
            requests=states,
            block_codes=self._ledger.packed_codes(),
        )

    def _track(self, request: Request) -> _Tracked:
        self._num_handles += 1
        tracked = self._tracked[request.request_id] = _Tracked(self._num_handles)
        return tracked

    def _preempt(self, request_id: RequestId) -> Preempted:
        tracked = self._tracked[request_id]
        preempted = Preempted(tracked.handle, tracked.num_blocks)
        tracked.num_blocks = 0
        return preempted

    def _admit(self, output: SchedulerOutput) -> list[Admitted]:
        # The admitted stand last in a step, and nothing can preempt them in it.
        admissions = {admission.request_id: admission for admission in output.admitted}
        admitted: list[Admitted] = []
        for item in output.scheduled[-len(admissions) :]:
            _, num_cached_tokens, resumed = admissions[item.request.request_id]
            tracked = self._tracked[item.request.request_id]
            tracked.num_blocks = len(item.block_ids)
            admitted.append(Admitted(tracked.handle, num_cached_tokens, resumed, list(item.block_ids)))
        return admitted

    def _advance(self, scheduled: Sequence[ScheduledRequest], num_running: int, taken: list[int]) -> list[Progress]:
        """Where each scheduled request stands; the first `num_running` were admitted in an earlier step."""
        tracked_by_id = self._tracked
        progress: list[Progress] = []
        for index, (request, _, _, _, new_blocks) in enumerate(scheduled):
            appended = _NO_BLOCKS
            if new_blocks:
                taken += new_blocks
                if index < num_running:
                    appended = list(new_blocks)
            if request.status is not RequestStatus.RUNNING:
                continue  # finished in this step, or aborted while it ran
            tracked = tracked_by_id[request.request_id]
            if appended:
                tracked.num_blocks += len(appended)
            num_output_tokens = len(request.all_token_ids) - request.num_prompt_tokens
            progress.append(Progress(tracked.handle, request.num_computed_tokens, num_output_tokens, appended))
        return progress

    def _finish(self, request: Request) -> Finished:
        assert request.finish_reason is not None, f"{request.request_id} finished for no reason"
        handle = self._tracked.pop(request.request_id).handle
        return Finished(handle, request.finish_reason, request.num_output_tokens)

    def _state(self, request: Request) -> RequestState:
        return RequestState(
            handle=self._tracked[request.request_id].handle,
            request_id=request.request_id,
            status=_STATUS[request.status],
            num_prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.sampling.max_tokens,
            num_output_tokens=request.num_output_tokens,
            num_computed_tokens=request.num_computed_tokens,
            num_cached_tokens=request.num_cached_tokens,
            num_preemptions=request.num_preemptions,
            block_table=self._block_table(request),
        )

    def _block_table(self, request: Request) -> list[int]:
        if request.status is not RequestStatus.RUNNING:
            return []
        return list(self._scheduler.kv_cache.block_ids(request.request_id))

    def _totals(self) -> Totals:
        return self._ledger.totals(running=len(self._scheduler.running), waiting=self._scheduler.num_waiting)


class _BlockLedger:
    """The block codes that the stream has told so far, and how many blocks there are of each kind."""

    def __init__(self, pool: BlockPool) -> None:
        pool.track_changes()
        pool.take_changes()
        self._pool = pool
        self._codes = array("I", bytes(4 * pool.num_blocks))
        self._codes[NULL_BLOCK] = BlockFlag.NULL
        self._counts = [pool.num_usable, 0, 0, 0]
        """Blocks by `_kind`; the null block is of none."""
        self._unread: Iterable[int] = range(NULL_BLOCK + 1, pool.num_blocks)
        """Blocks to look at besides those in the pool's journal: at first all of them."""

    def take_changes(self, taken: Sequence[int] = ()) -> tuple[list[int], int]:
        """Blocks that look different since the last call.

        Args:
            taken: Blocks that left the free ones for new content since then.

        Returns:
            Block id and new code in turn, and how many blocks lost their cached content.
        """
        codes, counts, pool = self._codes, self._counts, self._pool
        evicted = {block for block in taken if codes[block] & BlockFlag.CACHED}
        changes: list[int] = []
        for block in (*self._unread, *pool.take_changes()):
            old = codes[block]
            new = pool.ref_count(BlockId(block)) << REF_COUNT_SHIFT | pool.is_cached(BlockId(block))
            if new == old:
                continue
            if old & BlockFlag.CACHED and not new & BlockFlag.CACHED:
                evicted.add(block)
            codes[block] = new
            counts[_kind(old)] -= 1
            counts[_kind(new)] += 1
            changes += (block, new)
        self._unread = ()
        return changes, len(evicted)

    def totals(self, *, running: int, waiting: int) -> Totals:
        """The blocks of each kind, beside the requests of each kind."""
        free, cached_free, used, shared = self._counts
        return Totals(free, cached_free, used, shared, running, waiting)

    def packed_codes(self) -> bytes:
        """All codes, as a snapshot holds them."""
        codes = self._codes
        if sys.byteorder == "big":
            codes = array("I", codes)
            codes.byteswap()
        return pack_codes(codes.tobytes())


def _kind(code: int) -> int:
    """Index into the counts: 0 free, 1 free and cached, 2 held once, 3 shared."""
    return min(code >> REF_COUNT_SHIFT, 2) + 1 if code else 0


def _initial_state(request: Request, handle: int) -> RequestState:
    return RequestState(
        handle=handle,
        request_id=request.request_id,
        status=Status.WAITING,
        num_prompt_tokens=request.num_prompt_tokens,
        max_tokens=request.sampling.max_tokens,
        num_output_tokens=0,
        num_computed_tokens=0,
        num_cached_tokens=0,
        num_preemptions=0,
        block_table=[],
    )
