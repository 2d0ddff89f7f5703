"""Every example runs as it stands; one needs the demo model."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvengine.errors import DeviceError
from kvengine.model_files import find_demo_model
from tests.support import ROOT


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_runs(example: Path) -> None:
    if example.stem == "generate":
        demo_model_path()
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, cwd=ROOT)

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) > 3


def test_the_generate_example_streams_samples_and_stops() -> None:
    demo_model_path()
    done = subprocess.run([sys.executable, "examples/generate.py"], capture_output=True, text=True, cwd=ROOT)

    # The first tokens are those of the golden file of greedy outputs.
    assert " Paris.\n\nThe answer is: 2018-01 [length]" in done.stdout
    drawn = [line for line in done.stdout.splitlines() if "a token, ended by length" in line]
    assert [line.split(":")[0] for line in drawn] == ["1", "1/1"]
    assert drawn[0].split(":")[1] != drawn[1].split(":")[1]
    assert done.stdout.rstrip().endswith("ended by stop")


def demo_model_path() -> Path:
    try:
        return find_demo_model()
    except DeviceError as error:
        pytest.skip(f"{error.message} ({error.hint})")


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
