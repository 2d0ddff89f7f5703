"""How long requests wait and run: time to the first token, between tokens, and to the end."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import fmean
from typing import Literal

import msgspec

from kvengine.request import RequestId

Unit = Literal["s", "steps"]


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Many times in a few numbers; percentiles are nearest-rank, so each is a time that was really there."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """The times of all requests of a run; None where none was long enough to have one."""

    unit: Unit
    """Seconds; or steps of the engine, where no time passes."""
    ttft: Percentiles | None = None
    """From a request's arrival to its first output token; waiting included."""
    itl: Percentiles | None = None
    """Between one output token and the next, over all tokens; preemptions in between included."""
    tpot: Percentiles | None = None
    """Per request: the mean time between its tokens."""
    e2e: Percentiles | None = None
    """From arrival to the last token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimes:
    """The times of one request that has ended."""

    ttft: float
    e2e: float
    num_tokens: int

    @property
    def tpot(self) -> float | None:
        """Mean time between output tokens; None with fewer than two."""
        return (self.e2e - self.ttft) / (self.num_tokens - 1) if self.num_tokens > 1 else None


@dataclass(slots=True)
class _Open:
    arrived: float
    first: float | None = None
    last: float = 0.0
    num_tokens: int = 0


@dataclass(slots=True)
class LatencyLog:
    """Notes when requests arrive, get tokens and end; times are of one clock, in any unit."""

    ended: list[RequestTimes] = field(default_factory=list)
    """Requests that have had their last token."""
    _open: dict[RequestId, _Open] = field(default_factory=dict)
    _gaps: "array[float]" = field(default_factory=lambda: array("d"))

    def arrived(self, request_id: RequestId, at: float) -> None:
        """A request was there, whether or not anybody had time for it."""
        self._open[request_id] = _Open(at)

    def token(self, request_id: RequestId, at: float) -> None:
        """A request got an output token."""
        self.tokens((request_id,), at)

    def tokens(self, request_ids: Iterable[RequestId], at: float) -> None:
        """Some requests got an output token each."""
        open_requests, add_gap = self._open, self._gaps.append
        for request_id in request_ids:
            request = open_requests[request_id]
            if request.first is None:
                request.first = at
            else:
                add_gap(at - request.last)
            request.last = at
            request.num_tokens += 1

    def finished(self, request_id: RequestId) -> None:
        """A request has had its last token."""
        request = self._open.pop(request_id)
        if request.first is not None:
            self.ended.append(
                RequestTimes(
                    ttft=request.first - request.arrived,
                    e2e=request.last - request.arrived,
                    num_tokens=request.num_tokens,
                )
            )

    def dropped(self, request_id: RequestId) -> None:
        """A request was cancelled: its tokens count, its times do not."""
        self._open.pop(request_id, None)

    def summary(self, unit: Unit) -> Latencies:
        """The times up to now."""
        return Latencies(
            unit=unit,
            ttft=percentiles([times.ttft for times in self.ended]),
            itl=percentiles(self._gaps),
            tpot=percentiles([times.tpot for times in self.ended if times.tpot is not None]),
            e2e=percentiles([times.e2e for times in self.ended]),
        )


def percentiles(values: Sequence[float]) -> Percentiles | None:
    """Sum up times; None if there are none."""
    if not values:
        return None
    ordered = sorted(values)

    def rank(quantile: float) -> float:
        return ordered[max(ceil(quantile * len(ordered)) - 1, 0)]

    return Percentiles(
        count=len(ordered),
        mean=fmean(ordered),
        p50=rank(0.5),
        p90=rank(0.9),
        p95=rank(0.95),
        p99=rank(0.99),
        max=ordered[-1],
    )
