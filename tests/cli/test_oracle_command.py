import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.oracle.__main__ import KINDS, main
from tests.support import ROOT

CASE = ROOT / "tests" / "golden" / "scheduler" / "four_lengths_fill_nine_blocks.json"


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def broken_case(tmp_path: Path) -> Path:
    document = json.loads(CASE.read_text())
    document["golden"]["totals"]["steps"] = 2
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(document))
    return path


def test_the_module_runs_from_the_command_line() -> None:
    command = [sys.executable, "-m", "tests.oracle", "scheduler", str(CASE)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 passed, 0 failed\n", "")


def test_a_difference_is_shown_with_expected_and_got_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "scheduler", CASE, broken_case(tmp_path))
    assert code == 1
    assert out.splitlines() == [
        "FAILED four_lengths_fill_nine_blocks: totals steps: expected 2, got 1",
        "1 passed, 1 failed",
    ]


def test_json_holds_every_case_and_keeps_the_last_line_for_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "scheduler", broken_case(tmp_path), "--json")
    assert code == 1
    document = json.loads(out)
    assert (document["passed"], document["failed"]) == (0, 1)
    assert document["cases"][0]["mismatches"] == [{"what": "totals steps", "expected": 2, "got": 1}]
    assert err == "0 passed, 1 failed\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file or folder"),
        ("{", "Input data was truncated"),
        ("[1, 2]", "Expected `object`, got `array`"),
        ('{"scenario": {"name": "x"}}', "missing required field"),
        (CASE.read_text().replace('"num_blocks"', '"num_block"'), "unknown field `num_block`"),
        (CASE.read_text().replace('"num_blocks": 10', '"num_blocks": "10"'), "Expected `int`, got `str`"),
        (CASE.read_text().replace('"num_blocks": 10', '"num_blocks": 0'), "num_blocks: expected at least 2, got 0"),
        (CASE.read_text().replace('"num_blocks": 10', '"num_blocks": -4'), "num_blocks: expected at least 2, got -4"),
        (CASE.read_text().replace("[7]", "[-7]", 1), "Expected `int` >= 0"),
        (CASE.read_text().replace('"id": "b"', '"id": "a"'), "request id 'a' is already in use"),
    ],
)
def test_a_file_that_cannot_be_compared_is_one_line_and_exit_2(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "case.json"
    if content is not None:
        path.write_text(content)
    code, out, err = run(capsys, "scheduler", path)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {path}")
    assert message in err
    assert err.count("\n") == 1


def test_an_unknown_kind_is_one_line_that_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "schedular", CASE)
    assert (code, out) == (2, "")
    assert err.startswith("error: unknown kind 'schedular'; known kinds: scheduler, sizing, ")
    assert err.count("\n") == 1


def test_a_kind_that_is_not_built_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "sizing", "tests.oracle.no_such_module")
    code, out, err = run(capsys, "sizing", CASE)
    assert (code, out, err) == (2, "", "error: kind 'sizing' is not built yet\n")


def test_a_missing_path_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "scheduler")
    assert (code, out) == (2, "")
    assert err == "error: the following arguments are required: PATH\n"


def test_a_folder_without_cases_is_not_a_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "scheduler", tmp_path)
    assert (code, err) == (2, f"error: {tmp_path}: holds no .json file\n")
