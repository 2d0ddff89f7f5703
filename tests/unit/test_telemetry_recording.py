import errno
import logging
import os
import re

import pytest

from kvengine.errors import TelemetryError
from kvengine.telemetry.framing import LENGTH, PREAMBLE, encode_frame
from kvengine.telemetry.history import EventKind
from kvengine.telemetry.recorder import Recorder
from kvengine.telemetry.recording import Recording
from kvengine.telemetry.schema import End
from tests.watched_engine import WatchedEngine, record_a_run


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.kvrec"
    record_a_run(path)
    return path


def frame_borders(data: bytes) -> list[int]:
    """Offsets at which a frame ends, that of the preamble included."""
    borders = [len(PREAMBLE)]
    while borders[-1] < len(data):
        (length,) = LENGTH.unpack_from(data, borders[-1])
        borders.append(borders[-1] + LENGTH.size + length)
    return borders


def test_a_recording_tells_what_happened(run_file):
    with Recording.open(run_file) as recording:
        kinds = [(event.kind, event.request_id) for event in recording.events]
        assert recording.end == End(seq=len(recording) - 1, reason="done")
    assert kinds[:4] == [
        (EventKind.ARRIVE, "a"),
        (EventKind.ARRIVE, "b"),
        (EventKind.ADMIT, "a"),
        (EventKind.ADMIT, "b"),
    ]
    assert {kind for kind, _ in kinds} >= {EventKind.PREEMPT, EventKind.RESUME, EventKind.FINISH}
    assert next(name for kind, name in kinds if kind is EventKind.FINISH) == "d"


def test_any_step_can_be_read_in_any_order(run_file):
    with Recording.open(run_file) as recording:
        forward = [recording.read(position) for position in range(len(recording))]
        backward = [recording.read(position) for position in reversed(range(len(recording)))]
    for ahead, back in zip(forward, reversed(backward), strict=True):
        assert ahead.requests == back.requests
        assert ahead.blocks.codes.tolist() == back.blocks.codes.tolist()
        assert (ahead.step, ahead.totals, ahead.counters) == (back.step, back.totals, back.counters)
    assert [state.step for state in forward][:3] == [0, 1, 2]


def test_long_recordings_hold_snapshots_that_change_nothing(tmp_path):
    path = tmp_path / "long.kvrec"
    watched = WatchedEngine(sink := Recorder.create(path, WatchedEngine().facts))
    assert sink.is_listening
    for number in range(60):
        watched.add(f"r{number}", max_tokens=9)
        watched.step(9)
    watched.engine.close("done")
    with Recording.open(path) as recording:
        assert len(recording._snapshots) > 3
        assert [sample.step for sample in recording.samples] == list(range(60 * 9 + 1))
        assert recording.read(500).step == 500


def test_a_cut_at_every_byte_gives_whole_steps_or_one_clear_line(run_file, tmp_path):
    data = run_file.read_bytes()
    borders = frame_borders(data)
    # A tag stands after the array header (1 or 3 bytes) and the string header of its frame.
    is_step = [b"step" in data[border + LENGTH.size : border + LENGTH.size + 8] for border in borders[:-1]]
    cut = tmp_path / "cut.kvrec"
    for size in range(borders[14]):
        cut.write_bytes(data[:size])
        border = max((border for border in borders if border <= size), default=0)
        num_frames = borders.index(border) if border else 0
        steps = sum(is_step[:num_frames])
        if size == border and num_frames >= 2:  # hello and the first snapshot
            with Recording.open(cut) as recording:
                assert (len(recording), recording.end) == (steps + 1, None)
            continue
        with pytest.raises(TelemetryError) as refused:
            Recording.open(cut)
        assert "\n" not in refused.value.message
        assert refused.value.exit_code == 2
        if num_frames < 2:
            assert refused.value.hint == ""
            continue
        assert refused.value.message == f"{cut}: cut off inside a frame at byte {border}, after step {steps}"
        assert refused.value.hint == f"kvtop --partial {cut} shows the steps up to there"
        with Recording.open(cut, partial=True) as recording:
            assert len(recording) == steps + 1
            assert recording.read(steps).step == steps


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty, no telemetry in it"),
        (PREAMBLE[:3], "cut off after 3 bytes, before its first frame"),
        (b"id,step\n1,2\n", "not a kvtop recording"),
        (PREAMBLE, "no step was recorded"),
        (PREAMBLE[:-2] + b"\x09\x00", "telemetry version 9, this kvtop reads up to 1"),
    ],
)
def test_what_is_no_recording_is_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "x.kvrec"
    path.write_bytes(content)
    with pytest.raises(TelemetryError, match=f"^{re.escape(str(path))}: {message}") as refused:
        Recording.open(path, partial=True)
    assert "\n" not in refused.value.message


