"""Two lines that are always there: what is watched and how fresh it is, and the pool in figures."""

from rich.style import Style
from textual.strip import Strip

from kvengine.units import format_bytes
from kvtop import formats
from kvtop.glyphs import MISSING, PINNED_GLYPH
from kvtop.picture import Picture
from kvtop.view_model import Phase, ViewModel
from kvtop.widgets.foreign_text import printable
from kvtop.widgets.line_pane import LinePane, Part, arrange

BAR_COLUMNS = 24


class StateLine(LinePane):
    """The source, its badge and age; then blocks, requests and counters.

    Where there is no room, whole figures are left out, the least telling first. Beside another source that is the
    model, which both may have in common, and not what tells them apart.
    """

    def __init__(self, model: ViewModel, *, id: str = "state", is_compared: bool = False) -> None:
        super().__init__(model, id=id)
        self._is_compared = is_compared

    def draw_line(self, y: int, width: int) -> Strip:
        """The source, or the figures."""
        if y == 0:
            return arrange(self._source_parts(), self._freshness_parts(), width, self.base)
        if self.model.is_server:
            return arrange(self._server_parts(), [], width, self.base)
        picture = self.model.picture
        if picture is None:
            return self.line(width).add(" nothing known of the pool yet", self.palette.muted).strip()
        return arrange([*self._bar_parts(picture), *self._figure_parts(picture)], [], width, self.base)

    def _source_parts(self) -> list[Part]:
        model, palette, facts = self.model, self.palette, self.model.facts
        badge, style = self._badge()
        knowledge = "" if model.status.phase is Phase.CHOOSING else f"{model.knowledge} "
        parts = [Part(0, ((f" {badge} ", style), (knowledge, palette.muted)))]
        if model.status.detail:
            parts.append(Part(1, ((f" {model.status.detail} ", style),)))
        if model.recorded_into is not None:
            parts.append(
                Part(2, ((" ◉ REC ", palette.bad), (f"{printable(model.recorded_into.name)} ", palette.muted)))
            )
        if model.is_server:
            return [*parts, *self._server_names()]
        rank = 5 if self._is_compared and facts else 1
        parts.append(Part(rank, ((f" {facts.model if facts else model.source_name}", palette.strong),)))
        if facts is None:
            return parts
        if facts.simulated:
            parts.append(Part(2, (("  simulated", palette.warn),)))
        if facts.label:
            parts.append(Part(1 if self._is_compared else 4, ((f"  {facts.label}", palette.text),)))
        name = model.source_name if model.is_recording else f"pid {facts.pid}"
        parts.append(Part(2 if self._is_compared else 5, ((f"  {name}", palette.muted),)))
        if len(model.engines) > 1:
            parts.append(Part(4, ((f"  {len(model.engines)} engines run", palette.muted),)))
        size = f"  {facts.num_blocks - 1:,} blocks × {facts.block_size} tokens"
        parts.append(Part(3, ((size, palette.muted),)))
        parts.append(Part(6, ((f" = {format_bytes((facts.num_blocks - 1) * facts.block_bytes)}", palette.muted),)))
        return parts

    def _badge(self) -> tuple[str, Style]:
        palette = self.palette
        if self.model.is_paused:
            return "‖ PAUSED", palette.warn + Style(bold=True)
        text, style = {
            Phase.CHOOSING: ("○ NOT ATTACHED", palette.muted),
            Phase.WAITING: ("◌ ATTACHED", palette.warn),
            Phase.LIVE: ("● LIVE", palette.good),
            Phase.LOST: ("● GAP", palette.warn),
            Phase.ENDED: ("■ ENDED", palette.muted),
            Phase.GONE: ("× DISCONNECTED", palette.bad),
            Phase.REPLAY: ("▶ RECORDING", palette.good),
            Phase.FAILING: ("× NO FIGURES", palette.bad),
        }[self.model.status.phase]
        return text, style + Style(bold=True)

    def _freshness_parts(self) -> list[Part]:
        palette, picture = self.palette, self.model.picture
        if self.model.is_server:
            return self._server_freshness()
        if picture is None:
            return [Part(1, (("no step yet ", palette.warn),))]
        parts = [Part(1, (("  step ", palette.muted), (f"{picture.step:,} ", palette.strong)))]
        now_s = self.model.clock()
        age_s = self.model.age_s(now_s)
        if age_s is not None:
            style = palette.warn if self.model.is_stale(now_s) else palette.muted
            parts.append(Part(1, ((f" age {formats.seconds(age_s)} ", style),)))
        return parts

    def _bar_parts(self, picture: Picture) -> list[Part]:
        """The pool as one bar: shared, used, cached, free."""
        palette, totals, usable = self.palette, picture.totals, picture.num_usable
        spans: list[tuple[str, Style]] = [(" ", palette.text)]
        done = columns = 0
        for number, glyph, style in (
            (totals.shared, "◆", palette.shared),
            (totals.used, "■", palette.used),
            (totals.cached_free, "▒", palette.cached),
            (totals.free, "·", palette.free),
        ):
            done += number
            end = round(done * BAR_COLUMNS / usable) if usable else 0
            spans.append((glyph * (end - columns), style))
            columns = end
        return [Part(7, tuple(spans))]

    def _figure_parts(self, picture: Picture) -> list[Part]:
        palette, totals, counters = self.palette, picture.totals, picture.counters
        in_use = Part(
            0,
            (
                ("  in use ", palette.muted),
                (formats.percent(picture.in_use_fraction), palette.strong),
                (f" {picture.num_in_use:,}", palette.text),
            ),
        )
        return [
            in_use,
            self._figure(3, "◆ shared", f"{totals.shared:,}", palette.shared),
            *([self._figure(5, "saves", f"{picture.num_saved:,}", palette.text)] if picture.num_saved else []),
            self._figure(2, "▒ cached", f"{totals.cached_free:,}", palette.cached),
            *self._pinned_parts(picture),
            self._figure(1, "· free", f"{totals.free:,}", palette.text),
            Part(1, (("  │", palette.faint),)),
            self._figure(1, "● run", f"{totals.running:,}", palette.good),
            self._figure(1, "○ wait", f"{totals.waiting:,}", palette.warn if totals.waiting else palette.text),
            Part(4, (("  │", palette.faint),)),
            self._figure(
                4, "▲ preemptions", f"{counters.preemptions:,}", palette.bad if counters.preemptions else palette.text
            ),
            *self._swap_parts(picture),
            self._figure(4, "prefix hit", formats.percent(picture.hit_fraction), palette.text),
            self._figure(5, "recomputed", f"{counters.recomputed_tokens:,} tok", palette.text),
            self._figure(6, "peak", f"{counters.peak_blocks_in_use:,} blocks", palette.text),
        ]

    def _pinned_parts(self, picture: Picture) -> list[Part]:
        pinned = picture.pool.num_pinned
        return [self._figure(3, f"{PINNED_GLYPH} pinned", f"{pinned:,}", self.palette.warn)] if pinned else []

    def _swap_parts(self, picture: Picture) -> list[Part]:
        """Where preempted requests are swapped: host blocks in use, and the tokens of those that went and came back."""
        counters, in_all = picture.counters, picture.facts.host_blocks
        if in_all is None:
            return []
        used = f"{_count(counters.host_blocks_in_use)} of {in_all:,}"
        moved = f"{_count(counters.swapped_out_tokens)} out {_count(counters.swapped_in_tokens)} in tok"
        return [
            self._figure(4, "⇄ host", used, self.palette.warn if counters.host_blocks_in_use else self.palette.text),
            self._figure(5, "swapped", moved, self.palette.text),
        ]

    def _server_names(self) -> list[Part]:
        model, palette, server = self.model, self.palette, self.model.server
        metrics = server.metrics if server is not None else None
        name = (server.model if server is not None else None) or model.source_name
        parts = [Part(1, ((f" {printable(name)}", palette.strong),))]
        if metrics is not None and metrics.reading is not None:
            kind = {"vllm": "vLLM", "sglang": "SGLang"}.get(metrics.reading.server or "", "")
            parts.append(Part(3, ((f"  {kind} {printable(metrics.version)}".rstrip(), palette.text),)))
            if len(metrics.engines) > 1:
                parts.append(Part(2, ((f"  {len(metrics.engines)} engines", palette.text),)))
            if metrics.may_lag:
                parts.append(Part(4, (("  no counter moved: gauges may be old", palette.warn),)))
        parts.append(Part(5, ((f"  {model.source_name}", palette.muted),)))
        return parts

    def _server_freshness(self) -> list[Part]:
        age_s = self.model.age_s(self.model.clock())
        if age_s is None:
            return [Part(1, (("no figures yet ", self.palette.warn),))]
        style = self.palette.warn if self.model.is_stale(self.model.clock()) else self.palette.muted
        return [Part(1, ((f" age {formats.seconds(age_s)} ", style),))]

    def _server_parts(self) -> list[Part]:
        """The totals of a server; what it does not say is a dash."""
        palette, server = self.palette, self.model.server
        metrics = server.metrics if server is not None else None
        total = metrics.total if metrics is not None else None
        events = server.events if server is not None else None
        cached = events.num_blocks if events is not None else None
        if metrics is None or total is None:
            parts = [Part(0, ((" nothing known of the pool yet", palette.muted),))]
            return [*parts, self._figure(1, "▒ cached about", f"{cached:,}", palette.cached)] if cached else parts
        gauges, counters, counted = total.gauges, total.counters, metrics.counted
        used = (f" {_count(gauges.used_blocks)} of {_count(gauges.usable_blocks)}", palette.text)
        parts = [Part(0, (("  in use ", palette.muted), (formats.percent(gauges.usage), palette.strong), used))]
        if gauges.usage_max is not None and len(metrics.engines) > 1:
            parts.append(self._figure(1, "fullest", formats.percent(gauges.usage_max), palette.warn))
        if cached is not None:
            parts.append(self._figure(2, "▒ cached about", f"{cached:,}", palette.cached))
        rate = counted.per_second(counted.preemptions) if counted is not None else None
        preempted = (
            f"{_count(counters.preemptions)} {formats.rate(rate)}/s"
            if rate is not None
            else _count(counters.preemptions)
        )
        output = counted.per_second(counted.generation_tokens) if counted is not None else None
        recent_hit = counted.hit_rate if counted is not None else None
        hit = f"{formats.percent(recent_hit)} ({formats.percent(total.hit_rate)} life)"
        return [
            *parts,
            Part(1, (("  │", palette.faint),)),
            self._figure(1, "● run", _count(gauges.running), palette.good),
            self._figure(1, "○ wait", _count(gauges.waiting), palette.warn if gauges.waiting else palette.text),
            Part(4, (("  │", palette.faint),)),
            self._figure(4, "▲ preemptions", preempted, palette.bad if counters.preemptions else palette.text),
            self._figure(3, "hit", hit, palette.text),
            self._figure(5, "output", f"{formats.rate(output)} tok/s", palette.text),
        ]

    def _figure(self, rank: int, label: str, value: str, style: Style) -> Part:
        return Part(rank, ((f"  {label} ", self.palette.muted), (value, style)))


def _count(value: int | None) -> str:
    return MISSING if value is None else f"{value:,}"
