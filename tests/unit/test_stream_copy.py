"""A viewer's own recording: what it saw, readable like one that the engine made."""

from kvengine.telemetry.recording import Recording
from kvengine.telemetry.schema import Delta, End, Snapshot
from kvengine.telemetry.state import StreamState
from kvengine.telemetry.stream_copy import StreamCopy
from tests.watched_engine import FrameList, WatchedEngine, frames_of_a_run


def copied(path, facts, frames) -> None:
    state = StreamState(facts)
    copy = StreamCopy.begin(path, state)
    for frame in frames:
        state.apply(frame)
        copy.take(frame, state)
    copy.take(End(seq=state.seq, reason="done"), state)


def test_every_position_is_as_the_stream_told_it(tmp_path):
    facts, frames = frames_of_a_run(6)
    copied(tmp_path / "copy.kvrec", facts, frames)
    state = StreamState(facts)
    with Recording.open(tmp_path / "copy.kvrec") as recording:
        assert len(recording) == len(frames)
        for position, frame in enumerate(frames):
            state.apply(frame)
            read, told = recording.read(position), state.freeze()
            assert (read.requests, read.totals, read.step) == (told.requests, told.totals, told.step)
            assert [(a == b).all() for a, b in zip(read.blocks.arrays(), told.blocks.arrays(), strict=True)] == [
                True
            ] * 5


def test_after_a_gap_the_recording_goes_on_with_the_snapshot_that_mended_it(tmp_path):
    facts, frames = frames_of_a_run(6)
    whole = StreamState(facts)
    for frame in frames[:5]:
        whole.apply(frame)
    mended = whole.snapshot()
    # Delta 3 never comes, delta 4 does not follow, then the engine sends a snapshot of what is after it.
    copied(tmp_path / "copy.kvrec", facts, [*frames[:3], frames[4], mended, *frames[5:]])
    with Recording.open(tmp_path / "copy.kvrec") as recording:
        assert [sample.step for sample in recording.samples] == [0, 1, 2, 4, 5, 6]


def test_a_recording_that_begins_amid_a_stream_begins_with_the_state_there(tmp_path):
    facts, frames = frames_of_a_run(6)
    state = StreamState(facts)
    for frame in frames[:4]:
        state.apply(frame)
    copy = StreamCopy.begin(tmp_path / "copy.kvrec", state)
    for frame in frames[4:]:
        state.apply(frame)
        copy.take(frame, state)
    copy.close()
    with Recording.open(tmp_path / "copy.kvrec") as recording:
        assert [sample.step for sample in recording.samples] == [3, 4, 5, 6]
        assert recording.end is None


def test_snapshots_go_in_so_that_a_late_step_is_reached_without_all_before_it(tmp_path):
    sink = FrameList()
    watched = WatchedEngine(sink, num_blocks=65)
    watched.add("a", "b", "c", max_tokens=60)
    watched.step(59)
    frames = [frame for frame in sink.frames if isinstance(frame, Snapshot | Delta)]
    copied(tmp_path / "copy.kvrec", watched.facts, frames)
    with Recording.open(tmp_path / "copy.kvrec") as recording:
        assert len(recording._snapshots) > 1
        assert recording.read(59).requests == recording.go_to(59).freeze().requests
