"""Where points are run changes nothing of what comes out."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from kvengine.errors import ConfigError, DeviceError, KVError
from kvplan.executors import Executor
from kvplan.load_profiles import load_sweep
from kvplan.prepare import prepare
from kvplan.processes import ProcessExecutor
from kvplan.ray_cluster import RayExecutor
from kvplan.results import PointResult, ResultsFile
from kvplan.sweep import run_sweep
from tests.support import ROOT
from tests.unit.test_sweep import Log

PROFILE = """
run:
  target: simulated
  workload: {synthetic: {requests: 20, shared_prefix_tokens: 20, prompt_tokens: {low: 4, high: 90}}, max_tokens: 40}
  num_blocks: 60
  max_num_seqs: 8
  max_model_len: 200
grid:
  block_size: [4, 8, 16]
repeats: 2
"""


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Processes and nodes find the packages of this checkout.
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT}/engine:{ROOT}/kernels")
    (tmp_path / "s.yaml").write_text(PROFILE)
    return tmp_path / "s.yaml"


def sweep(profile: Path, name: str, executor: Executor | None, log: Log | None = None) -> list[PointResult]:
    points = prepare(load_sweep(str(profile)))
    with ResultsFile(profile.parent / name, create=True) as file:
        results = run_sweep(points, file, progress=log or Log(), executor=executor)
        assert {point.fingerprint for point in file.points()} == {point.fingerprint for point in results}
    return [msgspec.structs.replace(result, finished_unix_s=0.0) for result in results]


def test_processes_give_the_same_rows_in_the_same_order(profile: Path) -> None:
    log = Log()

    assert sweep(profile, "processes.db", ProcessExecutor(3), log) == sweep(profile, "serial.db", None)
    assert sorted(event.split()[0] for event in log.events) == ["finished"] * 6 + ["started"] * 6
    assert sweep(profile, "processes.db", ProcessExecutor(3)) == sweep(profile, "serial.db", None)  # all skipped


def test_what_is_wrong_with_a_point_is_said_from_a_process_too(profile: Path) -> None:
    trace = profile.parent / "t.csv"
    trace.write_text("num_prefill_tokens,num_decode_tokens\n1,x\n")
    profile.write_text(
        "run: {target: simulated, workload: {trace: {file: t.csv, format: vidur}}, num_blocks: 60}\n"
        "grid: {block_size: [4, 8]}\n"
    )

    with pytest.raises(ConfigError, match=r"t\.csv: line 2: num_decode_tokens: expected a whole number") as caught:
        sweep(profile, "r.db", ProcessExecutor(2))
    assert isinstance(caught.value, KVError)


LONG = """
run:
  target: simulated
  workload: {synthetic: {requests: 3000, prompt_tokens: 200}, max_tokens: 300}
  num_blocks: 500
  max_model_len: 1000
grid: {block_size: [4, 8]}
"""


def children_of(pid: int) -> list[int]:
    """Processes that run points: they were spawned by multiprocessing."""
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True
    ).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if "spawn_main" in line]


def start_long(profile: Path) -> subprocess.Popen[str]:
    profile.write_text(LONG)
    command = [sys.executable, "-c", "from kvplan.cli.main import run; run()", "sweep", str(profile), "--jobs", "2"]
    command += ["--results", str(profile.parent / "r.db"), "--no-recordings"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_children(pid: int) -> list[int]:
    for _ in range(600):
        found = children_of(pid)
        if len(found) == 2:
            return found
        time.sleep(0.05)
    raise AssertionError("the sweep started no processes")


def test_a_process_that_dies_is_named_with_its_point(profile: Path) -> None:
    process = start_long(profile)
    os.kill(wait_for_children(process.pid)[0], signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)

    assert process.returncode == DeviceError.exit_code
    assert "error: the process that ran 'block_size=" in stderr
    assert "died (exit code -9)" in stderr


def test_no_process_outlives_a_sweep_that_is_interrupted(profile: Path) -> None:
    process = start_long(profile)
    children = wait_for_children(process.pid)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)

    assert process.returncode == 130
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


def test_a_local_ray_gives_the_same_rows(profile: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra pagedkv[ray]")

    assert sweep(profile, "ray.db", RayExecutor(2)) == sweep(profile, "serial.db", None)
