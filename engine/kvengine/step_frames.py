"""What the telemetry stream has to say of a step, given what it has said so far."""

from collections.abc import Collection, Sequence
from math import nan
from typing import Self

from kvengine.allocators.protocol import EngineScheduler, KVView
from kvengine.block_ledger import BlockLedger, StepBlocks
from kvengine.block_pool import BlockId
from kvengine.kv_cache_manager import KVCacheManager
from kvengine.request import FinishReason, Request, RequestId, RequestStatus
from kvengine.scheduler_output import SchedulerOutput
from kvengine.table_changes import ToldTables
from kvengine.telemetry.schema import (
    Admitted,
    Counters,
    Delta,
    Finished,
    Preempted,
    Progress,
    RequestState,
    Snapshot,
    Status,
    TableChange,
    Totals,
)

_STATUS = {
    RequestStatus.WAITING: Status.WAITING,
    RequestStatus.RUNNING: Status.RUNNING,
    RequestStatus.PREEMPTED: Status.PREEMPTED,
    # Only of a sequence that ends with the token it was forked with: the frame that tells of it says so too.
    RequestStatus.FINISHED: Status.RUNNING,
}
_NO_BLOCKS: list[int] = []
_NOTHING_COUNTED = Counters(*[0] * (len(Counters.__struct_fields__) - len(Counters.__struct_defaults__)))


class _Tracked:
    """One unfinished request that the stream speaks of; times are None for what was before the stream began."""

    __slots__ = ("admitted_s", "arrived_s", "first_token_s", "handle", "last_token_s", "num_blocks", "num_output")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.num_blocks = 0
        self.num_output = 0
        self.arrived_s: float | None = None
        self.admitted_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None


class _StepNews:
    """What the walk through a step's requests finds besides their progress."""

    __slots__ = ("filled", "first_tokens_s", "hit", "listed", "tables", "taken", "token_gaps_s")

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.listed: list[int] = []
        self.hit: list[int] = []
        self.filled: list[int] = []
        self.tables: list[TableChange] = []
        self.first_tokens_s: list[float] = []
        self.token_gaps_s: dict[float, int] = {}


