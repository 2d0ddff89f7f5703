"""What is finished stays finished: kills at any moment, two writers, a full disk."""

import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from kvengine.errors import ConfigError
from kvplan.export import write_parquet
from kvplan.load_profiles import load_sweep
from kvplan.prepare import prepare
from kvplan.report import report_rows
from kvplan.results import PointResult, ResultsFile
from kvplan.sweep import run_sweep
from tests.support import ROOT
from tests.unit.test_sweep import Log

PROFILE = """
run:
  target: simulated
  workload: {synthetic: {requests: 60, shared_prefix_tokens: 20, prompt_tokens: {low: 4, high: 90}}, max_tokens: 40}
  num_blocks: 60
  max_num_seqs: 16
  max_model_len: 200
grid:
  block_size: [4, 8, 16, 32]
  prefix_caching: [true, false]
repeats: 3
"""
SWEEP = [sys.executable, "-c", "from kvplan.cli.main import run; run()", "sweep", "--quiet", "--no-recordings"]
NUM_KILLS = 20


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    (tmp_path / "s.yaml").write_text(PROFILE)
    return tmp_path / "s.yaml"


def start(profile: Path, results: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [*SWEEP, str(profile), "--results", str(results), *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def kept(results: Path) -> dict[str, PointResult]:
    """The points of a file by fingerprint, without when they were finished."""
    if not results.exists() or not results.stat().st_size:
        return {}
    with ResultsFile(results, create=True) as file:
        points = [msgspec.structs.replace(point, finished_unix_s=0.0) for point in file.points()]
    return {point.fingerprint: point for point in points}


def undisturbed(profile: Path, folder: Path) -> dict[str, PointResult]:
    with ResultsFile(folder / "undisturbed.db", create=True) as file:
        run_sweep(prepare(load_sweep(str(profile))), file, progress=Log())
    return kept(folder / "undisturbed.db")


def wait_for_a_new_point(process: subprocess.Popen[bytes], results: Path, num_before: int) -> None:
    while process.poll() is None and len(kept(results)) == num_before:
        time.sleep(0.01)


def test_a_sweep_killed_twenty_times_ends_with_the_rows_of_an_undisturbed_one(profile: Path, tmp_path: Path) -> None:
    expected, results, chance = undisturbed(profile, tmp_path), tmp_path / "r.db", random.Random(7)
    before: dict[str, PointResult] = {}
    partial = 0
    for kill in range(NUM_KILLS):
        process = start(profile, results)
        if kill % 2:
            wait_for_a_new_point(process, results, len(before))
        time.sleep(chance.random() * (0.2 if kill % 2 else 1.0))
        process.kill()
        process.communicate()
        after = kept(results)
        assert before.items() <= after.items(), "a finished point was lost or changed"
        assert after.items() <= expected.items(), "a point is not what an undisturbed sweep gives"
        partial += len(before) < len(after) < len(expected)
        before = after
        if after == expected:  # it came to its end: begin again, so that there is something to kill
            results.unlink()
            before = {}
    assert partial, "no kill hit a sweep between two of its points"
    finishing = start(profile, results)
    finishing.communicate()

    assert finishing.returncode == 0
    assert kept(results) == expected
    assert len(expected) == 24


def test_two_sweeps_write_to_one_file_at_the_same_time(profile: Path, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("extends: ./s.yaml\nrun: {num_blocks: 70}\n")
    results = tmp_path / "r.db"

    processes = [start(file, results) for file in (profile, tmp_path / "t.yaml", profile)]
    errors = [process.communicate()[1] for process in processes]

    assert [process.returncode for process in processes] == [0, 0, 0], errors
    points = kept(results)
    assert len(points) == 48
    assert undisturbed(profile, tmp_path).items() <= points.items()


def test_a_full_disk_is_said_and_what_was_finished_stays(profile: Path, tmp_path: Path) -> None:
    points = prepare(load_sweep(str(profile)))
    with ResultsFile(tmp_path / "r.db", create=True) as file:
        run_sweep(points[:2], file, progress=Log())
        connection: sqlite3.Connection = file._connection
        (num_pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {num_pages + 2}")

        with pytest.raises(ConfigError, match=r"r\.db: not usable as a results file: database or disk is full"):
            run_sweep(points, file, progress=Log())
    assert 2 <= len(kept(tmp_path / "r.db")) < 24


def test_parquet_has_the_rows_of_the_report(profile: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra pagedkv[parquet]")
    points = [*undisturbed(profile, tmp_path).values()]

    write_parquet(points, tmp_path / "new" / "r.parquet")

    rows = parquet.read_table(tmp_path / "new" / "r.parquet").to_pylist()
    for row, expected in zip(rows, report_rows(points), strict=True):
        assert {key: value for key, value in row.items() if value is not None} == {
            key: value for key, value in expected.items() if value is not None
        }


def test_a_missing_parquet_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvengine.errors import DeviceError

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DeviceError, match="a Parquet file needs pyarrow, which is not installed") as caught:
        write_parquet([], tmp_path / "r.parquet")
    assert caught.value.hint == "pip install 'pagedkv[parquet]'"
