"""`kvtop --record` without a terminal: a running engine into a recording, a server into lines of JSON."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from kvengine.observer import TelemetryPublisher
from kvengine.telemetry.recording import Recording
from kvtop.cli import main
from tests.foreign_servers import a_text, a_v1_text, a_web_server
from tests.watched_engine import WatchedEngine

PATIENCE_S = 20.0


def until(condition: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s, "did not come true"
        time.sleep(0.02)


class Recorder:
    """`kvtop TARGET --record FILE` in a process of its own, without a terminal."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvtop", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def end(self, number: signal.Signals | None = None) -> tuple[int, str]:
        if number is not None:
            self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, errors


@pytest.fixture
def watched(tmp_path) -> WatchedEngine:
    return WatchedEngine(
        publisher=lambda facts, clock: TelemetryPublisher.open(facts, clock=clock, socket=tmp_path / "engine.sock")
    )


def step_until_recorded(watched: WatchedEngine, path: Path) -> None:
    """Take the first step only once the recorder is there, so that it sees the first too."""
    until(lambda: bool(watched.publisher._sinks[0]._greeted))
    watched.add("a", max_tokens=9)
    watched.step(3)
    until(lambda: path.exists() and path.stat().st_size > 300)


def test_a_running_engine_is_recorded_up_to_its_end(watched, tmp_path):
    path = tmp_path / "seen.kvrec"
    recorder = Recorder(str(tmp_path / "engine.sock"), "--record", str(path))
    step_until_recorded(watched, path)
    while watched.engine.has_unfinished:
        watched.step()
    watched.engine.close("done")
    code, errors = recorder.end()
    assert (code, errors.splitlines()) == (0, [f"recording into {path}", f"recorded {path}"])
    with Recording.open(path) as recording:
        # 6 prompt tokens make the first output token, 8 more steps the rest.
        assert [sample.step for sample in recording.samples] == list(range(10))
        assert recording.end.reason == "done"
        assert recording.facts == watched.facts
        (request,) = recording.read(5).requests
        assert (request.request_id, request.num_output_tokens, request.num_computed_tokens) == ("a", 5, 10)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_recording_well(watched, tmp_path, number):
    path = tmp_path / "seen.kvrec"
    recorder = Recorder(str(tmp_path / "engine.sock"), "--record", str(path))
    step_until_recorded(watched, path)
    code, errors = recorder.end(number)
    watched.engine.close("done")
    assert (code, errors.splitlines()) == (0, [f"recording into {path}", f"recorded {path}"])
    with Recording.open(path) as recording:
        assert recording.end.reason == "recording stopped"


def test_an_engine_that_is_killed_leaves_a_recording_and_exit_code_2(watched, tmp_path):
    path = tmp_path / "seen.kvrec"
    recorder = Recorder(str(tmp_path / "engine.sock"), "--record", str(path))
    step_until_recorded(watched, path)
    for viewer in watched.publisher._sinks[0]._viewers:
        viewer.close()  # what a kill does to the socket
    code, errors = recorder.end()
    watched.engine.close("done")
    assert code == 2
    assert errors.splitlines()[-1] == "error: engine.sock: the engine went away without a goodbye"
    with Recording.open(path) as recording:
        assert recording.samples[-1].step == 3
        assert recording.end is None


def test_a_disk_that_takes_no_more_ends_the_recording_at_its_last_whole_frame(watched, tmp_path):
    path = tmp_path / "seen.kvrec"
    recorder = Recorder(str(tmp_path / "engine.sock"), "--record", str(path))
    step_until_recorded(watched, path)
    # What a full disk does: the next frame is cut off after ten bytes.
    most = path.stat().st_size + 10
    resource.prlimit(recorder.process.pid, resource.RLIMIT_FSIZE, (most, most))
    watched.step()
    code, errors = recorder.end()
    watched.engine.close("done")
    assert code == 2
    assert errors.splitlines()[-1] == f"error: {path}: recording stopped, the disk took no more"
    with Recording.open(path) as recording:
        assert recording.samples[-1].step == 3


def test_a_file_that_is_no_recording_is_not_overwritten(watched, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    recorder = Recorder(str(tmp_path / "engine.sock"), "--record", str(path))
    until(lambda: bool(watched.publisher._sinks[0]._greeted))
    watched.step()
    code, errors = recorder.end()
    watched.engine.close("done")
    assert (code, errors) == (2, f"error: {path}: cannot be written (there is a file that is not a recording)\n")
    assert path.read_text() == "hello"


def test_the_answers_of_a_server_become_lines_of_json(tmp_path):
    usages = iter(["0.42", "0.5", "0.5"])

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(a_text(*a_v1_text(usage=next(usages, "0.5"))))

        def log_message(self, format: str, *args: object) -> None:
            pass

    path = tmp_path / "server.jsonl"
    with a_web_server(Answers) as address:
        recorder = Recorder(address, "--record", str(path))
        until(lambda: path.exists() and path.read_bytes().count(b"\n") >= 2)
        code, _ = recorder.end(signal.SIGINT)
    assert code == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["total"]["gauges"]["used_blocks"] for line in lines[:2]] == [42, 50]
    assert {(line["schema"], line["state"], line["url"]) for line in lines} == {
        ("kvtop.server/1", "ok", f"{address}/metrics")
    }
    assert lines[1]["time_unix_s"] > lines[0]["time_unix_s"]


def test_without_an_engine_there_is_nothing_to_record(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert main(["--record", str(tmp_path / "x.kvrec")]) == 2
    assert "no engine is running" in capsys.readouterr().err