class StepFrames:
    """Makes the frames of one stream, each step's from the pool's journal and the scheduler's output.

    The cost of a delta grows with what the step scheduled and changed, never with the pool or the queue.
    """

    def __init__(self, scheduler: EngineScheduler) -> None:
        self.seq = 0
        self._step = 0
        self._scheduler = scheduler
        sizes = scheduler.kv_cache.sizes
        self._block_sizes = sizes.block_sizes
        self._ledger = BlockLedger(scheduler.kv_cache.pool, pinned=_pinned_blocks(scheduler.kv_cache))
        self._told = None if scheduler.kv_cache.tables_only_grow else ToldTables()
        self._tracked: dict[RequestId, _Tracked] = {}
        self._num_handles = 0
        self._arrived: list[RequestState] = []
        self._aborted: list[Finished] = []
        self._first_tokens_s: list[float] = []
        """Of requests that were forked with their first output token."""
        self._last_s = nan
        """Stream time of the step before; equal to nothing before the first."""

    @classmethod
    def before_first_step(cls, scheduler: EngineScheduler, queued: Sequence[tuple[Request, float]]) -> Self:
        """A stream that begins with an empty pool: its first delta lists all that the first step changed.

        Args:
            queued: The requests so far, each with the stream time at which it was queued.
        """
        frames = cls(scheduler)
        for request, time_s in queued:
            frames.add(request, time_s)
        return frames

    @classmethod
    def after_step(cls, scheduler: EngineScheduler, num_steps: int) -> Self:
        """A stream that begins with what the scheduler holds after so many steps."""
        frames = cls(scheduler)
        frames._step = num_steps
        frames._ledger.start()
        for request in (*scheduler.running, *scheduler.waiting):
            tracked = frames._track(request)
            tracked.num_output = request.num_output_tokens
            tables = frames._tables(request)
            tracked.num_blocks = _num_held(tables)
            if frames._told is not None and tables:
                frames._told.start(request.request_id, tables)
        return frames

    def stop(self) -> None:
        """Nobody is told any more; whoever comes later begins with a new stream of frames."""
        self._ledger.stop()

    @property
    def has_news(self) -> bool:
        """Whether requests came or went, or blocks look different, since the last frame."""
        return bool(self._arrived or self._aborted or self._ledger.has_changes)

    def add(self, request: Request, time_s: float) -> None:
        """Note a request that was queued; the next delta tells of it."""
        tracked = self._track(request)
        tracked.arrived_s = time_s
        self._arrived.append(_initial_state(request, tracked.handle, time_s))

    def fork(self, request: Request, time_s: float) -> None:
        """Note a request that goes on from what another one has computed; the next delta tells of it as it is now."""
        parent = self._tracked.get(request.parent_id) if request.parent_id is not None else None
        tracked = self._track(request)
        tracked.num_output, tracked.last_token_s = request.num_output_tokens, time_s
        if parent is not None:
            tracked.arrived_s, tracked.admitted_s = parent.arrived_s, parent.admitted_s
            tracked.first_token_s = parent.first_token_s
        if request.num_output_tokens == 1 and tracked.first_token_s is None:
            tracked.first_token_s = time_s
            if tracked.arrived_s is not None:
                self._first_tokens_s.append(time_s - tracked.arrived_s)
        tables = self._tables(request)
        tracked.num_blocks = _num_held(tables)
        if self._told is not None and tables:
            self._told.start(request.request_id, tables)
        self._arrived.append(self._state(request))

    def remove(self, request: Request) -> None:
        """Note a request that was aborted; the next delta tells of it."""
        tracked = self._tracked.pop(request.request_id)
        if self._told is not None:
            self._told.forget(request.request_id)
        self._aborted.append(
            Finished(tracked.handle, request.finish_reason or FinishReason.ABORT, request.num_output_tokens)
        )

    def blank_snapshot(self) -> Snapshot:
        """The state before the first step: an empty pool, and no request yet."""
        return Snapshot(
            seq=self.seq,
            step=0,
            time_s=0.0,
            totals=self._ledger.totals(running=0, waiting=0),
            counters=_NOTHING_COUNTED,
            requests=[],
            **self._ledger.packed(),
        )

    def delta(
        self,
        output: SchedulerOutput | None,
        finished: Sequence[Request],
        counters: Counters,
        time_s: float,
        *,
        note: str = "",
    ) -> Delta:
        """What changed since the last frame.

        Args:
            output: What the step scheduled; None between steps, to tell of requests that came or went.
            finished: The requests that ended in the step.
            counters: The engine's counters after the step.
            time_s: Stream time.
            note: What the step shows, in words; see `Delta`.
        """
        preempted: list[Preempted] = []
        admitted: list[Admitted] = []
        progress: list[Progress] = []
        news = _StepNews()
        if output is not None:
            self._step = output.step + 1
            preempted = [self._preempt(request_id) for request_id in output.preempted]
            if output.admitted:
                admitted = self._admit(output, news, time_s)
            progress = self._advance(output, len(output.scheduled) - len(admitted), news, time_s)
        changes = self._ledger.take_changes(
            self._step, StepBlocks(taken=news.taken, listed=news.listed, hit=news.hit, filled=news.filled)
        )
        self.seq += 1
        delta = Delta(
            seq=self.seq,
            step=self._step,
            time_s=time_s,
            totals=self._totals(),
            counters=counters,
            num_evicted=changes.num_evicted,
            arrived=self._arrived,
            preempted=preempted,
            admitted=admitted,
            finished=self._aborted + [self._finish(request) for request in finished],
            progress=progress,
            blocks=changes.codes,
            cached=changes.cached,
            first_tokens_s=self._first_tokens_s + news.first_tokens_s,
            token_gaps_s=[value for pair in news.token_gaps_s.items() for value in pair],
            note=note,
            tables=news.tables,
        )
        self._arrived, self._aborted, self._first_tokens_s = [], [], []
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
            **self._ledger.packed(),
        )

    def _track(self, request: Request) -> _Tracked:
        """Give a request a handle; so far it has no blocks and no output."""
        self._num_handles += 1
        tracked = self._tracked[request.request_id] = _Tracked(self._num_handles)
        return tracked

    def _preempt(self, request_id: RequestId) -> Preempted:
        tracked = self._tracked[request_id]
        preempted = Preempted(tracked.handle, tracked.num_blocks)
        tracked.num_blocks = 0
        if self._told is not None:
            self._told.forget(request_id)
        return preempted

    def _admit(self, output: SchedulerOutput, news: _StepNews, time_s: float) -> list[Admitted]:
        # The admitted stand last in a step, and nothing can preempt them in it.
        admissions = {admission.request_id: admission for admission in output.admitted}
        first = len(output.scheduled) - len(admissions)
        admitted: list[Admitted] = []
        for index, item in enumerate(output.scheduled[first:], start=first):
            request_id = item.request.request_id
            _, num_cached_tokens, resumed = admissions[request_id]
            tracked = self._tracked[request_id]
            tables = _tables_of(output, index)
            tracked.num_blocks = _num_held(tables)
            if not resumed:
                tracked.admitted_s = time_s
            for table, block_size in zip(tables, self._block_sizes, strict=True):
                news.listed += filter(None, table)
                news.hit += filter(None, table[: num_cached_tokens // block_size])
            if item.start > num_cached_tokens:  # swapped in: what it brings with it can be found again
                size = self._block_sizes[0]
                _list_filled(tables[0], num_cached_tokens // size, item.start // size, news.filled)
            more_tables = self._told.start(request_id, tables) if self._told is not None else []
            admitted.append(Admitted(tracked.handle, num_cached_tokens, resumed, list(tables[0]), more_tables))
        return admitted

    def _advance(self, output: SchedulerOutput, num_running: int, news: _StepNews, time_s: float) -> list[Progress]:
        """Where each scheduled request stands; the first `num_running` were admitted in an earlier step."""
        tracked_by_id, block_size, told, last_s = self._tracked, self._block_sizes[0], self._told, self._last_s
        num_steady = 0
        progress: list[Progress] = []
        for index, (request, start, num_tokens, block_ids, new_blocks) in enumerate(output.scheduled):
            appended = _NO_BLOCKS
            if new_blocks:
                news.taken += new_blocks
                if index < num_running:
                    appended = list(new_blocks)
                    if start % block_size and block_ids[start // block_size] == new_blocks[0]:
                        # A private copy, which replaces a block that others hold too.
                        del appended[0]
            end = start + num_tokens
            if end % block_size < num_tokens:
                _list_filled(block_ids, start // block_size, end // block_size, news.filled)
            tracked = tracked_by_id.get(request.request_id)
            if tracked is None:
                continue  # aborted while it ran
            num_output_tokens = len(request.all_token_ids) - request.num_prompt_tokens
            num_new = num_output_tokens - tracked.num_output
            if num_new == 1 and tracked.last_token_s == last_s:
                # Nearly every decode of every step, so without a call.
                num_steady += 1
                tracked.num_output = num_output_tokens
                tracked.last_token_s = time_s
            elif num_new:
                _count_tokens(tracked, num_new, news, time_s)
            if request.status is not RequestStatus.RUNNING:
                continue  # finished in this step
            if appended:
                tracked.num_blocks += len(appended)
                news.listed += appended
            progress.append(Progress(tracked.handle, request.num_computed_tokens, num_output_tokens, appended))
            if told is not None:
                self._change_tables(output, index, tracked, news)
            elif len(appended) < len(new_blocks) and index < num_running:
                news.tables.append(TableChange(tracked.handle, 0, [], [start // block_size, new_blocks[0]]))
        if num_steady:
            _count_gaps(news, time_s - last_s, num_steady)
        self._last_s = time_s
        return progress

    def _change_tables(self, output: SchedulerOutput, index: int, tracked: _Tracked, news: _StepNews) -> None:
        """Note what happened to a running request's tables besides blocks appended to the first."""
        assert self._told is not None, "only tables that change in other ways are compared"
        request, start, num_tokens, _, _ = output.scheduled[index]
        tables = _tables_of(output, index)
        changes = self._told.changes(request.request_id, tracked.handle, tables)
        for change in changes:
            news.listed += filter(None, change.new_blocks)
        if changes:
            tracked.num_blocks = _num_held(tables)
        news.tables += changes
        if output.group_blocks:
            for new_blocks in output.group_blocks[index].new_block_ids[1:]:
                news.taken += filter(None, new_blocks)
        for table, block_size in zip(tables[1:], self._block_sizes[1:], strict=True):
            end = start + num_tokens
            if end % block_size < num_tokens:
                _list_filled(table, start // block_size, end // block_size, news.filled)

    def _finish(self, request: Request) -> Finished:
        assert request.finish_reason is not None, f"{request.request_id} finished for no reason"
        handle = self._tracked.pop(request.request_id).handle
        if self._told is not None:
            self._told.forget(request.request_id)
        return Finished(handle, request.finish_reason, request.num_output_tokens)

    def _state(self, request: Request) -> RequestState:
        tracked = self._tracked[request.request_id]
        first, *more = [list(table) for table in self._tables(request)] or [[]]
        return RequestState(
            handle=tracked.handle,
            request_id=request.request_id,
            status=_STATUS[request.status],
            num_prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.sampling.max_tokens,
            num_output_tokens=request.num_output_tokens,
            num_computed_tokens=request.num_computed_tokens,
            num_cached_tokens=request.num_cached_tokens,
            num_preemptions=request.num_preemptions,
            block_table=first,
            arrived_s=tracked.arrived_s,
            admitted_s=tracked.admitted_s,
            first_token_s=tracked.first_token_s,
            more_tables=more,
        )

    def _tables(self, request: Request) -> Sequence[Sequence[int]]:
        """The block tables of a request in all groups; none while it holds no blocks."""
        if request.status is not RequestStatus.RUNNING:
            return ()
        return self._scheduler.kv_cache.group_tables(request.request_id)

    def _totals(self) -> Totals:
        return self._ledger.totals(running=len(self._scheduler.running), waiting=self._scheduler.num_waiting)


def _pinned_blocks(kv_cache: KVView) -> Collection[BlockId]:
    """Blocks that transfers read, where there can be any; a live view."""
    return kv_cache.pinned_blocks if isinstance(kv_cache, KVCacheManager) else ()


def _tables_of(output: SchedulerOutput, index: int) -> Sequence[Sequence[int]]:
    """The block tables of a scheduled request in all groups."""
    return output.group_blocks[index].tables if output.group_blocks else (output.scheduled[index].block_ids,)


def _num_held(tables: Sequence[Sequence[int]]) -> int:
    """Entries that are blocks, and not the null block."""
    return sum(len(table) - table.count(0) for table in tables)


def _list_filled(block_ids: Sequence[int], first: int, end: int, filled: list[int]) -> None:
    """Add the blocks at some positions of a table, each followed by the one before it."""
    previous = block_ids[first - 1] if first else 0
    for block in block_ids[first:end]:
        filled += (block, previous)
        previous = block


def _count_tokens(tracked: _Tracked, num_new: int, news: _StepNews, time_s: float) -> None:
    """Count the time since the output token before; several at once share it evenly."""
    if tracked.num_output == 0:
        tracked.first_token_s = time_s
        if tracked.arrived_s is not None:
            news.first_tokens_s.append(time_s - tracked.arrived_s)
    elif tracked.last_token_s is not None:
        _count_gaps(news, (time_s - tracked.last_token_s) / num_new, num_new)
    tracked.num_output += num_new
    tracked.last_token_s = time_s


def _count_gaps(news: _StepNews, gap_s: float, count: int) -> None:
    news.token_gaps_s[gap_s] = news.token_gaps_s.get(gap_s, 0) + count


def _initial_state(request: Request, handle: int, time_s: float) -> RequestState:
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
        arrived_s=time_s,
    )
