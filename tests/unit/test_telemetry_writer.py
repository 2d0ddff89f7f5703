import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvengine.errors import TelemetryError
from kvengine.observer import TelemetryPublisher
from kvengine.telemetry import writer
from kvengine.telemetry.engine_list import discover
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.runtime_dir import runtime_dir
from kvengine.telemetry.schema import Delta, End, Frame, Hello, Snapshot
from kvengine.telemetry.state import StreamState
from kvengine.telemetry.writer import ViewerServer
from tests.watched_engine import WatchedEngine


@pytest.fixture(autouse=True)
def private_runtime_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "pagedkv"


@pytest.fixture
def a_listening_engine():
    """Makes engines that listen, and closes those that the test has not closed."""
    made: list[WatchedEngine] = []

    def make(**settings) -> WatchedEngine:
        made.append(WatchedEngine(publisher=listen, **settings))
        return made[-1]

    def listen(facts, clock):
        return TelemetryPublisher.open(facts, clock=clock, socket=True)

    yield make
    for watched in made:
        watched.engine.close("done")


def only_socket() -> Path:
    (path,) = runtime_dir().glob("*.sock")
    return path


def attach(watched: WatchedEngine) -> Attachment:
    """Attach, and wait until the engine has greeted."""
    server = watched.publisher._sinks[0]
    num_before = len(server._viewers) + len(server._greeted)
    attachment = Attachment.open(server.path)
    give_up_s = time.monotonic() + 5.0
    while len(server._viewers) + len(server._greeted) == num_before:
        assert time.monotonic() < give_up_s, "nobody greets"
        time.sleep(0.001)
    return attachment


def receive_until(attachment: Attachment, wanted: type[Frame], *, within_s: float = 5.0) -> list[Frame]:
    frames: list[Frame] = []
    give_up_s = time.monotonic() + within_s
    while not any(isinstance(frame, wanted) for frame in frames):
        assert time.monotonic() < give_up_s, f"no {wanted.__name__} came, only {[type(f).__name__ for f in frames]}"
        more = attachment.receive(0.1)
        assert more is not None, "the engine went away"
        frames += more
    return frames


def test_a_viewer_gets_hello_then_snapshot_then_deltas(a_listening_engine):
    watched = a_listening_engine()
    watched.add("a", max_tokens=9)
    watched.step(2)
    with attach(watched) as viewer:
        watched.step(3)
        frames = receive_until(viewer, Delta)
        watched.engine.close("done")
        frames += receive_until(viewer, End)
        assert viewer.receive(1.0) is None
    assert [type(frame) for frame in frames] == [Hello, Snapshot, Delta, Delta, End]
    assert frames[0] == watched.facts
    assert [frame.step for frame in frames[1:4]] == [3, 4, 5]
    assert not list(runtime_dir().iterdir()), "the socket is taken away"


def test_two_viewers_that_come_at_different_times_see_the_same(a_listening_engine):
    watched = a_listening_engine()
    watched.add("a", "b", max_tokens=9)
    watched.step()
    first = attach(watched)
    watched.step(2)
    second = attach(watched)
    watched.step(2)
    watched.engine.close("done")
    states = []
    for viewer in (first, second):
        with viewer:
            frames = receive_until(viewer, End)
        state = StreamState(watched.facts)
        for frame in frames[1:]:
            assert state.apply(frame)
        states.append(state.freeze())
    assert states[0].requests == states[1].requests
    assert states[0].blocks.codes.tolist() == states[1].blocks.codes.tolist()
    assert states[0].step == states[1].step == 5


