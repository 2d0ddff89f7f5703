"""Points on a server: a small real one over HTTP, and what is said of those that do not answer as they should."""

import sys
import time
from pathlib import Path

import pytest

from kvengine.errors import CapacityError, ConfigError, DeviceError
from kvplan.load_profiles import load_run
from kvplan.prepare import PreparedPoint, prepare
from kvplan.results import PointResult
from kvplan.run import run_point
from kvplan.run_model import LiveModels
from kvplan.serving.command import fill_command, free_port, started
from tests.small_server import small_server
from tests.support import ROOT

pytest.importorskip("httpx", reason="needs the extra pagedkv[serving]")

WORKLOAD = "{synthetic: {requests: 12, shared_prefix_tokens: 20, prompt_tokens: {low: 4, high: 30}}, max_tokens: 9}"


def a_point(folder: Path, server: str, *keys: str, workload: str = WORKLOAD) -> PreparedPoint:
    lines = ["target: openai", "model: smollm2-135m", f"server: {server}", f"workload: {workload}", *keys]
    (folder / "p.yaml").write_text("\n".join(lines))
    (prepared,) = prepare([load_run(str(folder / "p.yaml"))])
    return prepared


def run(prepared: PreparedPoint) -> PointResult:
    return run_point(prepared, prepared.requests(), models=LiveModels())


def test_a_server_is_measured_through_its_streams_and_its_own_counters(tmp_path: Path) -> None:
    with small_server() as (url, engine):
        result = run(a_point(tmp_path, f"{{url: {url}}}", "slo: {ttft_s: 100}"))

    assert (result.outcome, result.message) == ("finished", "")
    measured = result.measured
    assert measured is not None
    assert (measured.num_blocks, measured.block_size) == (100, 4)
    assert (measured.finished_requests, measured.output_tokens, measured.good_requests) == (12, 108, 12)
    assert measured.first_prefix_hit_tokens == engine.engine.stats.first_prefix_hit_tokens > 0
    assert measured.prefix_hit_tokens is None  # what preempted requests find again is not in its count
    assert measured.preemptions == engine.engine.stats.preemptions
    assert measured.latencies is not None
    assert measured.latencies.ttft is not None
    assert measured.latencies.itl is not None
    assert (measured.latencies.ttft.count, measured.latencies.itl.count) == (12, 12 * 8)
    assert result.environment["server"] == "vllm"
    # Beside it the plan: the same pool, simulated.
    assert (result.planned.num_blocks, result.planned.output_tokens) == (100, 108)


def test_a_server_is_asked_to_draw_as_the_workload_says(tmp_path: Path) -> None:
    workload = WORKLOAD.replace("max_tokens: 9", "max_tokens: 9, sampling: {temperature: 0.7, top_k: 40, min_p: 0.05}")
    with small_server() as (url, engine):
        run(a_point(tmp_path, f"{{url: {url}}}"))
        greedy = engine.asked[:]
        prepared = a_point(tmp_path, f"{{url: {url}}}", workload=workload)
        run(prepared)

    assert [params.temperature for params in greedy] == [0] * 12
    drawn = engine.asked[12:]
    assert {(params.temperature, params.top_k, params.min_p, params.top_p) for params in drawn} == {
        (0.7, 40, 0.05, 1.0)
    }
    assert {params.seed for params in drawn} == {spec.seed for spec in prepared.requests()}


def test_turns_repeat_what_the_server_said(tmp_path: Path) -> None:
    workload = "{synthetic: {requests: 2, prompt_tokens: 8, turns: 3, turn_tokens: 4}, max_tokens: 8}"
    with small_server() as (url, engine):
        result = run(a_point(tmp_path, f"{{url: {url}}}", workload=workload))
    with small_server(tells_tokens=False) as (url, silent):
        other = run(a_point(tmp_path, f"{{url: {url}}}", workload=workload))

    # As in a simulation: 12 and 24 tokens of each conversation are found again, the outputs among them.
    assert engine.engine.stats.prefix_hit_tokens == 2 * (12 + 24)
    assert result.planned.prefix_hit_tokens == 2 * (12 + 24)
    # Where it does not tell its tokens, others stand for them, and only 8 and 20 are found.
    assert silent.engine.stats.prefix_hit_tokens == 2 * (8 + 20)
    assert other.outcome == "finished"


def test_a_user_who_gives_up_closes_the_connection(tmp_path: Path) -> None:
    workload = "{synthetic: {requests: 3, prompt_tokens: 8}, max_tokens: 200, cancel: {share: 1, after_tokens: 3}}"
    with small_server(step_s=0.01) as (url, engine):
        result = run(a_point(tmp_path, f"{{url: {url}}}", workload=workload))
        for _ in range(500):
            if engine.engine.stats.aborted == 3:
                break
            time.sleep(0.01)

    assert result.measured is not None
    assert (result.measured.cancelled_requests, result.measured.finished_requests) == (3, 0)
    assert engine.engine.stats.aborted == 3


