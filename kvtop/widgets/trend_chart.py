"""Usage, queue, speed, preemptions and hits over time."""

from collections.abc import Callable
from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from kvengine.telemetry.histogram import Histogram
from kvtop import formats
from kvtop.glyphs import LEVELS, MISSING
from kvtop.latencies import LatencyLog
from kvtop.palette import Palette
from kvtop.trends import Column, TrendColumns
from kvtop.view_model import ViewModel
from kvtop.widgets.line_pane import LinePane, Part, arrange

MIN_CHART_COLUMNS = 24
MIN_CHART_LINES = 3
MAX_CHARTS_IN_LINE = 4
GAP = 3
SPARK_COLUMNS = 12
WINDOW_S = 60.0
"""Percentiles are of so long."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One curve and the figure that goes with it."""

    title: str
    short_title: str
    curve: Callable[[TrendColumns], list[Column]]
    figure: Callable[[ViewModel, TrendColumns], str]
    scale: Callable[[float], str]
    """How the largest value is written; the full height stands for it."""
    style: Callable[[Palette], Style]
    is_fraction: bool = False
    """The full height stands for 1."""
    is_time: bool = False
    """Means nothing where no model computes."""


def _whole(value: float) -> str:
    return formats.count(round(value))


def _count(value: int | None) -> str:
    return MISSING if value is None else formats.count(value)


def _in_use(model: ViewModel, _: TrendColumns) -> str:
    if model.picture is not None:
        return formats.percent(model.picture.in_use_fraction)
    return formats.percent(model.total.gauges.usage if model.total is not None else None)


def _waiting(model: ViewModel, _: TrendColumns) -> str:
    if model.picture is not None:
        return formats.count(model.picture.totals.waiting)
    return _count(model.total.gauges.waiting if model.total is not None else None)


def _running(model: ViewModel, _: TrendColumns) -> str:
    if model.picture is not None:
        return formats.count(model.picture.totals.running)
    return _count(model.total.gauges.running if model.total is not None else None)


def _preemptions(model: ViewModel, _: TrendColumns) -> str:
    if model.picture is not None:
        return formats.count(model.picture.counters.preemptions)
    return _count(model.total.counters.preemptions if model.total is not None else None)


def _hit(model: ViewModel, _: TrendColumns) -> str:
    if model.picture is not None:
        return formats.percent(model.picture.hit_fraction)
    return formats.percent(model.total.hit_rate if model.total is not None else None)


def _first_token(model: ViewModel) -> str:
    window = model.window
    return _quantiles(model, model.trends.first_tokens_s, window.time_to_first_token_s if window is not None else None)


def _token_gap(model: ViewModel) -> str:
    window = model.window
    return _quantiles(model, model.trends.token_gaps_s, window.inter_token_s if window is not None else None)


def _quantiles(model: ViewModel, log: LatencyLog, histogram: Histogram | None) -> str:
    """Median and 95th percentile of the last minute: of single waits, or read from a server's histogram."""
    if model.is_server:
        known = [histogram.quantile(q) if histogram is not None else None for q in (0.5, 0.95)]
    else:
        known = model.trends.recent_quantiles(log, model.step or 0, WINDOW_S)
    return "/".join(map(formats.latency, known))


CHARTS = (
    Chart(
        "blocks in use",
        "in use",
        lambda trend: trend.in_use,
        _in_use,
        formats.percent,
        lambda palette: palette.used,
        is_fraction=True,
    ),
    Chart("waiting", "wait", lambda trend: trend.waiting, _waiting, _whole, lambda palette: palette.warn),
    Chart("preemptions", "pre", lambda trend: trend.preemptions, _preemptions, _whole, lambda palette: palette.bad),
    Chart(
        "output tokens/s",
        "tok/s",
        lambda trend: trend.output_per_s,
        lambda _, trend: formats.rate(trend.output_per_s[trend.now]),
        formats.rate,
        lambda palette: palette.good,
        is_time=True,
    ),
    Chart("running", "run", lambda trend: trend.running, _running, _whole, lambda palette: palette.good),
    Chart(
        "prefix hit",
        "hit",
        lambda trend: trend.hit,
        _hit,
        formats.percent,
        lambda palette: palette.cached,
        is_fraction=True,
    ),
    Chart(
        "TTFT p50/95",
        "ttft",
        lambda trend: trend.time_to_first_token_s,
        lambda model, _: _first_token(model),
        formats.latency,
        lambda palette: palette.used,
        is_time=True,
    ),
    Chart(
        "gap p50/95",
        "gap",
        lambda trend: trend.token_gap_s,
        lambda model, _: _token_gap(model),
        formats.latency,
        lambda palette: palette.warn,
        is_time=True,
    ),
)


