"""`kvplan doctor --kernels` as a whole command."""

import csv
import io
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="needs triton, which has no wheel for this machine")

COMMAND = [sys.executable, "-c", "from kvplan.cli.main import run; run()", "doctor", "--kernels"]


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run in a process of its own: Triton decides at import whether it interprets."""
    inherited = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return subprocess.run([*COMMAND, *arguments], env=inherited | environment, capture_output=True, text=True)


def test_the_forms_of_the_kernel_table_agree() -> None:
    table, document, rows = doctor(), doctor("--json"), doctor("--format", "csv")

    assert [done.returncode for done in (table, document, rows)] == [0, 0, 0], table.stderr
    kernels = json.loads(document.stdout)["kernels"]
    listed = list(csv.DictReader(io.StringIO(rows.stdout)))
    lines = table.stdout.splitlines()
    assert len(kernels) == len(listed) == len(lines) - 2 > 100
    assert lines[-1].endswith("not run; 0 beyond their bounds")
    for kernel, row, line in zip(kernels, listed, lines[1:-1], strict=True):
        assert row["case"] == kernel["case"]
        assert json.loads(row["registers"]) == kernel["registers"]
        assert line.startswith(f"sm_{kernel['capability']}")
        assert line.endswith("ok")


def test_nothing_can_be_compiled_while_the_interpreter_is_on() -> None:
    done = doctor(TRITON_INTERPRET="1")

    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.endswith("hint: unset TRITON_INTERPRET\n")
