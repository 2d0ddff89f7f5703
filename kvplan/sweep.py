"""A sweep: the points of a grid, each kept as soon as it is finished."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from kvplan.drive import Progress
from kvplan.executors import Executor, SerialExecutor, Task
from kvplan.prepare import PreparedPoint
from kvplan.results import PointResult, ResultsFile


class SweepProgress(Protocol):
    """Told how far a sweep has come."""

    def skipped(self, result: PointResult) -> None:
        """A point was finished by an earlier sweep."""
        ...

    def started(self, prepared: PreparedPoint, num_requests: int) -> Progress:
        """A point begins; what is returned is told of its requests. 0: how many is not known."""
        ...

    def finished(self, result: PointResult) -> None:
        """A point is finished and kept."""
        ...


def run_sweep(
    points: Sequence[PreparedPoint],
    results: ResultsFile,
    *,
    progress: SweepProgress,
    executor: Executor | None = None,
    recordings: Path | None = None,
    retry: bool = False,
    debug: bool = False,
) -> list[PointResult]:
    """Run every point that the results file does not hold yet.

    Args:
        points: The sweep.
        results: Where finished points are kept; one is written in one transaction, after it has finished.
        progress: Told what happens.
        executor: Where points are run; in this process, one after the other, if not given.
        recordings: Folder for a telemetry recording of each live point; None for none.
        retry: Also run what the file holds and did not finish.
        debug: Check all invariants after every step.

    Returns:
        The results of all points, in their order, those of earlier sweeps included.

    Raises:
        ConfigError: The results file cannot be written, or the engine cannot run a point's model.
        DeviceError: What runs the model is not there.
    """
    kept: dict[str, PointResult] = {}
    tasks: dict[str, Task] = {}
    for prepared in points:
        known = results.find(prepared.fingerprint)
        if known is not None and (known.outcome == "finished" or not retry):
            kept[prepared.fingerprint] = known
            progress.skipped(known)
        else:
            recording = recording_path(recordings, prepared) if recordings is not None and prepared.is_live else None
            tasks[prepared.fingerprint] = Task(prepared=prepared, recording=recording, debug=debug)
    for result in (executor or SerialExecutor()).run([*tasks.values()], progress.started):
        results.save(result)
        kept[result.fingerprint] = result
        progress.finished(result)
    return [kept[prepared.fingerprint] for prepared in points]


def recording_path(folder: Path, prepared: PreparedPoint) -> Path:
    """Where the recording of a point goes; another configuration never gets the same file."""
    label = re.sub(r"[^A-Za-z0-9._+-]+", "-", prepared.point.label or prepared.point.name)
    return folder / f"{label[:100]}-{prepared.fingerprint[:8]}.kvrec"
