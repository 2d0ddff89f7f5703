"""Two sources in figures: what each says, and how far apart they are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvtop import formats
from kvtop.glyphs import MISSING
from kvtop.latencies import LatencyLog
from kvtop.view_model import ViewModel

WINDOW_S = 60.0
"""Percentiles are of so long."""
Figure = float | None
"""None where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How a figure and a difference of two are written."""

    write: Callable[[float], str]
    write_difference: Callable[[float], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of both sources."""

    name: str
    left: str
    right: str
    difference: str
    """Right less left, and how many times the left it is; a dash where one of them is not known."""


def _signed(write: Callable[[float], str]) -> Callable[[float], str]:
    return lambda value: ("+" if value > 0 else "−" if value < 0 else "±") + write(abs(value))


_COUNT = Kind(write=lambda value: f"{value:,.0f}", write_difference=_signed(lambda value: f"{value:,.0f}"))
_SHARE = Kind(write=formats.percent, write_difference=_signed(lambda value: f"{value * 100:.1f} points"))
_WAIT = Kind(write=formats.latency, write_difference=_signed(formats.latency))
_RATE = Kind(write=formats.rate, write_difference=_signed(formats.rate))
_TIME = Kind(write=lambda value: f"{value:.2f}s", write_difference=_signed(lambda value: f"{value:.2f}s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    name: str
    kind: Kind
    read: Callable[[ViewModel], Figure]


def compare(left: ViewModel, right: ViewModel) -> list[Row]:
    """All figures that at least one of the two knows."""
    rows: list[Row] = []
    for line in _LINES:
        values = line.read(left), line.read(right)
        if values != (None, None):
            rows.append(_row(line, *values))
    return rows


def _row(line: _Line, left: Figure, right: Figure) -> Row:
    write = line.kind.write
    difference = MISSING
    if left is not None and right is not None:
        difference = line.kind.write_difference(right - left)
        if left > 0 and right not in (0, left) and line.kind is not _SHARE:
            difference += f"  ×{right / left:.2f}"
    return Row(
        name=line.name,
        left=MISSING if left is None else write(left),
        right=MISSING if right is None else write(right),
        difference=difference,
    )


def _of_picture(read: Callable[[ViewModel], Figure]) -> Callable[[ViewModel], Figure]:
    return lambda model: read(model) if model.picture is not None else None


def _usage(model: ViewModel) -> Figure:
    if model.picture is not None:
        return model.picture.in_use_fraction
    return model.total.gauges.usage if model.total is not None else None


def _hit(model: ViewModel) -> Figure:
    if model.picture is not None:
        return model.picture.hit_fraction
    return model.total.hit_rate if model.total is not None else None


def _totals(name: str, gauge: str | None = None) -> Callable[[ViewModel], Figure]:
    """A count of the pool or the queues; of a server the gauge that says the same, where there is one."""

    def read(model: ViewModel) -> Figure:
        if model.picture is not None:
            value: int = getattr(model.picture.totals, name)
            return value
        known: int | None = getattr(model.total.gauges, gauge) if gauge and model.total is not None else None
        return known

    return read


def _counted(name: str, counter: str | None = None) -> Callable[[ViewModel], Figure]:
    """A counter since the start; of a server the one that says the same, where there is one."""

    def read(model: ViewModel) -> Figure:
        if model.picture is not None:
            value: int = getattr(model.picture.counters, name)
            return value
        known: int | None = getattr(model.total.counters, counter) if counter and model.total is not None else None
        return known

    return read


def _wait(log: Callable[[ViewModel], LatencyLog], histogram: str, index: int) -> Callable[[ViewModel], Figure]:
    def read(model: ViewModel) -> Figure:
        if model.is_server:
            counted = getattr(model.window, histogram) if model.window is not None else None
            value: float | None = counted.quantile((0.5, 0.95)[index]) if counted is not None else None
            return value
        return model.trends.recent_quantiles(log(model), model.step or 0, WINDOW_S)[index]

    return read


def _waste(model: ViewModel) -> Figure:
    return model.picture.waste.now.wasted_slots if model.picture is not None else None


def _lines() -> Sequence[_Line]:
    first, gap = (lambda model: model.trends.first_tokens_s), (lambda model: model.trends.token_gaps_s)
    return (
        _Line(name="step", kind=_COUNT, read=_of_picture(lambda model: model.step)),
        _Line(name="time", kind=_TIME, read=lambda model: model.picture.time_s if model.picture else None),
        _Line(name="blocks in use", kind=_SHARE, read=_usage),
        _Line(name="◆ shared", kind=_COUNT, read=_totals("shared")),
        _Line(name="■ used by one", kind=_COUNT, read=_totals("used")),
        _Line(name="▒ cached, free", kind=_COUNT, read=_totals("cached_free")),
        _Line(name="· free", kind=_COUNT, read=_totals("free")),
        _Line(name="● running", kind=_COUNT, read=_totals("running", "running")),
        _Line(name="○ waiting", kind=_COUNT, read=_totals("waiting", "waiting")),
        _Line(name="▲ preemptions", kind=_COUNT, read=_counted("preemptions", "preemptions")),
        _Line(name="recomputed tokens", kind=_COUNT, read=_counted("recomputed_tokens")),
        _Line(name="prefix hit", kind=_SHARE, read=_hit),
        _Line(name="output tokens", kind=_COUNT, read=_counted("output_tokens", "generation_tokens")),
        _Line(name="finished", kind=_COUNT, read=_counted("finished", "num_finished")),
        _Line(name="empty slots in blocks", kind=_COUNT, read=_waste),
        _Line(name="TTFT p50, last minute", kind=_WAIT, read=_wait(first, "time_to_first_token_s", 0)),
        _Line(name="TTFT p95, last minute", kind=_WAIT, read=_wait(first, "time_to_first_token_s", 1)),
        _Line(name="token gap p50", kind=_WAIT, read=_wait(gap, "inter_token_s", 0)),
        _Line(name="token gap p95", kind=_WAIT, read=_wait(gap, "inter_token_s", 1)),
    )


_LINES = _lines()