def test_requests_that_the_server_refuses_are_counted_with_the_reason(tmp_path: Path) -> None:
    workload = "{synthetic: {requests: 3, prompt_tokens: 450}, max_tokens: 9}"
    with small_server() as (url, _):
        result = run(a_point(tmp_path, f"{{url: {url}}}", workload=workload))

    # 450 tokens need 113 blocks of 4; the pool has 99.
    assert result.outcome == "unfinished"
    assert result.message.startswith("3 of 3 requests failed, first 'random-1': HTTP 400: ")
    assert "needs 115 blocks of 4" in result.message


def test_a_time_limit_ends_the_load(tmp_path: Path) -> None:
    workload = "{synthetic: {requests: 2, prompt_tokens: 8}, max_tokens: 300}"
    with small_server(step_s=0.05, num_blocks=400) as (url, _):
        result = run(a_point(tmp_path, f"{{url: {url}}}", "time_limit_s: 0.3", workload=workload))

    assert result.outcome == "unfinished"
    assert "ended after its time limit of 0.3 s: 0 of 2 requests had finished" in result.message


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"no server answers at http://127\.0\.0\.1:\d+"):
        run(a_point(tmp_path, f"{{url: 'http://127.0.0.1:{free_port()}'}}"))


def command_of(text: str) -> str:
    return f"{{command: '{text}', ready_s: 60}}"


def test_a_server_is_started_for_a_point_and_stopped_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT}/engine:{ROOT}/kernels")
    command = f"{sys.executable} -m tests.small_server --port {{port}} --block-size {{block_size}} --num-blocks 50"
    prepared = a_point(tmp_path, command_of(command), "block_size: 8")

    result = run(prepared)

    assert result.outcome == "finished", result.message
    assert result.measured is not None
    assert (result.measured.num_blocks, result.measured.block_size) == (50, 8)
    with pytest.raises(DeviceError):
        run(a_point(tmp_path, f"{{url: '{result.environment['url']}'}}"))


def test_a_server_that_does_not_start_is_a_result_with_its_last_words(tmp_path: Path) -> None:
    command = f'{sys.executable} -c "import sys; sys.exit(chr(110)+chr(111))"'
    (tmp_path / "p.yaml").write_text(
        f"target: openai\nserver: {{command: {command!r}}}\nworkload: {WORKLOAD}\nmodel: smollm2-135m\n"
    )
    (prepared,) = prepare([load_run(str(tmp_path / "p.yaml"))])

    result = run(prepared)

    assert result.outcome == "unfinished"
    assert result.message == "the server ended with code 1 before it was ready: no"


def test_a_start_up_log_says_why_a_server_did_not_start(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    line = (
        "ValueError: To serve at least one request with the models's max seq len (32768), 4.00 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (1.50 GiB). Based on the available memory, the estimated "
        "maximum model length is 12288. Try increasing `gpu_memory_utilization` or decreasing `max_model_len`."
    )
    program = tmp_path / "server.py"
    program.write_text(f"import sys\nprint({line!r}); sys.exit(1)\n")

    with (
        pytest.raises(CapacityError) as caught,
        started([sys.executable, str(program)], "http://127.0.0.1:9", log=log, ready_s=60),
    ):
        pass
    assert caught.value.message == (
        "the server ended with code 1 before it was ready: One request of max_model_len does not fit in the pool."
    )
    assert "max_model_len" in caught.value.hint or "max-model-len" in caught.value.hint


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (
            "vllm serve m --block-size {block_size} --port {port}",
            ["vllm", "serve", "m", "--block-size", "16", "--port", "1"],
        ),
        ("run '{name}' x{block_size}y", ["run", "two words; rm -rf", "x16y"]),
        ("run {name}", ["run", "two words; rm -rf"]),
        ("run '{{\"a\": 1}}'", ["run", '{"a": 1}']),
    ],
)
def test_a_value_never_becomes_two_words_of_a_command(template: str, expected: list[str]) -> None:
    values = {"block_size": 16, "port": 1, "name": "two words; rm -rf"}

    assert fill_command(template, values, where="p.yaml") == expected


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("run {blok_size}", "p.yaml: no value for {blok_size}; did you mean 'block_size'"),
        ("run {none}", "no value for {none}"),
        ("run {", "not a command line"),
        ("run 'x", "not a command line"),
    ],
)
def test_a_command_that_makes_no_sense_is_refused(template: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fill_command(template, {"block_size": 16, "none": None}, where="p.yaml")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("target: openai\n", "target openai and key server go together"),
        ("server: {url: 'http://x'}\n", "server: it goes with the targets openai, vllm, sglang, got engine"),
        ("target: openai\nserver: {}\n", "server: expected a url or a command"),
        ("target: openai\nserver: {url: localhost}\n", "server: expected an address such as http://127.0.0.1:8000"),
    ],
)
def test_a_server_that_makes_no_sense_is_refused(tmp_path: Path, keys: str, message: str) -> None:
    (tmp_path / "p.yaml").write_text(f"{keys}workload: shared-prefix\nnum_blocks: 9\n")

    with pytest.raises(ConfigError, match=message):
        load_run(str(tmp_path / "p.yaml"))
