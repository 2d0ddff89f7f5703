"""The totals over time, condensed to as many columns as there is room for."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvengine.telemetry.history import Sample

MAX_SAMPLES = 2**15
"""A live view that sees more keeps pairs of samples as one; at 100 steps a second this is first so after 5 minutes."""

Column = float | None
"""None where nothing is known."""


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
    now: int
    """Index of the column that holds the step shown."""


class TrendLog:
    """Samples of every step seen, thinned out when there are very many."""

    def __init__(self, *, keeps_all: bool) -> None:
        self._keeps_all = keeps_all
        self._columns = {name: array("d") for name in _FIELDS}

    def __len__(self) -> int:
        return len(self._columns["step"])

    def extend(self, samples: Iterable[Sample]) -> None:
        """Add samples, the oldest first."""
        for sample in samples:
            totals, counters = sample.totals, sample.counters
            usable = totals.free + totals.cached_free + totals.used + totals.shared
            row = (
                sample.step,
                sample.time_s,
                (totals.used + totals.shared) / usable if usable else np.nan,
                totals.running,
                totals.waiting,
                counters.output_tokens,
                counters.preemptions,
                counters.first_prefix_hit_tokens,
                counters.admitted_prompt_tokens,
            )
            for column, value in zip(self._columns.values(), row, strict=True):
                column.append(value)
        if not self._keeps_all and len(self) > MAX_SAMPLES:
            self._halve()

    def span_s(self) -> float | None:
        """Stream time from the first sample to the last; None before the second."""
        times = self._columns["time_s"]
        return times[-1] - times[0] if len(times) > 1 else None

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
            return _known(np.maximum.reduceat(column[name], starts))

        def change(name: str) -> NDArray[np.float64]:
            return np.diff(column[name][edges])

        with np.errstate(divide="ignore", invalid="ignore"):
            output_per_s = change("output_tokens") / change("time_s")
            hit = change("first_hit_tokens") / change("admitted_tokens")
        now = int(np.searchsorted(column["step"][edges], step)) - 1
        return TrendColumns(
            in_use=most("in_use"),
            running=most("running"),
            waiting=most("waiting"),
            output_per_s=_known(output_per_s),
            preemptions=_known(change("preemptions")),
            hit=_known(hit),
            now=min(max(now, 0), num_columns - 1),
        )

    def _halve(self) -> None:
        """Keep one sample for each pair: the later one, with the larger of what is a level and not a count."""
        even = len(self) // 2 * 2
        for name, values in self._columns.items():
            pairs = np.frombuffer(values)[:even].reshape(-1, 2)
            kept = pairs.max(axis=1) if name in _LEVELS else pairs[:, 1]
            self._columns[name] = array("d", [*kept.tolist(), *values[even:]])


_FIELDS = (
    "step",
    "time_s",
    "in_use",
    "running",
    "waiting",
    "output_tokens",
    "preemptions",
    "first_hit_tokens",
    "admitted_tokens",
)
_LEVELS = {"in_use", "running", "waiting"}


def _known(values: NDArray[np.float64]) -> list[Column]:
    return [value if np.isfinite(value) else None for value in values.tolist()]
