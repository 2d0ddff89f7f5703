"""A sweep keeps what is finished, whatever happens to it, and never runs or mixes it again."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kvplan.drive import Progress
from kvplan.load_profiles import load_sweep
from kvplan.prepare import PreparedPoint, prepare
from kvplan.results import PointResult, ResultsFile
from kvplan.sweep import recording_path, run_sweep
from tests.support import ROOT

WORKLOAD = """
about: test
synthetic: {requests: 12, shared_prefix_tokens: 20, prompt_tokens: {low: 4, high: 30}}
max_tokens: {low: 2, high: 20}
"""
SWEEP = """
run: {target: simulated, model: smollm2-135m, workload: ./w.yaml, num_blocks: 40, max_num_seqs: 6}
grid:
  block_size: [4, 8, 16]
  prefix_caching: [true, false]
"""


class Log:
    """Notes what a sweep did."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def skipped(self, result: PointResult) -> None:
        self.events.append(f"skipped {result.label}")

    def started(self, prepared: PreparedPoint, num_requests: int) -> Progress:
        self.events.append(f"started {prepared.point.label} with {num_requests}")
        return self

    def advanced(self, finished_requests: int) -> None:
        pass

    def finished(self, result: PointResult) -> None:
        self.events.append(f"finished {result.label}")


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    (tmp_path / "s.yaml").write_text(SWEEP)
    return tmp_path / "s.yaml"


def sweep(profile: Path, results: Path, log: Log | None = None) -> list[PointResult]:
    points = prepare(load_sweep(str(profile)))
    with ResultsFile(results, create=True) as file:
        return run_sweep(points, file, progress=log or Log())


def without_time(results: list[PointResult]) -> list[PointResult]:
    return [msgspec.structs.replace(result, finished_unix_s=0.0) for result in results]


def test_a_second_sweep_finds_all_points_and_runs_none(profile: Path, tmp_path: Path) -> None:
    first, second = Log(), Log()
    results = sweep(profile, tmp_path / "r.db", first)

    assert sweep(profile, tmp_path / "r.db", second) == results
    assert len(results) == 6
    assert [event.split()[0] for event in first.events] == ["started", "finished"] * 6
    assert [event.split()[0] for event in second.events] == ["skipped"] * 6


def test_a_larger_grid_runs_only_its_new_points(profile: Path, tmp_path: Path) -> None:
    sweep(profile, tmp_path / "r.db")
    profile.write_text(SWEEP.replace("[4, 8, 16]", "[4, 8, 16, 32]"))
    log = Log()

    results = sweep(profile, tmp_path / "r.db", log)

    assert [event for event in log.events if event.startswith("started")] == [
        "started block_size=32 prefix_caching=true with 12",
        "started block_size=32 prefix_caching=false with 12",
    ]
    assert len({result.series for result in results}) == 1


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("s.yaml", "num_blocks: 40", "num_blocks: 41"),
        ("w.yaml", "requests: 12", "requests: 13"),
        ("w.yaml", "high: 20", "high: 21"),
    ],
)
def test_a_changed_profile_or_workload_starts_anew(
    profile: Path, tmp_path: Path, file: str, old: str, new: str
) -> None:
    before = sweep(profile, tmp_path / "r.db")
    (tmp_path / file).write_text((tmp_path / file).read_text().replace(old, new))
    log = Log()

    after = sweep(profile, tmp_path / "r.db", log)

    assert [event.split()[0] for event in log.events] == ["started", "finished"] * 6
    assert {result.series for result in before}.isdisjoint(result.series for result in after)
    with ResultsFile(tmp_path / "r.db", create=False) as results:
        assert len(results.points()) == 12  # the old ones are still there


def test_another_seed_is_run_anew_and_belongs_to_the_same_series(profile: Path, tmp_path: Path) -> None:
    before = sweep(profile, tmp_path / "r.db")
    profile.write_text(SWEEP.replace("max_num_seqs: 6", "max_num_seqs: 6, seed: 1"))
    log = Log()

    after = sweep(profile, tmp_path / "r.db", log)

    assert [event.split()[0] for event in log.events] == ["started", "finished"] * 6
    assert {result.series for result in before} == {result.series for result in after}
    assert {result.fingerprint for result in before}.isdisjoint(result.fingerprint for result in after)


def test_a_new_description_changes_nothing(profile: Path, tmp_path: Path) -> None:
    sweep(profile, tmp_path / "r.db")
    profile.write_text("about: words\n" + SWEEP)
    (tmp_path / "w.yaml").write_text(WORKLOAD.replace("about: test", "about: other words\nsource: me"))
    log = Log()

    sweep(profile, tmp_path / "r.db", log)

    assert [event.split()[0] for event in log.events] == ["skipped"] * 6


KILLED_SWEEP = """
import os, signal, sys
from pathlib import Path
from tests.unit.test_sweep import Log, sweep

class Deadly(Log):
    def __init__(self, event, count):
        super().__init__()
        self.event, self.count = event, int(count)
    def _die_at(self, event):
        if event == self.event:
            self.count -= 1
            if self.count == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    def started(self, prepared, num_requests):
        self._die_at("started")
        return super().started(prepared, num_requests)
    def finished(self, result):
        self._die_at("finished")

sweep(Path(sys.argv[1]), Path(sys.argv[2]), Deadly(sys.argv[3], sys.argv[4]))
"""


@pytest.mark.parametrize(("event", "count", "num_kept"), [("started", 1, 0), ("finished", 1, 1), ("started", 4, 3)])
def test_a_killed_sweep_goes_on_where_it_was(
    profile: Path, tmp_path: Path, event: str, count: int, num_kept: int
) -> None:
    undisturbed = sweep(profile, tmp_path / "undisturbed.db")
    command = [sys.executable, "-c", KILLED_SWEEP, str(profile), str(tmp_path / "r.db"), event, str(count)]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    log = Log()

    resumed = sweep(profile, tmp_path / "r.db", log)

    assert [event.split()[0] for event in log.events].count("skipped") == num_kept
    assert without_time(resumed) == without_time(undisturbed)
    with ResultsFile(tmp_path / "r.db", create=False) as results:
        assert without_time(sorted(results.points(), key=lambda point: point.fingerprint)) == without_time(
            sorted(undisturbed, key=lambda point: point.fingerprint)
        )


def test_a_point_that_does_not_fit_is_a_result_among_the_others(profile: Path, tmp_path: Path) -> None:
    # The shortest request has 20 + 4 + 2 tokens, of which 25 need slots: 2 blocks of 16 or 7 of 4. One usable block.
    profile.write_text(SWEEP.replace("num_blocks: 40", "num_blocks: 2"))

    results = sweep(profile, tmp_path / "r.db")

    assert {result.outcome for result in results} == {"does_not_fit"}
    assert all("blocks of 4 for" in result.message for result in results[:2])
    assert all(result.planned.num_blocks == 2 and result.planned.preemptions is None for result in results)


def test_recordings_of_two_configurations_never_share_a_file(profile: Path, tmp_path: Path) -> None:
    points = prepare(load_sweep(str(profile)))
    changed = prepare(load_sweep(str(profile), overrides=["run.num_blocks=50"]))

    paths = {recording_path(tmp_path, point) for point in [*points, *changed]}

    assert len(paths) == 12
    assert recording_path(tmp_path, points[0]).name.startswith("block_size-4-prefix_caching-true-")
