import pytest

from kvengine.allocators.kinds import AllocatorKind
from kvengine.config import SchedulerConfig
from kvengine.observer import TelemetryPublisher
from kvengine.telemetry.schema import Admitted, Delta, Finished, Preempted, Snapshot, Status
from tests.builders import a_request
from tests.watched_engine import STEP_S, FrameList, WatchedEngine


def deltas_of(sink: FrameList) -> list[Delta]:
    return [frame for frame in sink.frames if isinstance(frame, Delta)]


def test_a_stream_begins_with_the_empty_pool_so_that_the_first_step_is_told_in_full():
    sink = FrameList()
    watched = WatchedEngine(sink)
    watched.add("a", "b")
    watched.step()
    snapshot, delta = sink.frames
    assert isinstance(snapshot, Snapshot)
    assert (snapshot.seq, snapshot.step, snapshot.requests, snapshot.totals.free) == (0, 0, [], 8)
    assert (delta.seq, delta.step) == (1, 1)
    assert [state.request_id for state in delta.arrived] == ["a", "b"]
    # Six equal prompt tokens in blocks of four: the second hits the first block, and both take one of their own.
    assert delta.admitted == [Admitted(1, 0, False, [1, 2]), Admitted(2, 4, False, [1, 3])]
    assert (delta.totals.used, delta.totals.shared) == (2, 1)


def test_a_preemption_tells_how_many_blocks_were_given_up():
    # Both end at 6 + 13 tokens, 18 of them computed: 5 blocks each. The common prefix has 1 block, so both need 9 of 8.
    sink = FrameList()
    watched = WatchedEngine(sink)
    watched.add("a", prompt="abcdef", max_tokens=13)
    watched.add("b", prompt="abcdxy", max_tokens=13)
    while watched.engine.has_unfinished:
        watched.step()
    preempted = [frame for frame in deltas_of(sink) if frame.preempted]
    assert [frame.preempted for frame in preempted] == [[Preempted(2, 4)]]
    resumed = [admitted for frame in deltas_of(sink) for admitted in frame.admitted if admitted.resumed]
    assert [admitted.handle for admitted in resumed] == [2]


def test_finished_and_aborted_requests_are_told_with_their_reason():
    sink = FrameList()
    watched = WatchedEngine(sink)
    watched.add("a", max_tokens=1)
    watched.add("b", max_tokens=9)
    watched.step()
    watched.engine.abort(a_request("b").request_id)
    watched.step()
    assert [frame.finished for frame in deltas_of(sink)] == [[Finished(1, "length", 1)], [Finished(2, "abort", 1)]]


def test_a_request_that_its_caller_saw_the_end_of_is_told_and_counted_as_complete():
    sink = FrameList()
    watched = WatchedEngine(sink)
    watched.add("a", max_tokens=9)
    watched.step()
    watched.engine.finish(a_request("a").request_id)
    watched.engine.finish(a_request("a").request_id)  # it has ended already
    watched.step()
    assert [frame.finished for frame in deltas_of(sink)] == [[], [Finished(1, "stop", 1)]]
    assert (watched.engine.stats.finished, watched.engine.stats.aborted) == (1, 0)


def test_times_count_from_the_start_of_the_publisher():
    sink = FrameList()
    watched = WatchedEngine(sink)
    watched.add("a")
    watched.clock.advance(STEP_S)
    watched.step(2)
    assert [frame.time_s for frame in deltas_of(sink)] == [STEP_S, 2 * STEP_S]


def test_a_viewer_in_the_middle_of_a_run_starts_from_what_is_there():
    sink = FrameList(is_listening=False)
    watched = WatchedEngine(sink, limits=SchedulerConfig(max_num_seqs=1))
    watched.add("a", "b", max_tokens=9)
    watched.step(3)
    sink.is_listening = True
    watched.step()
    (snapshot,) = sink.frames
    assert (snapshot.seq, snapshot.step) == (0, 4)
    assert [(state.request_id, state.status) for state in snapshot.requests] == [
        ("a", Status.RUNNING),
        ("b", Status.WAITING),
    ]


def test_a_step_and_request_takes_at_most_a_hundred_bytes():
    limits = SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=512)
    sink = FrameList()
    watched = WatchedEngine(sink, num_blocks=1000, block_size=16, limits=limits)
    for number in range(64):
        watched.add(f"request-{number:04}", prompt=[number, *range(200)], max_tokens=100)
    num_requests = 0
    while watched.engine.has_unfinished:
        watched.step()
        num_requests += len(deltas_of(sink)[-1].progress)
    assert num_requests > 5000
    assert sum(sink.num_delta_bytes) / num_requests < 25


def test_a_lone_request_takes_at_most_a_hundred_bytes_a_step():
    sink = FrameList()
    watched = WatchedEngine(sink, num_blocks=1000, block_size=16)
    watched.add("request-0000", prompt=list(range(200)), max_tokens=1000)
    watched.step(1000)
    assert sum(sink.num_delta_bytes) / 1000 <= 100


def test_nothing_is_kept_while_nobody_listens():
    watched = WatchedEngine(FrameList(is_listening=False))
    publisher = watched.publisher
    for number in range(50):
        watched.add(f"r{number}")
        watched.step(5)
    assert publisher._frames is None
    assert publisher._queued is None
    assert watched.scheduler.kv_cache.pool.take_changes() == []


