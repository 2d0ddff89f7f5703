"""`kvplan` itself: help, usage, exit codes, pipes and interruptions."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvengine.errors import CapacityError, ConfigError, DeviceError, KVError, TelemetryError
from tests.support import run_kvplan

KVPLAN = [sys.executable, "-c", "from kvplan.cli.main import run; run()"]


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    done = run_kvplan(capsys, "--help")

    assert (done.code, done.stderr) == (0, "")
    for command in ("budget", "run", "sweep", "report", "profiles", "doctor"):
        assert f" {command} " in done.stdout


@pytest.mark.parametrize("command", ["budget", "run", "sweep", "report", "profiles", "doctor"])
def test_every_command_has_a_help_page(capsys: pytest.CaptureFixture[str], command: str) -> None:
    done = run_kvplan(capsys, command, "--help")

    assert (done.code, done.stderr) == (0, "")
    assert f"Usage: kvplan {command}" in done.stdout


@pytest.mark.parametrize(
    "command", ["budget", "explain", "run", "sweep", "report", "profiles", "profiles list", "doctor"]
)
def test_a_help_page_names_its_options_in_full_on_a_usual_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    done = run_kvplan(capsys, *command.split(), "--help")

    assert "--help" in done.stdout
    assert "…" not in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bugdet"], "No such command 'bugdet'. Did you mean 'budget'?"),
        (["--verbose"], "No such option: --verbose"),
        (["doctor", "extra"], "Got unexpected extra argument"),
        (["profiles", "lst"], "No such command 'lst'"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    done = run_kvplan(capsys, *words)

    assert (done.code, done.stdout) == (2, "")
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert hint.endswith("--help")


def test_no_command_shows_the_help_page(capsys: pytest.CaptureFixture[str]) -> None:
    done = run_kvplan(capsys)

    assert done.code == 2
    assert "budget" in done.stdout


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("wrong\nvalue", hint="try\nthis", where="f.yaml"), 2),
        (DeviceError("no driver", hint="a card"), 3),
        (CapacityError("too small"), 1),
        (TelemetryError("unknown version"), 2),
    ],
)
def test_an_error_on_purpose_is_a_line_a_hint_and_its_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: KVError, code: int
) -> None:
    fail_with(monkeypatch, error)
    done = run_kvplan(capsys, "doctor")

    assert done.code == code
    lines = done.stderr.splitlines()
    assert lines[0] == "error: " + str(error).replace("\n", " ")
    assert lines[1:] == (["hint: " + error.hint.replace("\n", " ")] if error.hint else [])


def test_a_bug_keeps_its_traceback_and_exits_70(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, ZeroDivisionError("a bug"))
    done = run_kvplan(capsys, "doctor")

    assert done.code == 70
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ZeroDivisionError: a bug\n")


def test_an_interruption_exits_130_without_a_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())

    assert run_kvplan(capsys, "doctor").code == 130


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make `kvplan doctor` end in an error."""

    def fail() -> None:
        raise error

    monkeypatch.setattr("kvplan.doctor.examine", fail)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_early_is_no_error(unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [*KVPLAN, "profiles", "list", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    process.stdout.close()
    _, stderr = process.communicate(timeout=60)

    assert stderr == b""
    assert process.returncode == 141


def test_a_command_in_a_process_of_its_own_keeps_stdout_for_the_result(tmp_path: Path) -> None:
    environment = {**os.environ, "COLUMNS": "80"}
    command = [*KVPLAN, "budget", "llama-3.1-8b", "--available-kv", "1GiB", "--max-model-len", "999999", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)

    assert done.returncode == 1
    assert json.loads(done.stdout)["verdict"] == "does_not_fit"
    assert done.stderr.startswith("note: --max-model-len 999999 is beyond the model's own limit of 131,072")


def test_a_budget_of_text_options_loads_neither_pydantic_nor_torch() -> None:
    code = (
        "import sys; from kvplan.cli.main import main; "
        "code = main(['budget', 'llama-3.1-8b', '--available-kv', '20GiB', '--tp', '2', '--json']); "
        "heavy = {'pydantic', 'torch', 'rich', 'pynvml', 'numpy'}; "
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stderr == "[]\n"


@pytest.mark.parametrize(("module", "name"), [("kvplan.cli.main", "kvplan"), ("kvtop.cli", "kvtop")])
def test_each_command_says_its_version(capsys: pytest.CaptureFixture[str], module: str, name: str) -> None:
    from importlib import import_module, metadata

    assert import_module(module).main(["--version"]) == 0
    assert capsys.readouterr().out == f"{name} {metadata.version('pagedkv')}\n"


def test_defaults_in_help_texts_are_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    for words in (["budget", "--help"], ["profiles", "list", "--help"]):
        page = run_kvplan(capsys, *words).stdout
        assert "[default: " in page
        assert "\\[" not in page


def _hints() -> list[tuple[str, str]]:
    """Every hint of an error that stands in the sources as text, and where."""
    import ast

    root = Path(__file__).parents[2]
    found = []
    for folder in ("kvplan", "kvtop", "engine/kvengine", "kernels/kvkernels"):
        for path in (root / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.keyword) and node.arg == "hint":
                    texts = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
                    found += [(str(path.relative_to(root)), text) for text in texts if isinstance(text, str)]
    return found


def test_hints_name_options_that_exist() -> None:
    import re

    from kvplan.cli.main import app as kvplan_app
    from kvtop.cli import app as kvtop_app
    from tests.support import all_options

    known = all_options(kvplan_app) | all_options(kvtop_app) | {"--help", "--no-deps"}  # the last is pip's
    named = [(place, option) for place, hint in _hints() for option in re.findall(r"--[a-z][a-z-]+", hint)]
    assert len(named) > 20
    assert [(place, option) for place, option in named if option not in known] == []
