"""How full a pool was over a run, in a few hundred spans whatever the run's length; peaks survive."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import msgspec

MAX_SPANS = 256


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Equally many steps a span; all lists have one entry a span."""

    steps_per_span: int
    """The last span may have fewer."""
    start: list[float]
    """When each span begins, in the unit of the run's latencies."""
    mean_used_blocks: list[float]
    max_used_blocks: list[int]
    mean_running: list[float]
    max_waiting: list[int]
    preemptions: list[int]


@dataclass(slots=True)
class _Span:
    start: float
    steps: int = 0
    used: int = 0
    max_used: int = 0
    running: int = 0
    max_waiting: int = 0
    preemptions: int = 0

    def add(self, used: int, running: int, waiting: int, preemptions: int) -> None:
        self.steps += 1
        self.used += used
        self.max_used = max(self.max_used, used)
        self.running += running
        self.max_waiting = max(self.max_waiting, waiting)
        self.preemptions += preemptions

    def absorb(self, later: "_Span") -> "_Span":
        self.steps += later.steps
        self.used += later.used
        self.max_used = max(self.max_used, later.max_used)
        self.running += later.running
        self.max_waiting = max(self.max_waiting, later.max_waiting)
        self.preemptions += later.preemptions
        return self


class TimelineLog:
    """Adds up steps into spans; when there are too many, each two become one."""

    def __init__(self, max_spans: int = MAX_SPANS) -> None:
        self._max_spans = max_spans
        self._spans: list[_Span] = []
        self._steps_per_span = 1

    def add(self, at: float, *, used: int, running: int, waiting: int, preemptions: int) -> None:
        """Note one step, as it was decided.

        Args:
            at: When it began.
            used: Blocks in use.
            running: Requests in the running list.
            waiting: Requests in the queue.
            preemptions: Requests that were preempted in this step.
        """
        if not self._spans or self._spans[-1].steps == self._steps_per_span:
            if len(self._spans) == self._max_spans:
                self._spans = list(_joined(self._spans))
                self._steps_per_span *= 2
            self._spans.append(_Span(at))
        self._spans[-1].add(used, running, waiting, preemptions)

    def timeline(self) -> Timeline | None:
        """The run up to now; None before its first step."""
        if not self._spans:
            return None
        spans = self._spans
        return Timeline(
            steps_per_span=self._steps_per_span,
            start=[round(span.start, 6) for span in spans],
            mean_used_blocks=[round(span.used / span.steps, 2) for span in spans],
            max_used_blocks=[span.max_used for span in spans],
            mean_running=[round(span.running / span.steps, 2) for span in spans],
            max_waiting=[span.max_waiting for span in spans],
            preemptions=[span.preemptions for span in spans],
        )


def _joined(spans: list[_Span]) -> Iterator[_Span]:
    for one, later in list(pairwise(spans))[::2]:
        yield one.absorb(later)
