"""ServeGen: requests drawn from what was measured of real clients, each with its own rate, bursts and lengths.

A folder holds two files a client. `chunk-N-trace.csv` has a line for each window of 10 minutes: start in seconds,
requests a second, coefficient of variation of the gaps, their distribution (Gamma, Weibull, or none while nothing
comes), its shape and scale. `chunk-N-dataset.json` has histograms of input and output tokens for every 6 hours, each a
text of `{tokens: share}`.

Source: github.com/alibaba/ServeGen, data/language; Xiang et al., NSDI'26.
"""

import ast
import heapq
import random
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import gamma, inf
from pathlib import Path

from kvengine.errors import ConfigError
from kvplan.loading import load_json_object
from kvplan.traces.rows import TraceRow, read_lines, read_seconds, read_tokens

_TRACE_NAME = re.compile(r"(.+)-trace\.csv")
_MAX_RATE_PER_S = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """Some minutes of one client."""

    start_s: float
    end_s: float
    rate_per_s: float
    kind: str
    """`Gamma`, `Weibull`, or empty while nothing comes."""
    shape: float

    def gap_s(self, chance: random.Random) -> float:
        """Draw the time from one request to the next.

        The measured shape decides how bursty it is, the measured rate the mean: the fitted scales alone miss the rate
        by up to a half where gaps vary most.
        """
        mean_s = 1 / self.rate_per_s
        if self.kind == "Gamma":
            return chance.gammavariate(self.shape, mean_s / self.shape)
        return chance.weibullvariate(mean_s / gamma(1 + 1 / self.shape), self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Histogram:
    tokens: list[int]
    share_sums: list[float]

    def draw(self, chance: random.Random) -> int:
        return chance.choices(self.tokens, cum_weights=self.share_sums)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lengths:
    start_s: float
    input_tokens: _Histogram
    output_tokens: _Histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class _Client:
    name: str
    windows: list[_Window]
    lengths: list[_Lengths]

    def rows(self, start_s: float, end_s: float, chance: random.Random) -> Iterator[TraceRow]:
        """Draw the requests between two times, in order."""
        starts = [lengths.start_s for lengths in self.lengths]
        for window in self.windows:
            time_s = max(window.start_s, start_s)
            until_s = min(window.end_s, end_s)
            while window.rate_per_s and (time_s := time_s + window.gap_s(chance)) < until_s:
                lengths = self.lengths[max(bisect_right(starts, time_s) - 1, 0)]
                yield TraceRow(
                    arrival_s=time_s,
                    input_tokens=lengths.input_tokens.draw(chance),
                    output_tokens=lengths.output_tokens.draw(chance),
                )


def servegen_rows(
    folder: Path, *, seed: int, start_s: float = 0.0, duration_s: float | None = None
) -> Iterator[TraceRow]:
    """Draw requests of all clients of a folder, in order of arrival.

    Args:
        folder: Files of one or more clients.
        seed: Decides every time and length.
        start_s: Where in the measured time to begin.
        duration_s: How long; None for as long as was measured.

    Raises:
        ConfigError: A file is missing or does not hold what it should.
    """
    end_s = inf if duration_s is None else start_s + duration_s
    clients = _read_clients(folder)
    streams = [client.rows(start_s, end_s, random.Random(f"{seed}/servegen/{client.name}")) for client in clients]
    return heapq.merge(*streams, key=lambda row: row.arrival_s or 0.0)


def _read_clients(folder: Path) -> list[_Client]:
    if not folder.is_dir():
        raise ConfigError("no such folder; ServeGen's files come as a folder", where=str(folder))
    names = sorted(match.group(1) for path in folder.iterdir() if (match := _TRACE_NAME.fullmatch(path.name)))
    if not names:
        raise ConfigError("holds no file such as chunk-0-trace.csv", where=str(folder))
    return [
        _Client(
            name=name,
            windows=_read_windows(folder / f"{name}-trace.csv"),
            lengths=_read_lengths(folder / f"{name}-dataset.json"),
        )
        for name in names
    ]


def _read_windows(path: Path) -> list[_Window]:
    windows = [_read_window(text, f"{path}: line {number}") for number, text in read_lines(path) if text.strip()]
    if len(windows) < 2:
        raise ConfigError("expected at least two windows", where=str(path))
    for number, (one, following) in enumerate(pairwise(windows), start=2):
        if following.start_s <= one.start_s:
            raise ConfigError("its window begins before that of the line above", where=f"{path}: line {number}")
    width_s = windows[1].start_s - windows[0].start_s
    ends = [*(window.start_s for window in windows[1:]), windows[-1].start_s + width_s]
    return [
        _Window(start_s=window.start_s, end_s=end_s, rate_per_s=window.rate_per_s, kind=window.kind, shape=window.shape)
        for window, end_s in zip(windows, ends, strict=True)
    ]


def _read_window(text: str, where: str) -> _Window:
    cells = text.split(",")
    if len(cells) != 6:
        raise ConfigError(f"expected 6 cells, got {len(cells)}", where=where)
    start_s, rate, kind = (
        read_seconds(cells[0], "start", where),
        read_seconds(cells[1], "rate", where),
        cells[3].strip(),
    )
    shape = read_seconds(cells[4], "shape", where)
    if not 0 <= rate <= _MAX_RATE_PER_S:
        raise ConfigError(f"rate: expected requests a second, got {cells[1]!r}", where=where)
    if rate and kind not in ("Gamma", "Weibull"):
        raise ConfigError(f"expected Gamma or Weibull gaps, got {kind!r}", where=where)
    # Below 0.01 the mean of Weibull gaps is beyond a float.
    if rate and not 0.01 <= shape <= 1e6:
        raise ConfigError(f"shape: expected a number from 0.01 to 1e6, got {cells[4]!r}", where=where)
    return _Window(start_s=start_s, end_s=inf, rate_per_s=rate, kind=kind, shape=shape)


def _read_lengths(path: Path) -> list[_Lengths]:
    found = []
    for start, histograms in load_json_object(path, name=str(path)).items():
        where = f"{path}: {start}"
        if not isinstance(histograms, dict):
            raise ConfigError("expected an object with input_tokens and output_tokens", where=where)
        start_s = read_seconds(start, "start", where)
        inputs = _read_histogram(histograms.get("input_tokens"), f"{where}.input_tokens")
        outputs = _read_histogram(histograms.get("output_tokens"), f"{where}.output_tokens")
        if inputs and outputs:  # both are empty where the client was idle for all of the time
            found.append(_Lengths(start_s=start_s, input_tokens=inputs, output_tokens=outputs))
    if not found:
        raise ConfigError("holds no histogram that is not empty", where=str(path))
    return sorted(found, key=lambda lengths: lengths.start_s)


def _read_histogram(text: object, where: str) -> _Histogram | None:
    try:
        shares = ast.literal_eval(text) if isinstance(text, str) else text
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        shares = None
    if not isinstance(shares, dict):
        raise ConfigError("expected a histogram such as {12: 0.25, 13: 0.75}", where=where)
    for tokens, share in shares.items():
        read_tokens(tokens, "tokens", where, minimum=0)
        if not isinstance(share, int | float) or not 0 <= share <= 1e18:
            raise ConfigError(f"expected a share for {tokens} tokens, got {share!r}", where=where)
    if not any(shares.values()):
        return None
    return _Histogram(
        tokens=[int(tokens) for tokens in shares], share_sums=list(accumulate(map(float, shares.values())))
    )