class TrendChart(LinePane, can_focus=True):
    """Small charts side by side, as many as fit; sparklines where there is one line only."""

    HELP = (
        "Each figure since the watching began, or over the whole recording, condensed to the columns that there are:\n"
        "levels show the highest of a column, rates its mean. White is the step shown. A gap is what is not known.\n"
        "TTFT is the wait for a request's first token, gap the time between two of its tokens: the figures are the\n"
        "median and the 95th percentile of the last minute, the curves the 95th percentile of each column."
    )

    def __init__(self, model: ViewModel, *, id: str = "trend") -> None:
        super().__init__(model, id=id, title="4 Trend")
        self._trend: TrendColumns | None = None
        self._trend_columns = 0
        """Columns that `_trend` was made for; 0 when it is out of date."""

    def update_view(self) -> None:
        """Say what span is seen, and draw."""
        self._trend_columns = 0
        span_s = self.model.trends.span_s()
        num_steps = len(self.model.trends)
        what = "answers" if self.model.is_server else "samples"
        self.set_titles("4 Trend", f"{num_steps:,} {what} over {formats.seconds(span_s)}" if span_s else "")
        self.refresh()

    def draw_line(self, y: int, width: int) -> Strip:
        """One line of all charts that lie side by side."""
        height = self.size.height
        per_line, num_lines = self._grid(width, height)
        chart_width = (width - 1 - GAP * (per_line - 1)) // per_line
        trend = self._columns(SPARK_COLUMNS if height < MIN_CHART_LINES else chart_width)
        if trend is None:
            line = self.line(width)
            needs = "two answers" if self.model.is_server else "two steps"
            return (line.add(f" a trend needs {needs}", self.palette.muted) if y == 0 else line).strip()
        if height < MIN_CHART_LINES:
            return self._draw_sparks(trend, width) if y == 0 else Strip.blank(width, self.base)
        lines_each = height // num_lines
        row, line_of_chart = divmod(y, lines_each)
        charts = CHARTS[row * per_line : (row + 1) * per_line] if row < num_lines else ()
        segments: list[Segment] = [Segment(" ", self.base)]
        for index, chart in enumerate(charts):
            segments.append(Segment(" " * GAP if index else "", self.base))
            segments += self._draw_chart(chart, trend, line_of_chart, lines_each, chart_width)
        done = 1 + sum(chart_width + (GAP if index else 0) for index in range(len(charts)))
        segments.append(Segment(" " * (width - done), self.base))
        return Strip([segment for segment in segments if segment.text], width)

    def _columns(self, columns: int) -> TrendColumns | None:
        """The trend in so many columns, worked out once for each picture."""
        if columns != self._trend_columns:
            self._trend = self.model.trends.columns(columns, self.model.step) if self.model.step is not None else None
            self._trend_columns = columns
        return self._trend

    def _grid(self, width: int, height: int) -> tuple[int, int]:
        """Charts side by side, and lines of them."""
        per_line = min(max((width + GAP) // (MIN_CHART_COLUMNS + GAP), 1), MAX_CHARTS_IN_LINE)
        num_lines = min(max(height // (MIN_CHART_LINES + 1), 1), -(-len(CHARTS) // per_line))
        return per_line, num_lines

    def _draw_chart(self, chart: Chart, trend: TrendColumns, y: int, height: int, width: int) -> list[Segment]:
        values = chart.curve(trend)
        known = [value for value in values if value is not None]
        top = 1.0 if chart.is_fraction else max(known, default=0.0)
        if y == 0:
            return self._draw_title(chart, trend, max(known, default=None), width)
        num_rows = height - 2 if height > MIN_CHART_LINES else height - 1
        from_bottom = num_rows - y
        if from_bottom < 0:
            return [Segment(" " * width, self.base)]
        return self._draw_levels(values, trend.now, top, from_bottom, num_rows, width, chart.style(self.palette))

    def _draw_title(self, chart: Chart, trend: TrendColumns, largest: float | None, width: int) -> list[Segment]:
        palette = self.palette
        figure = chart.figure(self.model, trend)
        parts = [Part(1, ((chart.title, palette.muted),)), Part(0, ((f" {figure}", palette.strong),))]
        if chart.is_time and self.model.facts is not None and self.model.facts.simulated:
            parts.append(Part(3, ((" simulated", palette.warn),)))
        scale = MISSING if largest is None else chart.scale(largest)
        right = [Part(2, ((f" max {scale}", palette.faint),))]
        return list(arrange(parts, right, width, self.base))

    def _draw_levels(
        self, values: list[Column], now: int, top: float, from_bottom: int, num_rows: int, width: int, style: Style
    ) -> list[Segment]:
        """One line of a filled curve: eighths of a cell, blank where nothing is known."""
        palette = self.palette
        texts = [_level(value, top, from_bottom, num_rows) for value in values]
        segments = [Segment("".join(texts[:now]), style)] if now else []
        segments.append(Segment(texts[now], palette.strong))
        if texts[now + 1 :]:
            segments.append(Segment("".join(texts[now + 1 :]), palette.faint))
        segments.append(Segment(" " * (width - len(texts)), self.base))
        return segments

    def _draw_sparks(self, trend: TrendColumns, width: int) -> Strip:
        palette = self.palette
        parts = [Part(0, ((" 4", palette.faint),))]
        for rank, chart in enumerate(CHARTS):
            values = chart.curve(trend)
            top = 1.0 if chart.is_fraction else max((value for value in values if value is not None), default=0.0)
            spark = "".join(_level(value, top, 0, 1) for value in values).ljust(SPARK_COLUMNS)
            parts.append(
                Part(
                    rank,
                    (
                        (f" {chart.short_title} ", palette.muted),
                        (spark, chart.style(palette)),
                        (f" {chart.figure(self.model, trend):<6}", palette.text),
                    ),
                )
            )
        return arrange(parts, [], width, self.base)


def _level(value: Column, top: float, from_bottom: int, num_rows: int) -> str:
    """The cell of a bar at some height; a value above 0 is never drawn as nothing, and 0 is a line at the bottom."""
    if value is None:
        return " "
    if value <= 0 or top <= 0:
        return "_" if from_bottom == 0 else " "
    eighths = max(round(value / top * num_rows * 8), 1)
    return LEVELS[min(max(eighths - from_bottom * 8, 0), 8)]
