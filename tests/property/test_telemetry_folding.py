"""Whatever the engine does, folding its stream gives the engine's own state, step by step."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from kvengine.allocators.kinds import AllocatorKind
from kvengine.allocators.protocol import EngineScheduler
from kvengine.block_ledger import BlockLedger
from kvengine.block_pool import BlockId, BlockPool
from kvengine.config import SchedulerConfig, SchedulingPolicy
from kvengine.kv_cache_manager import KVCacheManager
from kvengine.kv_groups.kinds import FullAttention, GroupKind, LinearState, SlidingWindow, StateMode
from kvengine.request import Request, RequestId, RequestStatus
from kvengine.scheduler import Scheduler
from kvengine.telemetry.schema import REF_COUNT_SHIFT, BlockFlag, End, Hello, Status, block_code
from kvengine.telemetry.state import StepSnapshot, StreamState, block_states
from kvtop.pool import Pool
from tests.watched_engine import FrameList, WatchedEngine


@dataclass(frozen=True)
class Add:
    prompt: str
    max_tokens: int
    priority: int
    n: int


@dataclass(frozen=True)
class Abort:
    number: int


@dataclass(frozen=True)
class Fork:
    number: int
    last_token: int | None


@dataclass(frozen=True)
class Pin:
    number: int


@dataclass(frozen=True)
class Unpin:
    number: int


@dataclass(frozen=True)
class Preempt:
    number: int


@dataclass(frozen=True)
class Resize:
    share: float
    by_force: bool


@dataclass(frozen=True)
class Expire:
    """A request's deadline is now."""

    number: int


@dataclass(frozen=True)
class Steps:
    count: int


@dataclass(frozen=True)
class Poll:
    pass


@dataclass(frozen=True)
class Watch:
    """The late viewer comes or goes."""

    is_listening: bool


# Two letters make equal prefixes common; eight usable blocks of four tokens make preemptions common.
def adds(*numbers_of_samples: int) -> st.SearchStrategy[Add]:
    return st.builds(
        Add,
        prompt=st.text("ab", min_size=1, max_size=14),
        max_tokens=st.integers(1, 12),
        priority=st.integers(0, 2),
        n=st.sampled_from(numbers_of_samples),
    )


OTHERS = (
    st.builds(Abort, number=st.integers(0, 5)),
    st.builds(Steps, count=st.integers(1, 5)),
    st.just(Poll()),
    st.builds(Watch, is_listening=st.booleans()),
)
ACTIONS = st.one_of(adds(1), *OTHERS)
SHARING = st.one_of(
    adds(1, 1, 1, 3),
    st.builds(Preempt, number=st.integers(0, 5)),
    st.builds(Resize, share=st.floats(0.1, 1), by_force=st.booleans()),
    st.builds(Expire, number=st.integers(0, 5)),
    *OTHERS,
    st.builds(Fork, number=st.integers(0, 5), last_token=st.sampled_from([None, 97])),
    st.builds(Pin, number=st.integers(0, 5)),
    st.builds(Unpin, number=st.integers(0, 5)),
)
GROUPS: list[tuple[GroupKind, ...]] = [
    (),
    (),
    (SlidingWindow(block_size=4, window=6),),
    (FullAttention(block_size=4), SlidingWindow(block_size=4, window=5)),
    (FullAttention(block_size=4), LinearState(block_size=4, mode=StateMode.ALIGN)),
]
STATUS = {
    RequestStatus.WAITING: Status.WAITING,
    RequestStatus.RUNNING: Status.RUNNING,
    RequestStatus.PREEMPTED: Status.PREEMPTED,
}


class FoldingSink(FrameList):
    """A viewer that folds each frame as it comes."""

    def __init__(self, facts: Hello, *, is_listening: bool) -> None:
        super().__init__(is_listening=is_listening)
        self.state = StreamState(facts)
        self.pool: Pool | None = None
        """Blocks as a view keeps them, which takes only what changed."""

    def fold(self) -> StepSnapshot:
        for frame in self.frames:
            assert not isinstance(frame, Hello)
            assert self.state.apply(frame), self.state.lost
        self.frames.clear()
        changes = self.state.take_update().blocks
        if self.pool is None:
            self.pool = Pool(changes.columns)
        else:
            self.pool.apply(changes)
        return self.state.freeze()

    def restart(self, is_listening: bool) -> None:
        if is_listening and not self.is_listening:
            self.state = StreamState(self.state.facts)
            self.pool = None
            self.frames.clear()
            self.wants_snapshot = True
        self.is_listening = is_listening


