"""What a server counted between two readings, and the history that survives its restarts.

A counter is compared with itself only: a reading of another process, a counter that went back, or an engine that came
or went ends the window, and rates start again from there. What cannot be told is None, never 0 and never negative.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvengine.telemetry.engine_reading import Counters, EngineReading, num_finished, ratio
from kvengine.telemetry.histogram import Histogram
from kvengine.telemetry.metrics import MetricsReading, MetricsState

_COUNTERS = (
    "prompt_tokens",
    "generation_tokens",
    "prefix_queries",
    "prefix_hits",
    "external_prefix_queries",
    "external_prefix_hits",
    "preemptions",
    "evicted_tokens",
)
_HISTOGRAMS = ("time_to_first_token_s", "inter_token_s", "end_to_end_s", "queue_s")
_SAME_START_S = 1.0
"""Start times of one process differ by less: they are printed with few digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What was counted in a stretch of time, by one engine or by all."""

    seconds: float
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    prefix_queries: int | None = None
    prefix_hits: int | None = None
    external_prefix_queries: int | None = None
    external_prefix_hits: int | None = None
    preemptions: int | None = None
    evicted_tokens: int | None = None
    finished: Mapping[str, int] = field(default_factory=dict)
    time_to_first_token_s: Histogram | None = None
    inter_token_s: Histogram | None = None
    end_to_end_s: Histogram | None = None
    queue_s: Histogram | None = None

    @property
    def hit_rate(self) -> float | None:
        """Prefix hits over queries; None when nothing was looked up."""
        return ratio(self.prefix_hits, self.prefix_queries)

    @property
    def num_finished(self) -> int | None:
        """Requests that ended; cancelled ones may be in no count."""
        return num_finished(self.end_to_end_s, self.finished)

    @property
    def moved(self) -> bool | None:
        """Whether any counter moved: if none did, the gauges may be older than the reading, as in a long prefill."""
        known = [count for name in _COUNTERS if (count := getattr(self, name)) is not None]
        return any(known) if known else None

    def per_second(self, count: int | None) -> float | None:
        """A count of this window as a rate."""
        return count / self.seconds if count is not None and self.seconds > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWindow:
    """A window of a whole server."""

    total: Window
    engines: Sequence[Window]
    """In order of the engines of the later reading."""


def break_between(earlier: MetricsReading, later: MetricsReading) -> str | None:
    """Why nothing can be counted from one reading to the other, in words; None if it can."""
    if earlier.server != later.server:
        return "another kind of server answers"
    if reason := _other_process(earlier.process_start_unix_s, later.process_start_unix_s):
        return reason
    before, after = _by_labels(earlier), _by_labels(later)
    if before.keys() != after.keys():
        return f"{len(before)} engines became {len(after)}" if len(before) != len(after) else "other engines answer"
    pairs = [(before[labels].counters, after[labels].counters) for labels in before]
    if earlier.total is not None and later.total is not None:
        pairs.append((earlier.total.counters, later.total.counters))
    for then, now in pairs:
        if reason := _other_process(then.created_unix_s, now.created_unix_s):
            return reason
        if _went_back(then, now):
            return "server restarted: counters went back"
    return None


def window_between(earlier: MetricsReading, later: MetricsReading, seconds: float) -> ServerWindow | None:
    """What was counted from one reading to the other; None if `break_between` has a reason."""
    if earlier.total is None or later.total is None or break_between(earlier, later):
        return None
    before, after = _by_labels(earlier), _by_labels(later)
    return ServerWindow(
        total=_window(earlier.total.counters, later.total.counters, seconds),
        engines=[_window(before[labels].counters, now.counters, seconds) for labels, now in after.items()],
    )


class MetricsHistory:
    """The readings of one server that can be compared with its latest.

    Args:
        keep_s: How far back windows may reach, seconds.

    Attributes:
        latest: The last reading that had engine metrics; it stays, to be shown as stale, when later answers fail.
        latest_at_s: When it was taken.
        failure: The last answer if it failed, else None.
        broken: When and why counting last began anew, in words; None if it never did.
    """

    def __init__(self, keep_s: float = 300.0) -> None:
        self.latest: MetricsReading | None = None
        self.latest_at_s: float | None = None
        self.failure: MetricsReading | None = None
        self.broken: tuple[float, str] | None = None
        self._keep_s = keep_s
        self._readings: deque[tuple[float, MetricsReading]] = deque()

    def add(self, at_s: float, reading: MetricsReading) -> None:
        """Take the next answer, asked for at `at_s` on any clock that only goes forward."""
        if reading.total is None:
            self.failure = reading
            return
        self.failure = None
        self.latest, self.latest_at_s = reading, at_s
        if self._readings:
            before = self._readings[-1][1]
            if reading.state is MetricsState.PARTIAL and _by_labels(before).keys() != _by_labels(reading).keys():
                return
            if reason := break_between(before, reading):
                self.broken = (at_s, reason)
                self._readings.clear()
        self._readings.append((at_s, reading))
        # One reading older than the window stays, so that the window is never shorter than asked for.
        while len(self._readings) > 2 and self._readings[1][0] <= at_s - self._keep_s:
            self._readings.popleft()

    def age_s(self, now_s: float) -> float | None:
        """Age of `latest`; None if there is none."""
        return None if self.latest_at_s is None else now_s - self.latest_at_s

    def window(self, span_s: float) -> ServerWindow | None:
        """What was counted in about the last `span_s` seconds; shorter after a restart.

        Returns:
            None while there are no two readings of one run of the server.
        """
        if len(self._readings) < 2:
            return None
        *candidates, (end_s, end) = self._readings
        start_s, start = candidates[0]
        for at_s, reading in candidates:
            if at_s <= end_s - span_s:
                start_s, start = at_s, reading
        return window_between(start, end, end_s - start_s)

    def last_window(self) -> ServerWindow | None:
        """What was counted from the last reading but one to the last; None where that cannot be told."""
        if len(self._readings) < 2:
            return None
        (start_s, start), (end_s, end) = self._readings[-2], self._readings[-1]
        return window_between(start, end, end_s - start_s)


def _window(then: Counters, now: Counters, seconds: float) -> Window:
    values: dict[str, Any] = {name: _difference(getattr(then, name), getattr(now, name)) for name in _COUNTERS}
    values |= {name: _observed_since(getattr(then, name), getattr(now, name)) for name in _HISTOGRAMS}
    return Window(seconds=seconds, finished=_finished_since(then.finished, now.finished), **values)


def _difference(then: int | None, now: int | None) -> int | None:
    return now - then if then is not None and now is not None and now >= then else None


def _observed_since(then: Histogram | None, now: Histogram | None) -> Histogram | None:
    return now.since(then) if then is not None and now is not None else None


def _finished_since(then: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """By reason; a reason that was not there before was never given before."""
    if not then or not now or not then.keys() <= now.keys():
        return {}
    return {reason: count - then.get(reason, 0) for reason, count in now.items()}


def _other_process(then_unix_s: float | None, now_unix_s: float | None) -> str | None:
    if then_unix_s is None or now_unix_s is None or abs(now_unix_s - then_unix_s) < _SAME_START_S:
        return None
    if now_unix_s > then_unix_s:
        return "server restarted"
    return "an older process answers: several servers behind one address"


def _went_back(then: Counters, now: Counters) -> bool:
    values = [(getattr(then, name), getattr(now, name)) for name in _COUNTERS]
    values += [(count, now.finished.get(reason)) for reason, count in then.finished.items()]
    return any(before is not None and after is not None and after < before for before, after in values)


def _by_labels(reading: MetricsReading) -> dict[tuple[tuple[str, str], ...], EngineReading]:
    return {tuple(sorted(engine.labels.items())): engine for engine in reading.engines}
