"""Figures over time, condensed to as many columns as there is room for."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvengine.telemetry.history import Sample
from kvtop.latencies import LatencyLog

MAX_SAMPLES = 2**15
"""A live view that sees more keeps pairs of samples as one; at 100 steps a second this is first so after 5 minutes."""

Column = float | None
"""None where nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendPoint:
    """The figures at one time. What is not known is NaN; counters are since some beginning."""

    step: int
    """What the point is found by: a step, or the number of an answer of a server."""
    time_s: float
    in_use: float = np.nan
    """Blocks in use over usable blocks."""
    running: float = np.nan
    waiting: float = np.nan
    output_tokens: float = np.nan
    preemptions: float = np.nan
    hit_tokens: float = np.nan
    """Prompt tokens found in the prefix cache."""
    looked_up_tokens: float = np.nan
    """Prompt tokens of which those are a share."""
    time_to_first_token_s: float = np.nan
    """A high percentile of the last while, where single values are not known."""
    token_gap_s: float = np.nan
    """The same for the time between two output tokens."""
    breaks: float = 0
    """How often something was missed before: counters on the two sides of a break cannot be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendColumns:
    """Some figures, one value a column, oldest first."""

    in_use: list[Column]
    """Blocks in use over usable blocks, the highest of the column."""
    running: list[Column]
    waiting: list[Column]
    """Requests, the most of the column."""
    output_per_s: list[Column]
    """Output tokens a second; None where no time passed."""
    preemptions: list[Column]
    """How many within the column."""
    hit: list[Column]
    """Prompt tokens found in the prefix cache over those admitted; None where nothing was admitted."""
    time_to_first_token_s: list[Column]
    token_gap_s: list[Column]
    """The 95th percentile of the column; None where there was none."""
    now: int
    """Index of the column that holds the step shown."""


class TrendLog:
    """Samples of every step seen, thinned out when there are very many."""

    def __init__(self, *, keeps_all: bool) -> None:
        self._keeps_all = keeps_all
        self._columns = {name: array("d") for name in TrendPoint.__slots__}
        self.first_tokens_s = LatencyLog()
        """Seconds from the queue to the first output token."""
        self.token_gaps_s = LatencyLog()
        """Seconds between two output tokens of a request."""

    def __len__(self) -> int:
        return len(self._columns["step"])

    def extend(self, samples: Iterable[Sample]) -> None:
        """Add what an engine counted, the oldest first."""
        for sample in samples:
            totals, counters = sample.totals, sample.counters
            usable = totals.free + totals.cached_free + totals.used + totals.shared
            point = TrendPoint(
                step=sample.step,
                time_s=sample.time_s,
                in_use=(totals.used + totals.shared) / usable if usable else np.nan,
                running=totals.running,
                waiting=totals.waiting,
                output_tokens=counters.output_tokens,
                preemptions=counters.preemptions,
                hit_tokens=counters.first_prefix_hit_tokens,
                looked_up_tokens=counters.admitted_prompt_tokens,
            )
            self.add(point, first_tokens_s=sample.first_tokens_s, token_gaps_s=sample.token_gaps_s)

    def add(
        self, point: TrendPoint, *, first_tokens_s: Sequence[float] = (), token_gaps_s: Sequence[float] = ()
    ) -> None:
        """Add a point later than all others.

        Args:
            point: The figures.
            first_tokens_s: Waits for a first token that ended since the point before.
            token_gaps_s: Gaps between tokens since then, each followed by how many had it.
        """
        for name, column in self._columns.items():
            column.append(getattr(point, name))
        for wait_s in first_tokens_s:
            self.first_tokens_s.add(point.step, wait_s, 1)
        for gap_s, count in zip(token_gaps_s[::2], token_gaps_s[1::2], strict=False):
            self.token_gaps_s.add(point.step, gap_s, count)
        if not self._keeps_all and len(self) > MAX_SAMPLES:
            self._halve()

    @property
    def last_step(self) -> float:
        """The step of the last sample; 0 before the first."""
        steps = self._columns["step"]
        return steps[-1] if steps else 0.0

    def span_s(self) -> float | None:
        """Time from the first sample to the last; None before the second."""
        times = self._columns["time_s"]
        return times[-1] - times[0] if len(times) > 1 else None

    def time_of(self, step: int) -> float | None:
        """The time of the last sample at or before a step; None before the first."""
        index = bisect_right(self._columns["step"], step) - 1
        return self._columns["time_s"][index] if index >= 0 else None

    def recent_quantiles(self, log: LatencyLog, step: int, span_s: float) -> list[Column]:
        """The median and the 95th percentile of the waits that ended in the last while up to a step.

        Args:
            log: Waits for first tokens, or gaps between tokens.
            step: The last step that counts.
            span_s: How far back.
        """
        end_s = self.time_of(step)
        if end_s is None:
            return [None, None]
        first = bisect_right(self._columns["time_s"], end_s - span_s) - 1
        after = self._columns["step"][first] if first >= 0 else -1.0
        return [log.quantile(q, after=after, up_to=step) for q in (0.5, 0.95)]

    def columns(self, width: int, step: int) -> TrendColumns | None:
        """At most `width` columns over all samples; None before there are two.

        Args:
            width: Columns that there is room for.
            step: The step shown, to be found again in the columns.
        """
        num_samples = len(self)
        if num_samples < 2 or width < 1:
            return None
        # Column i covers the samples after edges[i] up to edges[i + 1]; rates compare the two edges.
        num_columns = min(width, num_samples - 1)
        edges = np.linspace(0, num_samples - 1, num_columns + 1).astype(np.int64)
        column = {name: np.frombuffer(values) for name, values in self._columns.items()}
        starts = edges[:-1] + 1

        def most(name: str) -> list[Column]:
            return _known(np.fmax.reduceat(column[name], starts))

        is_broken = np.diff(column["breaks"][edges]) > 0

        def change(name: str) -> NDArray[np.float64]:
            return np.where(is_broken, np.nan, np.diff(column[name][edges]))

        with np.errstate(divide="ignore", invalid="ignore"):
            output_per_s = change("output_tokens") / change("time_s")
            hit = change("hit_tokens") / change("looked_up_tokens")
        step_edges = column["step"][edges]
        now = int(np.searchsorted(step_edges, step)) - 1
        return TrendColumns(
            in_use=most("in_use"),
            running=most("running"),
            waiting=most("waiting"),
            output_per_s=_known(output_per_s),
            preemptions=_known(change("preemptions")),
            hit=_known(hit),
            time_to_first_token_s=self.first_tokens_s.quantiles(step_edges, 0.95) or most("time_to_first_token_s"),
            token_gap_s=self.token_gaps_s.quantiles(step_edges, 0.95) or most("token_gap_s"),
            now=min(max(now, 0), num_columns - 1),
        )

    def _halve(self) -> None:
        """Keep one sample for each pair: the later one, with the larger of what is a level and not a count."""
        even = len(self) // 2 * 2
        for name, values in self._columns.items():
            pairs = np.frombuffer(values)[:even].reshape(-1, 2)
            kept = np.fmax(pairs[:, 0], pairs[:, 1]) if name in _LEVELS else pairs[:, 1]
            self._columns[name] = array("d", [*kept.tolist(), *values[even:]])
        self.first_tokens_s.halve()
        self.token_gaps_s.halve()


_LEVELS = {"in_use", "running", "waiting", "time_to_first_token_s", "token_gap_s"}


def _known(values: NDArray[np.float64]) -> list[Column]:
    return [value if np.isfinite(value) else None for value in values.tolist()]
