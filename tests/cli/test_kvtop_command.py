import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from kvengine.observer import TelemetryPublisher
from kvtop.cli import main
from tests.watched_engine import WatchedEngine, record_a_run


@pytest.fixture(autouse=True)
def private_runtime_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def run_file(tmp_path) -> Path:
    path = tmp_path / "run.kvrec"
    record_a_run(path)
    return path


def refusal_of(capsys, *arguments: str) -> list[str]:
    """The lines on stderr of a command line that is refused with exit code 2."""
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err.splitlines()


def test_without_an_engine_it_says_so_and_what_to_do(capsys):
    assert refusal_of(capsys) == [
        "error: no engine is running on this machine",
        "hint: start one with `kvplan run PROFILE`, or open a recording with `kvtop FILE`",
    ]


def test_a_missing_file_is_one_line(capsys):
    assert refusal_of(capsys, "nope.kvrec")[0] == "error: nope.kvrec: No such file or directory"


def test_a_file_that_is_no_recording_is_one_line(capsys, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    assert refusal_of(capsys, str(path)) == [
        f"error: {path}: not a kvtop recording or engine (it starts with b'hello')"
    ]


def test_a_folder_is_neither(capsys, tmp_path):
    assert refusal_of(capsys, str(tmp_path)) == [f"error: {tmp_path}: neither a recording nor a socket"]


def test_a_dead_socket_is_one_line(capsys, tmp_path):
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as abandoned:
        abandoned.bind(str(path))
    assert refusal_of(capsys, str(path))[0] == f"error: {path}: nobody listens on this socket; its engine has gone"


def test_an_address_is_refused_until_it_can_be_watched(capsys):
    (line,) = refusal_of(capsys, "http://localhost:8000")
    assert line.startswith("error: http://localhost:8000: only recordings and sockets")


def test_a_cut_off_recording_is_named_with_the_way_to_see_the_rest(capsys, run_file):
    whole = run_file.read_bytes()
    run_file.write_bytes(whole[:-1])
    error, hint = refusal_of(capsys, str(run_file))
    assert error.startswith(f"error: {run_file}: cut off inside a frame at byte ")
    assert hint == f"hint: kvtop --partial {run_file} shows the steps up to there"
    assert main([str(run_file), "--partial", "--once"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] > 0


def test_a_wrong_option_is_one_line(capsys):
    error, hint = refusal_of(capsys, "--frobnicate")
    assert error.startswith("error: No such option: --frobnicate")
    assert hint == "hint: kvtop --help"


def test_without_a_terminal_the_view_is_refused(capsys, run_file):
    assert refusal_of(capsys, str(run_file)) == [
        "error: the view needs a terminal on stdin and stderr",
        "hint: kvtop --once --json",
    ]


def test_once_prints_the_last_state_of_a_recording_as_json(capsys, run_file):
    assert main([str(run_file), "--once", "--json"]) == 0
    state = json.loads(capsys.readouterr().out)
    assert state["schema"] == "kvtop.state/1"
    assert state["requests"] == []
    assert state["totals"]["used"] == 0
    assert state["blocks"]["null"] == [0]
    assert sum(map(len, state["blocks"].values())) == state["engine"]["num_blocks"] == 9
    # Three requests ran to their 9 output tokens, and one was aborted.
    assert (state["counters"]["finished"], state["counters"]["aborted"]) == (3, 1)


def test_json_goes_with_once(capsys):
    assert refusal_of(capsys, "--json")[0] == "error: --json prints one state, so it goes with --once"


def test_once_prints_the_state_of_a_running_engine(capsys, tmp_path):
    watched = WatchedEngine(publisher=lambda facts, clock: TelemetryPublisher.open(facts, clock=clock))
    watched.add("a", max_tokens=9)
    watched.step()
    is_over = Event()

    def keep_polling() -> None:
        while not is_over.wait(0.01):
            watched.publisher.poll()

    with ThreadPoolExecutor() as pool:
        pool.submit(keep_polling)
        try:
            assert main(["--once"]) == 0
        finally:
            is_over.set()
    watched.engine.close("done")
    (request,) = json.loads(capsys.readouterr().out)["requests"]
    assert (request["request_id"], request["status"], request["block_table"]) == ("a", "running", [1, 2])
