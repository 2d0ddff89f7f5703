"""A sweep: the points of a grid, one after the other, each kept as soon as it is finished."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from kvplan.drive import Progress
from kvplan.prepare import PreparedPoint, RequestStore
from kvplan.results import PointResult, ResultsFile
from kvplan.run import run_point
from kvplan.run_model import LiveModels


class SweepProgress(Protocol):
    """Told how far a sweep has come."""

    def skipped(self, result: PointResult) -> None:
        """A point was finished by an earlier sweep."""
        ...

    def started(self, prepared: PreparedPoint, num_requests: int) -> Progress:
        """A point begins; what is returned is told of its requests."""
        ...

    def finished(self, result: PointResult) -> None:
        """A point is finished and kept."""
        ...


def run_sweep(
    points: Sequence[PreparedPoint],
    results: ResultsFile,
    *,
    progress: SweepProgress,
    recordings: Path | None = None,
    retry: bool = False,
    debug: bool = False,
) -> list[PointResult]:
    """Run every point that the results file does not hold yet.

    Args:
        points: The sweep.
        results: Where finished points are kept; one is written in one transaction, after it has finished.
        progress: Told what happens.
        recordings: Folder for a telemetry recording of each live point; None for none.
        retry: Also run what the file holds and did not finish.
        debug: Check all invariants after every step.

    Returns:
        The results of all points, in their order, those of earlier sweeps included.

    Raises:
        ConfigError: The results file cannot be written, or the engine cannot run a point's model.
        DeviceError: What runs the model is not there.
    """
    models, store = LiveModels(), RequestStore()
    return [_result_of(point, results, models, store, progress, recordings, retry, debug) for point in points]


def recording_path(folder: Path, prepared: PreparedPoint) -> Path:
    """Where the recording of a point goes; another configuration never gets the same file."""
    label = re.sub(r"[^A-Za-z0-9._+-]+", "-", prepared.point.label or prepared.point.name)
    return folder / f"{label[:100]}-{prepared.fingerprint[:8]}.kvrec"


def _result_of(
    prepared: PreparedPoint,
    results: ResultsFile,
    models: LiveModels,
    store: RequestStore,
    progress: SweepProgress,
    recordings: Path | None,
    retry: bool,
    debug: bool,
) -> PointResult:
    kept = results.find(prepared.fingerprint)
    if kept is not None and (kept.outcome == "finished" or not retry):
        progress.skipped(kept)
        return kept
    requests = store.requests(prepared)
    result = run_point(
        prepared,
        requests,
        models=models,
        recording=recording_path(recordings, prepared) if recordings is not None and prepared.is_live else None,
        progress=progress.started(prepared, len(requests)),
        debug=debug,
    )
    results.save(result)
    progress.finished(result)
    return result
