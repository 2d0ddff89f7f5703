"""What a server counts: requests, tokens, hits and waiting times, in total and in the last while."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from textual.strip import Strip

from kvengine.telemetry.engine_reading import EngineReading
from kvengine.telemetry.histogram import Histogram
from kvengine.telemetry.rates import Window
from kvtop import formats
from kvtop.glyphs import MISSING
from kvtop.view_model import ViewModel
from kvtop.widgets.foreign_text import printable
from kvtop.widgets.line_pane import ListPane

WIDE = 60
"""Columns from which there is room for long titles and pairs of figures."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A line: what it is, its value over the lifetime, and in the window."""

    title: str
    total: Callable[[EngineReading], str] = lambda _: ""
    recent: Callable[[Window], str] = lambda _: ""


class ServerFigures(ListPane):
    """A table of figures; a dash where the server does not say."""

    HEADER_LINES = 1
    NUMBERED_TITLE = "2 Totals"
    TAKES_TURNS_WITH = "3 Prefixes"
    HELP = (
        "Single requests are not published by vLLM and SGLang, only counts. life: since the server started; window:\n"
        "the last minute, or less after a restart. Percentiles are read from histograms, as a line through a bucket;\n"
        "> where they lie above the last bound."
    )

    def __init__(self, model: ViewModel, *, id: str = "figures") -> None:
        super().__init__(model, id=id)

    @property
    def num_rows(self) -> int:
        """Figures."""
        metrics = self.model.server.metrics if self.model.server is not None else None
        return len(FIGURES) if metrics is not None and metrics.total is not None else 0

    def describe_empty(self) -> str:
        """Why there is no row."""
        return "single requests are not published by this server, and no totals have come yet"

    def describe_position(self) -> str:
        """How long the window is, and what interrupted it."""
        metrics = self.model.server.metrics if self.model.server is not None else None
        if metrics is None:
            return ""
        counted = metrics.counted
        span = f"window {formats.seconds(counted.seconds)}" if counted is not None else "no window yet"
        return f"{span} · {metrics.broken}" if metrics.broken else span

    def draw_header(self, width: int) -> Strip:
        """The titles of the columns."""
        title, life, window = _widths(width)
        return self.line(width).add(f" {'':<{title}}{'life':>{life}}{'window':>{window}}", self.palette.muted).strip()

    def draw_row(self, row: int, width: int) -> Strip:
        """One figure."""
        metrics = self.model.server.metrics if self.model.server is not None else None
        assert metrics is not None and metrics.total is not None, "rows come from a reading"  # noqa: PT018
        figure, palette, counted = FIGURES[row], self.palette, metrics.counted
        title, life, window = _widths(width)
        line = self.line(width)
        line.add(f" {figure.title:<{title}}", palette.muted)
        line.add(f"{figure.total(metrics.total):>{life}}", palette.strong)
        line.add(f"{figure.recent(counted) if counted is not None else MISSING:>{window}}", palette.text)
        return line.strip()


def _widths(width: int) -> tuple[int, int, int]:
    """Columns of the titles, of the life's figures and of the window's."""
    return (22, 14, 22) if width >= WIDE else (17, 11, max(width - 29, 9))


def _count(value: int | None) -> str:
    return MISSING if value is None else f"{value:,}"


def _per_s(window: Window, count: int | None) -> str:
    rate = window.per_second(count)
    return MISSING if rate is None else f"{formats.rate(rate)}/s"


def _both(window: Window, count: int | None) -> str:
    return MISSING if count is None else f"{count:,}  {_per_s(window, count)}"


def _by_reason(counts: Mapping[str, int]) -> str:
    known = [f"{printable(reason)} {count:,}" for reason, count in counts.items() if count]
    return " ".join(known) if known else (MISSING if not counts else "0")


def _percentiles(histogram: Histogram | None) -> str:
    if histogram is None or not histogram.count:
        return MISSING
    return "  ".join(_quantile(histogram, q) for q in (0.5, 0.95))


def _quantile(histogram: Histogram, q: float) -> str:
    value = histogram.quantile(q)
    if value is None:
        return MISSING
    is_above = len(histogram.bounds) > 1 and value >= histogram.bounds[-2]
    return (">" if is_above else "") + formats.latency(value)


FIGURES = (
    Figure("● running", lambda e: _count(e.gauges.running)),
    Figure("○ waiting", lambda e: _count(e.gauges.waiting), lambda _: ""),
    Figure("  by reason", lambda e: _by_reason(e.gauges.waiting_by_reason)),
    Figure("▲ preemptions", lambda e: _count(e.counters.preemptions), lambda w: _both(w, w.preemptions)),
    Figure("✓ finished", lambda e: _count(e.counters.num_finished), lambda w: _both(w, w.num_finished)),
    Figure("prompt tokens", lambda e: _count(e.counters.prompt_tokens), lambda w: _per_s(w, w.prompt_tokens)),
    Figure("output tokens", lambda e: _count(e.counters.generation_tokens), lambda w: _per_s(w, w.generation_tokens)),
    Figure("prefix hit", lambda e: formats.percent(e.hit_rate), lambda w: formats.percent(w.hit_rate)),
    Figure(
        "  hits/looked up",
        lambda e: f"{_count(e.counters.prefix_hits)}/{_count(e.counters.prefix_queries)}",
        lambda w: f"{_count(w.prefix_hits)}/{_count(w.prefix_queries)}",
    ),
    Figure("evicted tokens", lambda e: _count(e.counters.evicted_tokens), lambda w: _per_s(w, w.evicted_tokens)),
    Figure("TTFT p50 p95", recent=lambda w: _percentiles(w.time_to_first_token_s)),
    Figure("token gap p50 p95", recent=lambda w: _percentiles(w.inter_token_s)),
    Figure("queue p50 p95", recent=lambda w: _percentiles(w.queue_s)),
    Figure("end-to-end p50 95", recent=lambda w: _percentiles(w.end_to_end_s)),
)
