"""Points in several processes of this machine, one GPU each where there are any."""

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

from kvengine.errors import DeviceError, KVError
from kvplan.drive import Progress
from kvplan.executors import Started, Task, TaskRunner
from kvplan.prepare import PreparedPoint
from kvplan.results import PointResult

_STOP_S = 5.0


class _Begun(NamedTuple):
    num_requests: int


class _Advanced(NamedTuple):
    finished_requests: int


class _Done(NamedTuple):
    result: PointResult


class _Failed(NamedTuple):
    error: KVError


_Message = _Begun | _Advanced | _Done | _Failed


class ProcessExecutor:
    """Runs points in processes of their own, each with the weights that it loaded last.

    Args:
        jobs: How many at once.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def run(self, tasks: Sequence[Task], started: Started) -> Iterator[PointResult]:
        """Run all tasks, each in the first process that is free."""
        coming = iter(tasks)
        jobs = min(self._jobs, len(tasks))
        workers = [_Worker(number, jobs) for number in range(jobs)]
        try:
            busy = {worker.connection: worker for worker in workers if worker.give(next(coming, None))}
            while busy:
                for connection in wait(list(busy)):
                    worker = busy[connection]  # type: ignore[index]
                    result = worker.receive(started)
                    if result is None:
                        continue
                    if not worker.give(next(coming, None)):
                        del busy[worker.connection]
                    yield result
        finally:
            for worker in workers:
                worker.stop()


class _Worker:
    """The parent's end of one process."""

    def __init__(self, number: int, jobs: int) -> None:
        # A fresh interpreter: a forked one would share torch's threads and CUDA's state.
        context = multiprocessing.get_context("spawn")
        self.connection, child = context.Pipe()
        self._process = context.Process(target=_work, args=(child, number, jobs), daemon=True)
        self._process.start()
        child.close()
        self._task: Task | None = None
        self._progress: Progress | None = None

    def give(self, task: Task | None) -> bool:
        """Hand out a task; False, and the process ends, if there is none."""
        self._task, self._progress = task, None
        self.connection.send(task)
        return task is not None

    def receive(self, started: Started) -> PointResult | None:
        """Take a message; gives the result if that is what it was.

        Raises:
            KVError: The point could not be run.
            DeviceError: The process died.
        """
        assert self._task is not None, "a process without a task said something"
        try:
            message: _Message = self.connection.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            label = self._task.prepared.point.label
            message_text = f"the process that ran {label!r} died (exit code {self._process.exitcode})"
            raise DeviceError(message_text, hint="too little memory? try fewer --jobs") from None
        match message:
            case _Begun():
                self._progress = started(self._task.prepared, message.num_requests)
            case _Advanced() if self._progress is not None:
                self._progress.advanced(message.finished_requests)
            case _Done():
                return message.result
            case _Failed():
                raise message.error
        return None

    def stop(self) -> None:
        """End the process, whatever it does."""
        self.connection.close()
        self._process.join(0.0 if self._task is not None else _STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class _Teller:
    """Tells the parent how far a point has come, each new number once."""

    def __init__(self, connection: "Connection[_Message, Task | None]") -> None:
        self._connection = connection
        self._last = 0

    def __call__(self, _prepared: PreparedPoint, num_requests: int) -> "_Teller":
        """A point begins."""
        self._last = 0
        self._connection.send(_Begun(num_requests))
        return self

    def advanced(self, finished_requests: int) -> None:
        """So many requests have ended by now."""
        if finished_requests != self._last:
            self._last = finished_requests
            self._connection.send(_Advanced(finished_requests))


def _work(connection: "Connection[_Message, Task | None]", number: int, jobs: int) -> None:
    """Run tasks until there are no more, or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means
    _share_machine(number, jobs)
    runner, teller = TaskRunner(), _Teller(connection)
    try:
        while (task := connection.recv()) is not None:
            try:
                message: _Message = _Done(runner.run(task, teller))
            except KVError as error:
                message = _Failed(error)
            connection.send(message)
    except (EOFError, ConnectionError):
        return


def _share_machine(number: int, jobs: int) -> None:
    """Give each process a GPU of its own, and its share of the cores; read before torch is loaded."""
    gpus = _visible_gpus()
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
    os.environ.setdefault("OMP_NUM_THREADS", str(max(len(os.sched_getaffinity(0)) // jobs, 1)))


def _visible_gpus() -> list[str]:
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name]
    from kvplan.probe import read_machine

    try:
        return [str(gpu.index) if gpu.slice_index is None else gpu.uuid for gpu in read_machine().gpus]
    except DeviceError:
        return []
