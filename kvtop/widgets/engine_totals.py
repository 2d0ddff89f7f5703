"""What a server publishes instead of blocks: each engine's pool as a bar, and its queue in figures."""

from rich.style import Style
from textual.strip import Strip

from kvengine.telemetry.engine_reading import EngineReading
from kvengine.telemetry.event_stream import StreamState
from kvtop import formats
from kvtop.glyphs import MISSING
from kvtop.server_view import EventsPicture
from kvtop.view_model import ViewModel
from kvtop.widgets.foreign_text import printable
from kvtop.widgets.line_pane import Line, ListPane

LINES_OF_ENGINE = 4
MIN_BAR_COLUMNS = 8
MAX_BAR_COLUMNS = 60


class EngineTotals(ListPane):
    """A few lines for each data-parallel rank."""

    HEADER_LINES = 1
    NUMBERED_TITLE = "1 Engines"
    HELP = (
        "A server of vLLM or SGLang publishes totals, no block ids: so there is no map. Each engine (data-parallel\n"
        "rank) has its pool as a bar: ■ held by requests, ▒ cached and not held, where that is published, · the rest.\n"
        "With KV events the cached set is known by content: about so many blocks, held or not."
    )

    def __init__(self, model: ViewModel, *, id: str = "engines") -> None:
        super().__init__(model, id=id)

    @property
    def engines(self) -> list[EngineReading]:
        """One for each rank."""
        metrics = self.model.server.metrics if self.model.server is not None else None
        return list(metrics.engines) if metrics is not None else []

    @property
    def num_rows(self) -> int:
        """Lines of all engines, and of publishers without metrics."""
        num_engines = len(self.engines)
        if num_engines:
            return num_engines * LINES_OF_ENGINE
        return len(self.model.server.events.sources) * LINES_OF_ENGINE if self.model.server is not None else 0

    def draw_header(self, width: int) -> Strip:
        """Why there is no map."""
        text = " block ids are not published by this server, so there is no map: totals by engine"
        return self.line(width).add(text, self.palette.faint).strip()

    def describe_empty(self) -> str:
        """Why there is no row."""
        metrics = self.model.server.metrics if self.model.server is not None else None
        return "no answer with figures yet" if metrics is not None and metrics.has_failed else "no answer yet"

    def describe_position(self) -> str:
        """What the signs stand for."""
        return "■ held  ▒ cached, not held  · free or cached"

    def draw_row(self, row: int, width: int) -> Strip:
        """A line of an engine."""
        index, line = divmod(row, LINES_OF_ENGINE)
        engines = self.engines
        if not engines:
            return self._draw_events(index, line, width)
        engine = engines[index]
        draw = (self._draw_bar, self._draw_blocks, self._draw_queue, self._draw_cached)
        return draw[line](engine, width)

    def _draw_bar(self, engine: EngineReading, width: int) -> Strip:
        palette, gauges, line = self.palette, engine.gauges, self.line(width)
        line.add(f" engine {printable(engine.rank or MISSING)}  ", palette.strong)
        line.add(f"{formats.percent(gauges.usage):>6} in use ", palette.text)
        columns = min(max(line.room - 2, MIN_BAR_COLUMNS), MAX_BAR_COLUMNS)
        cached = None
        if gauges.cached_tokens is not None and gauges.capacity_tokens:
            cached = gauges.cached_tokens / gauges.capacity_tokens
        for text, style in self._bar(gauges.usage, cached, columns):
            line.add(text, style)
        return line.strip()

    def _bar(self, usage: float | None, cached: float | None, columns: int) -> list[tuple[str, Style]]:
        palette = self.palette
        if usage is None:
            return [("usage is not published", palette.muted)]
        num_used = round(usage * columns) or (1 if usage else 0)
        num_cached = min(round((cached or 0) * columns), columns - num_used)
        return [
            ("■" * num_used, palette.used),
            ("▒" * num_cached, palette.cached),
            ("·" * (columns - num_used - num_cached), palette.free),
        ]

    def _draw_blocks(self, engine: EngineReading, width: int) -> Strip:
        """Blocks, or tokens where pages are single tokens."""
        palette, gauges, line = self.palette, engine.gauges, self.line(width)
        if gauges.used_blocks is not None or gauges.num_blocks is not None:
            line.add("   blocks held ", palette.muted).add(_count(gauges.used_blocks), palette.text)
            line.add(" of ", palette.muted).add(_count(gauges.usable_blocks or gauges.num_blocks), palette.text)
            if gauges.block_size is not None:
                line.add(f" × {formats.plural(gauges.block_size, 'token')}", palette.muted)
            if gauges.free_blocks is not None:
                line.add("  free or cached ", palette.muted).add(_count(gauges.free_blocks), palette.text)
        if gauges.used_tokens is not None:
            line.add("   tokens held ", palette.muted).add(_count(gauges.used_tokens), palette.text)
            line.add("  cached ", palette.muted).add(_count(gauges.cached_tokens), palette.cached)
            line.add("  free ", palette.muted).add(_count(gauges.free_tokens), palette.text)
        if gauges.capacity_token_bounds is not None:
            low, high = gauges.capacity_token_bounds
            line.add(f"  of {low:,} to {high:,} tokens, from a rounded usage", palette.muted)
        elif gauges.capacity_tokens is not None:
            line.add(f"  of {gauges.capacity_tokens:,} tokens", palette.muted)
        elif gauges.num_blocks_inferred is not None:
            line.add(f"  pool inferred from an idle usage: {gauges.num_blocks_inferred:,} blocks", palette.warn)
        elif gauges.num_blocks is None and gauges.used_tokens is None:
            line.add("   the size of the pool is not published", palette.muted)
        return line.strip()

    def _draw_queue(self, engine: EngineReading, width: int) -> Strip:
        palette, gauges, line = self.palette, engine.gauges, self.line(width)
        line.add("   ● run ", palette.muted).add(_count(gauges.running), palette.good)
        line.add("  ○ wait ", palette.muted)
        line.add(_count(gauges.waiting), palette.warn if gauges.waiting else palette.text)
        if gauges.swapped is not None:
            line.add("  ⇄ swapped ", palette.muted).add(_count(gauges.swapped), palette.text)
        line.add("  ▲ preemptions ", palette.muted).add(_count(engine.counters.preemptions), palette.text)
        line.add("  hit ", palette.muted).add(formats.percent(engine.hit_rate), palette.text)
        return line.strip()

    def _draw_cached(self, engine: EngineReading, width: int) -> Strip:
        events, line = self._events_of(engine), self.line(width).add(" ", self.palette.muted)
        if events is not None:
            self._add_cached(line, events)
        return line.strip()

    def _draw_events(self, index: int, line_number: int, width: int) -> Strip:
        """A publisher, where there are no metrics."""
        line = self.line(width)
        assert self.model.server is not None, "publishers are part of a server"
        source = self.model.server.events.sources[index]
        if line_number == 0:
            line.add(f" engine {source.rank}  ", self.palette.strong).add(
                f"events from {source.address}", self.palette.muted
            )
        elif line_number == 1:
            line.add("  ", self.palette.muted)
            self._add_cached(line, source)
        return line.strip()

    def _events_of(self, engine: EngineReading) -> EventsPicture | None:
        sources = self.model.server.events.sources if self.model.server is not None else ()
        return next((source for source in sources if str(source.rank) == engine.rank), None)

    def _add_cached(self, line: Line, events: EventsPicture) -> None:
        palette = self.palette
        if events.state is StreamState.SILENT:
            line.add("  no event yet", palette.muted)
            return
        line.add("  ▒ cached about ", palette.muted).add(f"{events.num_blocks:,}", palette.cached)
        line.add(" blocks" if events.doubt else f" blocks, {events.num_distinct:,} distinct", palette.muted)
        if events.state is StreamState.CATCHING_UP:
            line.add("  catching up", palette.warn)
        elif events.doubt:
            line.add(f"  doubtful: {events.doubt}", palette.warn)


def _count(value: int | None) -> str:
    return MISSING if value is None else f"{value:,}"
