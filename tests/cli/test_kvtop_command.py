import json
import socket
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event

import pytest

from kvengine.observer import TelemetryPublisher
from kvtop.cli import main
from tests.foreign_servers import a_message, a_text, a_v1_text, a_web_server, stored
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


@pytest.mark.parametrize("option", ["--once", "--dump"])
def test_without_an_engine_what_prints_once_says_so_and_what_to_do(capsys, option):
    assert refusal_of(capsys, option) == [
        "error: no engine is running on this machine",
        "hint: start one with `kvplan run PROFILE`, open a recording with `kvtop FILE`, or try `kvtop --demo`",
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


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("ftp://localhost",), "expected an address such as http://127.0.0.1:8000, got 'ftp://localhost'"),
        (("http://",), "expected an address such as http://127.0.0.1:8000, got 'http://'"),
        (("http://localhost", "--kv-events", "5557"), "--kv-events: expected an address such as tcp://127.0.0.1:5557"),
        (("http://localhost", "--kv-events-replay", "tcp://a:1"), "--kv-events-replay goes with --kv-events"),
        (("http://localhost", "--no-kv-events", "--kv-events", "tcp://a:1"), "exclude each other"),
    ],
)
def test_an_address_that_is_none_is_one_line(capsys, arguments, error):
    assert error in refusal_of(capsys, *arguments)[0]


def test_kv_events_are_of_servers(capsys, run_file):
    error, hint = refusal_of(capsys, str(run_file), "--kv-events", "tcp://127.0.0.1:5557")
    assert error == f"error: {run_file}: KV events are of servers, and this is none"
    assert hint == "hint: kvtop http://HOST:PORT"


def test_a_token_is_not_sent_over_a_network_in_the_clear(capsys, monkeypatch):
    monkeypatch.setenv("KVTOP_TOKEN", "secret")
    error, hint = refusal_of(capsys, "http://example.invalid:8000", "--once")
    assert error == "error: http://example.invalid:8000: KVTOP_TOKEN would be sent over the network in the clear"
    assert hint == "hint: use https://, or unset KVTOP_TOKEN for this server"


def test_a_server_that_is_not_there_is_one_line(capsys):
    (line,) = refusal_of(capsys, "http://127.0.0.1:9", "--once")
    assert line == "error: http://127.0.0.1:9/metrics: unreachable (connection refused)"


