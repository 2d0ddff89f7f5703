"""What the commands do when their streams or folders fail them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BUDGET = ("budget", "llama-3.1-8b", "--available-kv", "8GiB", "--max-model-len", "8192")


def kvplan(*arguments: str, redirect: str = "", cwd: Path | None = None, **environment: str) -> tuple[int, str]:
    """Run kvplan through a shell; its exit code and what it wrote to stderr."""
    script = f'exec "$0" -c "from kvplan.cli.main import run; run()" "$@" {redirect}'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable, *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        cwd=cwd,
        env={**os.environ, **environment},
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_terminal_without_our_signs_is_no_bug(encoding: str) -> None:
    assert kvplan(*BUDGET, PYTHONIOENCODING=encoding) == (0, "")


def test_a_closed_stdout_leaves_the_exit_code() -> None:
    assert kvplan(*BUDGET, redirect=">&-") == (0, "")


def test_a_full_disk_under_stdout_is_said_in_one_line() -> None:
    code, stderr = kvplan(*BUDGET, redirect=">/dev/full")
    assert (code, stderr) == (2, "error: No space left on device\n")


@pytest.mark.parametrize("redirect", ["2>&-", "2>/dev/full"])
def test_bad_input_is_2_also_where_nobody_can_be_told(redirect: str) -> None:
    assert kvplan("budget", "no-such-model", "--available-kv", "8GiB", redirect=redirect)[0] == 2


@pytest.mark.parametrize("redirect", [">&-", ">&- 2>&-"])
def test_the_view_also_ends_quietly_where_nothing_can_be_written(redirect: str) -> None:
    script = f'exec "$0" -c "from kvtop.cli import run; run()" --version {redirect}'
    done = subprocess.run(["sh", "-c", script, sys.executable], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("module", ["kvplan.cli.main", "kvtop.cli"])
def test_a_full_disk_under_any_command_is_one_line(module: str) -> None:
    script = f'exec "$0" -c "from {module} import run; run()" --version >/dev/full'
    done = subprocess.run(["sh", "-c", script, sys.executable], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: No space left on device\n")


def test_a_deleted_working_folder_is_said_in_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$1" && rmdir "$1" && exec "$0" -c "from kvplan.cli.main import run; run()" budget llama-3.1-8b'
    done = subprocess.run(["sh", "-c", script, sys.executable, str(gone)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_control_characters_of_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "\\u001b[31mred", "architectures": ["\\ud800"]}')
    code, stderr = kvplan("budget", str(tmp_path), "--available-kv", "8GiB")
    assert code == 2
    assert "\x1b" not in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_control_characters_of_a_name_do_not_reach_the_terminal_on_stdout(tmp_path: Path, form: str) -> None:
    config = {
        "architectures": ["Llama\x1b[31mForCausalLM\x9b31m"],
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 100,
        "max_position_embeddings": 64,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    script = 'exec "$0" -c "from kvplan.cli.main import run; run()" budget "$1" --available-kv 8MiB --format "$2"'
    command = ["sh", "-c", script, sys.executable, str(tmp_path), form]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0
    assert "ForCausalLM" in done.stdout
    assert "\x1b" not in done.stdout
    assert "\x9b" not in done.stdout
    if form == "json":  # escaped there, so that nothing is lost
        assert json.loads(done.stdout)["model"]["architecture"] == config["architectures"][0]
