"""How far a run or sweep has come: bars on a terminal, one line a point elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from kvengine.plain_text import one_line
from kvplan.groups import OUTPUT_PER_STEP, OUTPUT_RATE, judged_figures
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
        yield PointLines(lambda line: _print_line(console, line), num_points)
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
        self._numbers: dict[str, int] = {}

    def skipped(self, result: PointResult) -> None:
        """Say that an earlier sweep finished this point."""
        self._say(f"{self._place(result.fingerprint)} {_name(result)}: finished before")

    def started(self, prepared: PreparedPoint, num_requests: int) -> "PointLines":
        """Say that a point begins."""
        label = prepared.point.label or prepared.point.name
        said = f"{num_requests} requests" if num_requests else "begins"
        self._say(f"{self._place(prepared.fingerprint)} {label}: {said}")
        return self

    def advanced(self, finished_requests: int) -> None:
        """Too often for a line of its own."""

    def finished(self, result: PointResult) -> None:
        """Say how a point went."""
        self._say(f"{self._place(result.fingerprint)} {_name(result)}: {summary(result)}")

    def _place(self, fingerprint: str) -> str:
        number = self._numbers.setdefault(fingerprint, len(self._numbers) + 1)
        return f"[{number}/{self._num_points}]"


class PointBars:
    """A bar over all points, with the time that is left and the best so far, and one for each point that runs.

    Args:
        bars: Drawn by rich.
        num_points: Points of the sweep.
    """

    def __init__(self, bars: Progress, num_points: int) -> None:
        self._bars = bars
        self._points = bars.add_task("points", total=num_points, start=True)
        self._running: dict[str, TaskID] = {}
        self._best: tuple[float, str] | None = None

    def skipped(self, result: PointResult) -> None:
        """Count a point that an earlier sweep finished."""
        _print_line(self._bars.console, f"{_name(result)}: finished before")
        self._note_best(result)
        self._bars.advance(self._points)

    def started(self, prepared: PreparedPoint, num_requests: int) -> "PointBar":
        """Begin a bar for the requests of a point."""
        label = one_line(prepared.point.label or prepared.point.name)
        task = self._bars.add_task(label, total=num_requests or None)
        self._running[prepared.fingerprint] = task
        return PointBar(self._bars, task)

    def finished(self, result: PointResult) -> None:
        """Replace the bar of the point by a line that says how it went."""
        task = self._running.pop(result.fingerprint, None)
        if task is not None:
            self._bars.remove_task(task)
        _print_line(self._bars.console, f"{_name(result)}: {summary(result)}")
        self._note_best(result)
        self._bars.advance(self._points)

    def _note_best(self, result: PointResult) -> None:
        figures = judged_figures(result)
        metric = OUTPUT_RATE if figures.output_tokens_per_s is not None else OUTPUT_PER_STEP
        value = metric.of(figures)
        if result.outcome != "finished" or value is None or (self._best is not None and value <= self._best[0]):
            return
        self._best = value, _name(result)
        best = f"points (best so far: {_name(result)}, {value:.1f} {metric.unit})"
        self._bars.update(self._points, description=one_line(best))


class PointBar:
    """The bar of one point."""

    def __init__(self, bars: Progress, task: TaskID) -> None:
        self._bars = bars
        self._task = task

    def advanced(self, finished_requests: int) -> None:
        """Move the bar."""
        self._bars.update(self._task, completed=finished_requests)


def summary(result: PointResult) -> str:
    """How a point went, in a few words."""
    figures = judged_figures(result)
    if result.outcome == "does_not_fit":
        return "does not fit"
    if result.outcome == "unfinished":
        return f"only {figures.finished_requests or 0} of {result.num_requests} requests finished"
    source = "simulated" if result.measured is None else f"{figures.elapsed_s:.1f} s"
    rate = "" if figures.output_tokens_per_s is None else f", {figures.output_tokens_per_s:.1f} output tokens/s"
    if figures.preemptions is None:
        return f"{source}{rate}"
    preemptions = "1 preemption" if figures.preemptions == 1 else f"{figures.preemptions} preemptions"
    return f"{source}, {preemptions}{rate}"


def _print_line(console: Console, line: str) -> None:
    console.print(one_line(line), highlight=False, markup=False, soft_wrap=True)


def _name(result: PointResult) -> str:
    return result.label or result.name


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