def test_a_viewer_that_reads_nothing_never_holds_the_engine_up_and_recovers_with_a_snapshot(
    a_listening_engine, monkeypatch
):
    monkeypatch.setattr(writer, "MAX_PENDING_BYTES", 2000)
    watched = a_listening_engine()
    with attach(watched) as slow:
        # Each step is some 100 bytes; a socket takes some 200 kB before it would block.
        num_steps = 6000
        for number in range(num_steps // 6):
            watched.add(f"r{number}", max_tokens=6)
            watched.step(6)
        state = StreamState(watched.facts)
        num_snapshots = 0
        while state.lost or not state.is_started or state.freeze().step < num_steps + 1:
            frames = slow.receive(0.01)
            assert frames is not None
            for frame in frames:
                if not isinstance(frame, Hello):
                    assert state.apply(frame), "deltas are dropped whole and a snapshot fills the gap"
                    num_snapshots += isinstance(frame, Snapshot)
            if not frames:
                watched.step()
    assert num_snapshots > 1
    watched.engine.close("done")


def test_a_viewer_that_stays_stuck_is_cut_off(a_listening_engine, monkeypatch):
    monkeypatch.setattr(writer, "STALLED_AFTER_S", -1.0)
    watched = a_listening_engine()
    stuck = attach(watched)
    server = watched.publisher._sinks[0]
    for number in range(2000):
        watched.add(f"r{number}", max_tokens=6)
        watched.step(6)
        if number and not server.is_listening:
            break
    assert not server.is_listening
    stuck.close()
    watched.engine.close("done")


def test_a_viewer_that_hangs_up_is_forgotten(a_listening_engine):
    watched = a_listening_engine()
    watched.add("a", max_tokens=9)
    attach(watched).close()
    watched.step(3)
    assert not watched.publisher._sinks[0].is_listening
    watched.engine.close("done")


def test_a_killed_viewer_does_not_disturb_the_engine(a_listening_engine):
    watched = a_listening_engine()
    code = f"import socket, time; s = socket.socket(socket.AF_UNIX); s.connect({str(only_socket())!r}); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code]) as viewer:
        while not watched.publisher._sinks[0].is_listening:
            watched.step()
            time.sleep(0.01)
        viewer.send_signal(signal.SIGKILL)
    watched.add("a", max_tokens=9)
    watched.step(12)
    assert not watched.engine.has_unfinished
    assert not watched.publisher._sinks[0].is_listening
    watched.engine.close("done")


def test_a_viewer_that_attaches_between_steps_is_served_by_polling(a_listening_engine):
    watched = a_listening_engine()
    watched.add("a", max_tokens=9)
    watched.step()
    with attach(watched) as viewer:
        watched.publisher.poll()
        frames = receive_until(viewer, Snapshot)
        watched.add("late")
        watched.publisher.poll()
        frames += receive_until(viewer, Delta)
    assert frames[1].step == frames[2].step == 1
    assert [state.request_id for state in frames[2].arrived] == ["late"]
    watched.engine.close("done")


def test_the_socket_lies_in_a_folder_that_only_its_user_can_enter(a_listening_engine, private_runtime_dir):
    watched = a_listening_engine()
    assert private_runtime_dir.stat().st_mode & 0o777 == 0o700
    assert only_socket().stat().st_mode & 0o777 == 0o600
    watched.engine.close("done")


def test_without_a_runtime_dir_the_folder_is_in_tmp_and_named_by_user(monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert runtime_dir() == Path(f"/tmp/pagedkv-{os.getuid()}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "relative")
    assert runtime_dir() == Path(f"/tmp/pagedkv-{os.getuid()}")


def test_a_folder_that_others_could_have_filled_is_refused(a_listening_engine, private_runtime_dir, tmp_path):
    private_runtime_dir.mkdir(mode=0o755)
    private_runtime_dir.chmod(0o755)
    with pytest.raises(TelemetryError, match=r"expected a folder of yours with mode 0700.*mode 0755"):
        a_listening_engine()
    private_runtime_dir.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    private_runtime_dir.symlink_to(elsewhere)
    with pytest.raises(TelemetryError, match="found a link"):
        a_listening_engine()
    with pytest.raises(TelemetryError, match="found a link"):
        discover()


def test_dead_sockets_are_passed_over_by_viewers_and_removed_by_the_next_engine(
    a_listening_engine, private_runtime_dir
):
    private_runtime_dir.mkdir(mode=0o700)
    dead = private_runtime_dir / "1-1.sock"
    with socket.socket(socket.AF_UNIX) as abandoned:
        abandoned.bind(str(dead))
    assert discover() == []
    assert dead.exists(), "looking removes nothing"
    with pytest.raises(TelemetryError, match="nobody listens on this socket"):
        Attachment.open(dead)
    watched = a_listening_engine()
    assert not dead.exists()
    watched.engine.close("done")


def test_a_socket_never_replaces_a_file_or_a_living_socket(tmp_path):
    facts = WatchedEngine().facts
    notes = tmp_path / "notes"
    notes.write_text("mine")
    with pytest.raises(TelemetryError, match="there is something else"):
        ViewerServer.listen(facts, path=notes)
    living = ViewerServer.listen(facts, path=tmp_path / "living.sock")
    with pytest.raises(TelemetryError, match="there is something else"):
        ViewerServer.listen(facts, path=tmp_path / "living.sock")
    living.close(b"")
    ViewerServer.listen(facts, path=tmp_path / "living.sock").close(b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes"]


def test_a_path_too_long_for_a_socket_is_refused_with_the_limit(tmp_path):
    with pytest.raises(TelemetryError, match=r"too long for a unix socket \(at most 103 bytes\)"):
        ViewerServer.listen(WatchedEngine().facts, path=tmp_path / ("x" * 100))


def test_running_engines_are_discovered_with_what_they_say_even_while_a_step_runs(a_listening_engine):
    # Neither engine is stepped or polled: whoever looks is greeted all the same.
    one, two = a_listening_engine(num_blocks=9), a_listening_engine(num_blocks=17)
    assert [engine.facts for engine in discover()] == [one.facts, two.facts]
    one.engine.close("done")
    two.engine.close("done")
    assert discover() == []


def test_a_program_on_the_socket_that_says_nothing_is_listed_without_facts(private_runtime_dir):
    private_runtime_dir.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(private_runtime_dir / "1-1.sock"))
        silent.listen()
        assert [engine.facts for engine in discover()] == [None]


def test_a_viewer_of_a_stream_that_is_none_gets_one_line(tmp_path):
    path = tmp_path / "x.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        viewer = Attachment.open(path)
        connection, _ = listener.accept()
        connection.sendall(b"220 smtp ready\r\n")
        with viewer, pytest.raises(TelemetryError, match="not a kvtop recording or engine"):
            viewer.receive(1.0)
        connection.close()
