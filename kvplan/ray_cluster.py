"""Points as tasks on a Ray cluster; their results come back to this process, which keeps them."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from kvengine.errors import DeviceError, KVError
from kvplan.executors import Started, Task, TaskRunner
from kvplan.optional import need
from kvplan.prepare import PreparedPoint
from kvplan.results import PointResult

_MAX_RETRIES = 3
"""How often a task is tried again when its node or process has failed."""


class RayExecutor:
    """Runs points on the Ray cluster that `RAY_ADDRESS` names, or on one of this machine's own.

    The nodes need this package, and the files that profiles name, at the same places.

    Args:
        jobs: Most tasks at once; None for as many as the cluster has room for.
    """

    def __init__(self, jobs: int | None) -> None:
        self._jobs = jobs

    def run(self, tasks: Sequence[Task], started: Started) -> Iterator[PointResult]:
        """Run all tasks; a live one takes a GPU where the cluster has any."""
        ray = need("ray", extra="ray", purpose="--executor ray")
        own = not ray.is_initialized()
        if own:
            _join(ray, self._jobs)
        try:
            yield from self._run(ray, list(tasks), started)
        finally:
            if own:
                ray.shutdown()

    def _run(self, ray: Any, tasks: list[Task], started: Started) -> Iterator[PointResult]:
        remote = ray.remote(max_retries=_MAX_RETRIES, retry_exceptions=False)(_run_task)
        has_gpus = ray.cluster_resources().get("GPU", 0) > 0
        most = self._jobs or max(int(ray.cluster_resources().get("CPU", 1)), 1)
        running: dict[Any, Task] = {}
        while tasks or running:
            while tasks and len(running) < most:
                task = tasks.pop(0)
                num_gpus = 1 if task.prepared.is_live and has_gpus else 0
                running[remote.options(num_cpus=1, num_gpus=num_gpus).remote(task)] = task
                started(task.prepared, 0)
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                yield _result(ray, reference, running.pop(reference))


def _join(ray: Any, jobs: int | None) -> None:
    address = os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"address": address} if address else {"num_cpus": jobs, "include_dashboard": False}
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise DeviceError(f"no Ray cluster could be joined or started: {error}", hint="ray status") from None


def _result(ray: Any, reference: Any, task: Task) -> PointResult:
    try:
        outcome: PointResult | KVError = ray.get(reference)
    except ray.exceptions.RayError as error:
        label, reason = task.prepared.point.label, str(error).strip().splitlines()[-1]
        raise DeviceError(f"Ray could not run {label!r}: {reason[:300]}") from None
    if isinstance(outcome, KVError):
        raise outcome
    return outcome


def _run_task(task: Task) -> PointResult | KVError:
    """Run one task on a node; what is wrong with it comes back as a value, so that it is not tried again."""
    try:
        return TaskRunner().run(task, _quiet)
    except KVError as error:
        return error


class _Quiet:
    def advanced(self, finished_requests: int) -> None:
        """Nobody is told."""


def _quiet(_prepared: PreparedPoint, _num_requests: int) -> _Quiet:
    return _Quiet()
