"""How far a run or sweep has come: bars on a terminal, one line a point elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from kvplan.prepare import PreparedPoint
from kvplan.results import PointResult
from kvplan.sweep import SweepProgress


@contextmanager
def show_progress(console: Console, *, num_points: int, quiet: bool) -> Iterator[SweepProgress]:
    """Show a sweep's progress while the block runs.

    Args:
        console: Of stderr.
        num_points: Points of the sweep, those already finished included.
        quiet: Show nothing.
    """
    if quiet:
        yield PointLines(lambda _: None, num_points)
    elif not console.is_terminal:
        yield PointLines(lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True), num_points)
    else:
        with _bars(console) as bars:
            yield PointBars(bars, num_points)


class PointLines:
    """A line for each point that begins, is finished, or was finished before.

    Args:
        say: Prints a line.
        num_points: Points of the sweep.
    """

    def __init__(self, say: Callable[[str], None], num_points: int) -> None:
        self._say = say
        self._num_points = num_points
        self._number = 0

    def skipped(self, result: PointResult) -> None:
        """Say that an earlier sweep finished this point."""
        self._number += 1
        self._say(f"{self._place()} {_name(result)}: finished before")

    def started(self, prepared: PreparedPoint, num_requests: int) -> "PointLines":
        """Say that a point begins."""
        self._number += 1
        label = prepared.point.label or prepared.point.name
        self._say(f"{self._place()} {label}: {num_requests} requests")
        return self

    def advanced(self, finished_requests: int) -> None:
        """Too often for a line of its own."""

    def finished(self, result: PointResult) -> None:
        """Say how a point went."""
        self._say(f"{self._place()} {_name(result)}: {summary(result)}")

    def _place(self) -> str:
        return f"[{self._number}/{self._num_points}]"


class PointBars:
    """A bar over all points and one over the requests of the running point.

    Args:
        bars: Drawn by rich.
        num_points: Points of the sweep.
    """

    def __init__(self, bars: Progress, num_points: int) -> None:
        self._bars = bars
        self._points = bars.add_task("points", total=num_points)
        self._requests: TaskID | None = None

    def skipped(self, result: PointResult) -> None:
        """Count a point that an earlier sweep finished."""
        self._bars.console.print(f"{_name(result)}: finished before", highlight=False, markup=False)
        self._bars.advance(self._points)

    def started(self, prepared: PreparedPoint, num_requests: int) -> "PointBars":
        """Begin a bar for the requests of a point."""
        self._requests = self._bars.add_task(prepared.point.label or prepared.point.name, total=num_requests)
        return self

    def advanced(self, finished_requests: int) -> None:
        """Move the bar of the running point."""
        if self._requests is not None:
            self._bars.update(self._requests, completed=finished_requests)

    def finished(self, result: PointResult) -> None:
        """Replace the bar of the point by a line that says how it went."""
        if self._requests is not None:
            self._bars.remove_task(self._requests)
            self._requests = None
        self._bars.console.print(f"{_name(result)}: {summary(result)}", highlight=False, markup=False)
        self._bars.advance(self._points)


def summary(result: PointResult) -> str:
    """How a point went, in a few words."""
    figures = result.measured or result.planned
    if result.outcome == "does_not_fit":
        return "does not fit"
    if result.outcome == "unfinished":
        return f"only {figures.finished_requests} of {result.num_requests} requests finished"
    source = "simulated" if result.measured is None else f"{figures.elapsed_s:.1f} s"
    rate = "" if figures.output_tokens_per_s is None else f", {figures.output_tokens_per_s:.1f} output tokens/s"
    preemptions = "1 preemption" if figures.preemptions == 1 else f"{figures.preemptions} preemptions"
    return f"{source}, {preemptions}{rate}"


def _name(result: PointResult) -> str:
    return result.label or result.name


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