def assert_is_state_of(snapshot: StepSnapshot, scheduler: EngineScheduler, num_steps: int) -> None:
    assert snapshot.step == num_steps
    pool = scheduler.kv_cache.pool
    ref_counts = [pool.ref_count(BlockId(block)) for block in range(pool.num_blocks)]
    cached = [pool.is_cached(BlockId(block)) for block in range(pool.num_blocks)]
    pinned = scheduler.kv_cache.pinned_blocks if isinstance(scheduler.kv_cache, KVCacheManager) else ()
    codes = [
        BlockFlag.NULL
        if isinstance(pool, BlockPool) and pool.is_withheld(BlockId(block))
        else block_code(count, BlockFlag.CACHED * flag | BlockFlag.PINNED * (block in pinned))
        for block, (count, flag) in enumerate(zip(ref_counts, cached, strict=True))
    ]
    assert snapshot.blocks.codes.tolist() == [BlockFlag.NULL, *codes[1:]]

    usable = [block for block in range(1, pool.num_blocks) if codes[block] != BlockFlag.NULL]
    pairs = [(ref_counts[block], cached[block]) for block in usable]
    totals = snapshot.totals
    assert totals.free == sum(count == 0 and not flag for count, flag in pairs)
    assert totals.cached_free == sum(count == 0 and flag for count, flag in pairs)
    assert totals.used == sum(count == 1 for count, _ in pairs)
    assert totals.shared == sum(count > 1 for count, _ in pairs)
    assert (totals.running, totals.waiting) == (len(scheduler.running), scheduler.num_waiting)

    held = scheduler.kv_cache.group_tables
    expected = {
        request.request_id: (
            STATUS[request.status],
            request.num_prompt_tokens,
            request.num_output_tokens,
            request.num_computed_tokens,
            request.num_cached_tokens,
            request.num_preemptions,
            [list(table) for table in held(request.request_id)] if request in scheduler.running else [[]],
        )
        for request in (*scheduler.running, *scheduler.waiting)
    }
    told = {
        state.request_id: (
            state.status,
            state.num_prompt_tokens,
            state.num_output_tokens,
            state.num_computed_tokens,
            state.num_cached_tokens,
            state.num_preemptions,
            state.tables,
        )
        for state in snapshot.requests
    }
    assert told == expected


def assert_knows_of_blocks_what_was_told(viewer: FoldingSink, ledger: BlockLedger) -> None:
    """The reader's columns are the publisher's, whether they were folded or came with a snapshot."""
    told = (ledger._codes, ledger._touched, ledger._cached_at, ledger._parents, ledger._hits)
    assert [column.tolist() for column in viewer.state.freeze().blocks.arrays()] == [list(column) for column in told]
    assert viewer.pool is not None
    assert [column.tolist() for column in viewer.pool.columns.arrays()] == [list(column) for column in told]
    assert viewer.pool.states.tolist() == block_states(viewer.pool.columns.codes).tolist()
    assert viewer.pool.num_references == sum(code >> REF_COUNT_SHIFT for code in ledger._codes)


def share(watched: WatchedEngine, request: Request, action: Fork | Pin, number: int) -> None:
    if isinstance(action, Pin):
        watched.engine.pin(request.request_id)
        return
    tokens = None if action.last_token is None or not request.num_output_tokens else [action.last_token]
    watched.engine.fork(request.request_id, [RequestId(f"r{number}")], tokens)


def press(watched: WatchedEngine, action: Preempt | Resize | Expire) -> None:
    """Take something away."""
    scheduler = watched.scheduler
    assert isinstance(scheduler, Scheduler)
    if isinstance(action, Resize):
        most = scheduler.kv_cache.pool.num_blocks - 1
        scheduler.resize_pool(max(1, int(action.share * most)), preempt=action.by_force)
    elif isinstance(action, Preempt) and scheduler.running:
        watched.engine.preempt(scheduler.running[action.number % len(scheduler.running)].request_id)
    elif isinstance(action, Expire):
        live = [*scheduler.running, *scheduler.waiting]
        if live:
            request = live[action.number % len(live)]
            request.deadline_s = watched.clock.now_s()
            watched.engine._deadlines.add(request)


