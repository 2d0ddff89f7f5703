"""Where the points of a sweep are run: here one after the other, in processes of their own, or on a Ray cluster."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvplan.drive import Progress
from kvplan.prepare import PreparedPoint, RequestStore
from kvplan.results import PointResult
from kvplan.run import run_point
from kvplan.run_model import LiveModels


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A point that is to be run."""

    prepared: PreparedPoint
    recording: Path | None
    """File for the telemetry of the run."""
    debug: bool = False
    """Check all invariants after every step."""


Started = Callable[[PreparedPoint, int], Progress]
"""Told that a point begins, and how many requests it has; what it returns is told how many have ended."""


class Executor(Protocol):
    """Runs points."""

    def run(self, tasks: Sequence[Task], started: Started) -> Iterator[PointResult]:
        """Run all tasks; gives each result as soon as it is there, in any order.

        Raises:
            KVError: A point could not be run at all; points that run elsewhere meanwhile are stopped.
        """
        ...


class TaskRunner:
    """Runs one task after the other, and keeps what the next one can use again: weights and requests."""

    def __init__(self) -> None:
        self._models, self._store = LiveModels(), RequestStore()

    def run(self, task: Task, started: Started) -> PointResult:
        """Run one task."""
        requests = self._store.requests(task.prepared)
        progress = started(task.prepared, len(requests))
        return run_point(
            task.prepared,
            requests,
            models=self._models,
            recording=task.recording,
            progress=progress,
            debug=task.debug,
        )


class SerialExecutor:
    """Runs points in this process, one after the other."""

    def run(self, tasks: Sequence[Task], started: Started) -> Iterator[PointResult]:
        """Run all tasks in their order."""
        runner = TaskRunner()
        for task in tasks:
            yield runner.run(task, started)
