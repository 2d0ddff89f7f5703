"""Every example runs as it stands, without a model."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_runs(example: Path) -> None:
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, cwd=ROOT)

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) > 3


def test_the_pool_example_shows_sharing_and_a_preemption() -> None:
    done = subprocess.run([sys.executable, "examples/watch_the_pool.py"], capture_output=True, text=True, cwd=ROOT)

    # "You are kind." is 13 tokens: 3 whole blocks of 4. Each of a and b then needs 2 blocks of its own, 7 of 8 in all.
    assert "step 0: 1 of 8 blocks free" in done.stdout
    assert "b is admitted with 12 tokens from the prefix cache" in done.stdout
    assert "b is preempted" in done.stdout


def test_the_fork_example_shows_who_copies_and_what_a_transfer_keeps() -> None:
    done = subprocess.run(
        [sys.executable, "examples/fork_and_copy_on_write.py"], capture_output=True, text=True, cwd=ROOT
    )

    # 38 tokens are 3 blocks of 16, the last of them not full: two of three beams copy it.
    assert "c: 1(x3)  2(x3)  3(x3)" in done.stdout
    assert "['3 -> 4', '3 -> 5']" in done.stdout
    # Five blocks are in use; the parent's own one is free when the transfer is over.
    assert "14 of 19 blocks are free" in done.stdout
    assert "completed: 15 of 19 blocks are free" in done.stdout