def act(watched: WatchedEngine, late: FoldingSink, action: object, number: int) -> bool:
    """Do one thing; whether the stream was spoken to."""
    if isinstance(action, Add):
        watched.add(
            f"r{number}", prompt=action.prompt, max_tokens=action.max_tokens, priority=action.priority, n=action.n
        )
    elif isinstance(action, Abort):
        live = [*watched.scheduler.running, *watched.scheduler.waiting]
        if live:
            watched.engine.abort(live[action.number % len(live)].request_id)
    elif isinstance(action, Fork | Pin):
        running = watched.scheduler.running
        if running and len(running) < 8:
            share(watched, running[action.number % len(running)], action, number)
    elif isinstance(action, Preempt | Resize | Expire):
        press(watched, action)
    elif isinstance(action, Unpin):
        assert isinstance(watched.scheduler.kv_cache, KVCacheManager)
        handles = list(watched.scheduler.kv_cache.transfers)
        if handles:
            watched.engine.unpin(handles[action.number % len(handles)])
    elif isinstance(action, Steps):
        watched.step(action.count)
        return True
    elif isinstance(action, Poll):
        watched.publisher.poll()
        return watched.engine.stats.steps > 0
    elif isinstance(action, Watch):
        late.restart(action.is_listening)
    return False


@given(
    actions=st.lists(SHARING, max_size=40),
    limits=st.builds(
        SchedulerConfig,
        max_num_seqs=st.just(4),
        max_num_batched_tokens=st.sampled_from([5, 64]),
        max_model_len=st.just(32),
        policy=st.sampled_from(SchedulingPolicy),
    ),
    groups=st.sampled_from(GROUPS),
    num_host_blocks=st.sampled_from([0, 0, 2, 20]),
    watched_from_start=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_folding_snapshots_and_deltas_gives_the_engines_own_state(
    actions, limits, groups, num_host_blocks, watched_from_start
):
    num_blocks = 9 if len(groups) < 2 else 25
    late = FoldingSink(WatchedEngine(groups=groups, num_blocks=num_blocks).facts, is_listening=False)
    steady = FoldingSink(late.state.facts, is_listening=watched_from_start)
    watched = WatchedEngine(
        late, steady, limits=limits, groups=groups, num_blocks=num_blocks, num_host_blocks=num_host_blocks
    )
    for number, action in enumerate([*actions, Steps(1)]):
        if act(watched, late, action, number):
            for viewer in (late, steady):
                if viewer.is_listening:
                    assert_is_state_of(viewer.fold(), watched.scheduler, watched.engine.stats.steps)
                    assert_knows_of_blocks_what_was_told(viewer, watched.publisher._frames._ledger)
    watched.engine.close("done")
    if steady.is_listening:
        assert isinstance(steady.frames[-1], End)


@given(
    actions=st.lists(ACTIONS, max_size=40),
    allocator=st.sampled_from([kind for kind in AllocatorKind if kind is not AllocatorKind.PAGED]),
    page_size=st.integers(1, 4),
    num_slots=st.sampled_from([36, 50]),
    watched_from_start=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_the_stream_of_any_other_allocator_folds_to_its_state(
    actions, allocator, page_size, num_slots, watched_from_start
):
    block_size = page_size if allocator is AllocatorKind.TOKEN_LEVEL else 1
    num_blocks = num_slots // block_size + 1
    limits = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=8, max_model_len=18)

    def an_engine(*sinks: FoldingSink) -> WatchedEngine:
        return WatchedEngine(*sinks, limits=limits, num_blocks=num_blocks, block_size=block_size, allocator=allocator)

    late = FoldingSink(an_engine().facts, is_listening=False)
    steady = FoldingSink(late.state.facts, is_listening=watched_from_start)
    watched = an_engine(late, steady)
    for number, action in enumerate([*actions, Steps(1)]):
        if act(watched, late, action, number):
            for viewer in (late, steady):
                if viewer.is_listening:
                    assert_is_state_of(viewer.fold(), watched.scheduler, watched.engine.stats.steps)
    while watched.engine.has_unfinished:
        watched.step()
    watched.engine.close("done")
    if steady.is_listening:
        assert isinstance(steady.frames[-1], End)


ARRIVALS = st.tuples(st.text("abc", min_size=4, max_size=14), st.integers(0, 2), st.integers(0, 4))


@given(arrivals=st.lists(ARRIVALS, min_size=4, max_size=24), policy=st.sampled_from(SchedulingPolicy))
@settings(max_examples=200, deadline=None)
def test_the_evictions_told_are_those_of_the_pool(arrivals, policy):
    limits = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=32, policy=policy)
    watched = WatchedEngine(sink := FrameList(), limits=limits)
    pool = watched.scheduler.kv_cache.pool
    evicted: list[int] = []
    forget = pool._on_evict
    pool._on_evict = lambda blocks: (evicted.extend(blocks), forget(blocks))
    for number, (prompt, priority, steps) in enumerate(arrivals):
        watched.add(f"r{number}", prompt=prompt, max_tokens=12, priority=priority)
        watched.step(steps)
    while watched.engine.has_unfinished:
        watched.step()
    assert sum(getattr(frame, "num_evicted", 0) for frame in sink.frames) == len(evicted)