def test_a_publisher_without_any_sink_is_harmless():
    watched = WatchedEngine(publisher=lambda facts, clock: TelemetryPublisher.open(facts, clock=clock, socket=False))
    watched.add("a")
    watched.step(4)
    watched.engine.close("done")


def test_waits_for_tokens_are_told_as_they_end():
    # Steps are half a second apart. Both get their first token in the first step, at the time of their arrival.
    sink = FrameList()
    watched = WatchedEngine(sink)
    watched.add("a", "b", max_tokens=3)
    watched.step(2)
    watched.add("c", max_tokens=3)
    watched.clock.advance(STEP_S)
    watched.step(1)
    first, second, third = deltas_of(sink)
    assert (first.first_tokens_s, first.token_gaps_s) == ([0.0, 0.0], [])
    assert (second.first_tokens_s, second.token_gaps_s) == ([], [STEP_S, 2])
    # c waited a step's time for its first token, and a and b two for their last.
    assert (third.first_tokens_s, third.token_gaps_s) == ([STEP_S], [2 * STEP_S, 2])


def test_blocks_that_a_step_fills_are_told_with_the_one_before():
    sink = FrameList()
    watched = WatchedEngine(sink)
    watched.add("a", prompt="abcdefghij", max_tokens=4)
    watched.step(3)
    # Ten tokens fill the blocks 1 and 2; the two tokens of the next steps fill block 3.
    assert [frame.cached for frame in deltas_of(sink)] == [[1, 0, 2, 1], [], [3, 2]]


def test_a_request_carries_the_times_of_its_way():
    sink = FrameList()
    watched = WatchedEngine(sink, limits=SchedulerConfig(max_num_seqs=1))
    watched.add("a", "b", max_tokens=2)
    watched.step(2)
    sink.wants_snapshot = True
    watched.step()
    (state,) = [frame for frame in sink.frames if isinstance(frame, Snapshot)][-1].requests
    assert state.request_id == "b"
    assert (state.arrived_s, state.admitted_s, state.first_token_s) == (0.0, 2 * STEP_S, 2 * STEP_S)


def test_what_a_viewer_missed_has_no_times():
    sink = FrameList(is_listening=False)
    watched = WatchedEngine(sink)
    watched.add("a", max_tokens=9)
    watched.step(2)
    sink.is_listening = True
    watched.step()
    (snapshot,) = sink.frames
    assert snapshot.requests[0].arrived_s is None
    watched.step()
    # Its second token since the watching began is the first with a known gap.
    assert [frame.token_gaps_s for frame in deltas_of(sink)] == [[]]
    watched.step()
    assert deltas_of(sink)[-1].token_gaps_s == [STEP_S, 1]


def test_a_stream_says_how_much_is_on_the_host_and_of_an_engine_that_never_swaps_nothing() -> None:
    viewer = FrameList()
    watched = WatchedEngine(viewer, num_blocks=4, num_host_blocks=5)
    for name, prompt in (("a", "abcdefgh"), ("b", "stuv")):
        watched.add(name, prompt=prompt, max_tokens=4)
    watched.step(2)  # a takes the third block and b finds none; its own moves to the host
    counters = viewer.frames[-1].counters
    assert watched.facts.host_blocks == 5
    assert (counters.swapped_out_blocks, counters.swapped_out_tokens, counters.host_blocks_in_use) == (1, 4, 1)
    assert counters.swapped_in_blocks == 0

    plain = FrameList()
    watched = WatchedEngine(plain)
    watched.add("a", prompt="abcd", max_tokens=2)
    watched.step(1)
    assert watched.facts.host_blocks is None
    assert plain.frames[-1].counters.swapped_out_blocks is None
    assert plain.frames[-1].counters.host_blocks_in_use is None


@pytest.mark.parametrize("allocator", [AllocatorKind.PAGED, AllocatorKind.CONTIGUOUS, AllocatorKind.TOKEN_LEVEL])
def test_nothing_is_written_down_for_a_viewer_that_has_left(allocator: AllocatorKind):
    sink = FrameList()
    block_size = 4 if allocator is AllocatorKind.PAGED else 1
    limits = SchedulerConfig(max_model_len=64)
    watched = WatchedEngine(sink, num_blocks=80, block_size=block_size, limits=limits, allocator=allocator)
    watched.add("a", max_tokens=40)
    watched.step()
    sink.is_listening = False
    for _ in range(30):
        watched.step()

    pool = watched.scheduler.kv_cache.pool
    assert pool.take_changes() == []
    sink.is_listening = sink.wants_snapshot = True
    watched.step()
    snapshot = sink.frames[-1]
    assert isinstance(snapshot, Snapshot)
    assert snapshot.totals.used == pool.num_used > 0


def test_blocks_that_are_withheld_between_steps_are_told_at_once():
    sink = FrameList()
    watched = WatchedEngine(sink)
    watched.add("a")
    watched.step()
    told = len(sink.frames)
    watched.scheduler.resize_pool(5)
    watched.publisher.poll()

    (delta,) = sink.frames[told:]
    assert isinstance(delta, Delta)
    assert delta.totals.free + delta.totals.cached_free + delta.totals.used + delta.totals.shared == 5