def test_once_prints_an_answer_of_a_server_and_null_for_what_it_does_not_say(capsys, monkeypatch):
    tokens: list[str | None] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tokens.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(a_text(*a_v1_text(usage="0.42")))

        def log_message(self, format: str, *args: object) -> None:
            pass

    monkeypatch.setenv("KVTOP_TOKEN", "secret")
    with a_web_server(Answers) as address:
        assert main([address, "--once", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["url"], answer["state"]) == ("kvtop.server/1", f"{address}/metrics", "ok")
    gauges = answer["total"]["gauges"]
    assert (gauges["used_blocks"], gauges["usable_blocks"], gauges["cached_blocks"]) == (42, 100, None)
    assert set(tokens) == {"Bearer secret"}


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


def test_once_and_dump_show_the_place_that_is_asked_for(capsys, run_file):
    assert main([str(run_file), "--once", "--at", "#3"]) == 0
    state = json.loads(capsys.readouterr().out)
    # a and b take two steps before c and d come; all four run in step 3.
    assert (state["step"], [request["request_id"] for request in state["requests"]]) == (3, ["a", "b", "c", "d"])
    # Steps are half a second apart, the first at 0 s.
    assert main([str(run_file), "--once", "--at", "1.2s"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 3
    assert main([str(run_file), "--dump", "--size", "100x30", "--at", "#3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 30
    assert max(map(len, lines)) <= 100
    assert "RECORDING" in lines[0]
    assert "step 3" in lines[0]
    assert "● run 4" in lines[1]


def test_dump_shows_the_end_of_a_recording_unless_told_otherwise(capsys, run_file):
    assert main([str(run_file), "--dump"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 40
    assert "run 0" in lines[1]
    assert any("no request is waiting or running" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--at", "soon"), "--at: expected a time such as 12.5s or 1m30s, or a step such as #120, got 'soon'"),
        (("--dump", "--size", "12"), "--size: expected COLUMNSxLINES of 20 to 1000 each, such as 120x40, got '12'"),
        (("--dump", "--size", "9x9"), "--size: expected COLUMNSxLINES of 20 to 1000 each, such as 120x40, got '9x9'"),
        (("--dump", "--once"), "--once and --dump exclude each other"),
        (("--dump", "--record", "x.kvrec"), "--dump and --record exclude each other"),
        (("--record", "x.kvrec"), "--record: {run} is a recording already"),
        (("--ca-file", "x.pem"), "{run}: --ca-file is for https:// addresses, and this is none"),
    ],
)
def test_options_that_cannot_be_are_one_line(capsys, run_file, arguments, error):
    assert refusal_of(capsys, str(run_file), *arguments)[0] == "error: " + error.format(run=run_file)


def test_a_place_is_of_a_recording(capsys):
    assert refusal_of(capsys, "http://127.0.0.1:9", "--once", "--at", "#1")[0] == (
        "error: --at is a place in a recording"
    )


def test_a_dump_of_a_server_that_does_not_answer_is_one_line(capsys):
    (line,) = refusal_of(capsys, "http://127.0.0.1:9", "--dump")
    assert line == "error: http://127.0.0.1:9: connection refused"


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


def test_two_recordings_are_dumped_side_by_side(capsys, run_file, tmp_path):
    other = tmp_path / "other.kvrec"
    record_a_run(other)
    assert main([str(run_file), "--compare", str(other), "--dump", "--size", "160x44", "--at", "#3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].count("step 3") == 2
    assert any("together by step" in line for line in lines)
    assert any("● running" in line and "±0" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--compare", "x.kvrec"), "--compare needs a TARGET to compare with"),
        (("{run}", "--compare", "nope.kvrec"), "nope.kvrec: No such file or directory"),
        (("{run}", "--compare", "{run}", "--once"), "--compare and --once exclude each other"),
        (("--demo", "--dump"), "--demo brings its own engine: it takes no TARGET, --compare, --once or --dump"),
    ],
)
def test_comparisons_that_cannot_be_are_one_line(capsys, run_file, arguments, error):
    given = [argument.format(run=run_file) for argument in arguments]
    assert refusal_of(capsys, *given)[0] == f"error: {error}"


def test_once_prints_what_events_tell_where_nothing_else_is_asked(capsys):
    zmq = pytest.importorskip("zmq", reason="needs pyzmq")
    context = zmq.Context()
    socket_ = context.socket(zmq.PUB)
    port = socket_.bind_to_random_port("tcp://127.0.0.1")
    is_over = Event()

    def keep_publishing() -> None:
        while not is_over.wait(0.05):
            socket_.send_multipart(a_message(0, stored([11, 12, 13])))

    with ThreadPoolExecutor() as pool:
        pool.submit(keep_publishing)
        try:
            assert main(["--once", "--kv-events", f"tcp://127.0.0.1:{port}"]) == 0
        finally:
            is_over.set()
    context.destroy(linger=0)
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["url"]) == ("kvtop.server/1", None)
    (source,) = document["events"]
    assert (source["num_blocks"], source["state"], source["rank"]) == (3, "complete", 0)


def test_events_that_never_come_are_one_line(capsys, monkeypatch):
    pytest.importorskip("zmq", reason="needs pyzmq")
    monkeypatch.setattr("kvtop.once.ANSWER_WITHIN_S", 0.3)
    (line,) = refusal_of(capsys, "--once", "--kv-events", "tcp://127.0.0.1:9")
    assert line == "error: tcp://127.0.0.1:9: no event came within 0.3 s"
