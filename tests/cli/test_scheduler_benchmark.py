import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, shared_path

CASE = ROOT / "tests" / "golden" / "scheduler" / "victim_blocks_leave_the_cache.json"


def run_benchmark(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.scheduler", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_case_is_timed_and_reported_with_the_machine() -> None:
    done = run_benchmark(CASE, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert {"cpu", "cores", "python", "pagedkv"} <= document["machine"].keys()
    figures = {figure["name"].strip(): figure for figure in document["figures"]}
    # The case takes 5 steps and schedules 16 tokens.
    assert (figures["steps"]["value"], figures["tokens scheduled"]["value"]) == (5, 16)
    assert figures["victim_blocks_leave_the_cache"]["unit"] == "s"


def test_a_case_that_stalls_is_timed_too() -> None:
    done = run_benchmark(shared_path("oracle/vllm/request_longer_than_pool.json"))
    assert done.returncode == 0
    assert "request_longer_than_pool" in done.stdout


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("[]", "Expected `object`"),
        (CASE.read_text().replace('"num_blocks": 8', '"num_blocks": 0'), "num_blocks"),
    ],
)
def test_a_case_that_cannot_be_run_is_one_line_and_exit_2(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    if content is not None:
        path.write_text(content)
    done = run_benchmark(path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