def test_a_missing_recording_is_refused(tmp_path):
    with pytest.raises(TelemetryError, match="cannot be opened"):
        Recording.open(tmp_path / "none.kvrec")


def test_a_damaged_frame_is_named_and_what_lies_before_it_can_be_seen(run_file):
    data = bytearray(run_file.read_bytes())
    border = frame_borders(bytes(data))[5]
    data[border + LENGTH.size] = 0xC1  # a byte that msgpack never uses
    run_file.write_bytes(data)
    # Frames 1 and 2 are hello and snapshot, so frame 5 is step 3.
    with pytest.raises(TelemetryError, match=f"damaged at byte {border}, after step 3"):
        Recording.open(run_file)
    with Recording.open(run_file, partial=True) as recording:
        assert len(recording) == 4


def test_a_missing_frame_is_noticed(run_file):
    data = run_file.read_bytes()
    borders = frame_borders(data)
    run_file.write_bytes(data[: borders[5]] + data[borders[6] :])
    with pytest.raises(TelemetryError, match=f"a frame is missing before byte {borders[5]}, after step 3"):
        Recording.open(run_file)


def test_a_recording_that_is_being_written_may_end_inside_a_frame_and_grows(tmp_path):
    path = tmp_path / "growing.kvrec"
    recorder = Recorder.create(path, WatchedEngine().facts)
    watched = WatchedEngine(recorder)
    watched.add("a", max_tokens=9)
    watched.step(2)
    frame = encode_frame(End(seq=2, reason="done"))
    os.write(recorder._fd, frame[:3])
    with Recording.open(path) as recording:
        assert recording.is_being_written
        assert len(recording) == 3
        assert not recording.extend()
        os.write(recorder._fd, frame[3:])
        recording.extend()
        assert recording.end is not None
        assert not recording.is_being_written
    watched.engine.close("done")


def test_a_new_recording_replaces_an_older_one_but_nothing_else(tmp_path, run_file):
    record_a_run(run_file, closes=True)
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(TelemetryError, match="there is a file that is not a recording"):
        Recorder.create(notes, WatchedEngine().facts)
    assert notes.read_text() == "mine"
    with pytest.raises(TelemetryError, match="something else"):
        Recorder.create(tmp_path, WatchedEngine().facts)
    with pytest.raises(TelemetryError, match="No such file or directory"):
        Recorder.create(tmp_path / "none" / "x.kvrec", WatchedEngine().facts)


def test_two_engines_do_not_write_one_recording(tmp_path):
    path = tmp_path / "x.kvrec"
    first = Recorder.create(path, WatchedEngine().facts)
    with pytest.raises(TelemetryError, match="another process is writing it"):
        Recorder.create(path, WatchedEngine().facts)
    first.close(encode_frame(End(seq=0, reason="done")))


def test_a_full_disk_ends_the_recording_at_a_whole_frame_and_not_the_engine(tmp_path, monkeypatch, caplog):
    path = tmp_path / "x.kvrec"
    recorder = Recorder.create(path, WatchedEngine().facts)
    watched = WatchedEngine(recorder)
    watched.add("a", max_tokens=9)
    watched.step(2)
    size = path.stat().st_size
    with monkeypatch.context() as full_disk, caplog.at_level(logging.WARNING):
        full_disk.setattr(os, "write", _disk_with_room_for(10, os.write))
        watched.step()
    assert "recording stopped" in caplog.text
    assert path.stat().st_size == size
    watched.step(3)
    watched.engine.close("done")
    with Recording.open(path) as recording:
        assert len(recording) == 3
        assert recording.end is None


def _disk_with_room_for(num_bytes: int, write):
    room = [num_bytes]

    def limited(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, data[: room[0]])
        room[0] -= written
        return written

    return limited
