"""What happened, the newest at the bottom."""

from textual.strip import Strip

from kvengine.telemetry.history import Event, EventKind
from kvtop import formats
from kvtop.view_model import ViewModel
from kvtop.widgets.foreign_text import printable
from kvtop.widgets.line_pane import ListPane

_GLYPHS = {
    EventKind.ARRIVE: "+",
    EventKind.ADMIT: "●",
    EventKind.RESUME: "◐",
    EventKind.PREEMPT: "▲",
    EventKind.FINISH: "✓",
    EventKind.EVICT: "▒",
    EventKind.NOTE: "»",
    EventKind.CLEAR: "∅",
    EventKind.SOURCE: "!",
}


MIN_WIDTH_FOR_TIMES = 56


class EventLog(ListPane):
    """Follows the newest event until it is scrolled up."""

    NUMBERED_TITLE = "5 Events"
    HELP = (
        "What happened to requests and cached blocks, the newest at the bottom; in a recording, up to the step\n"
        "shown. It follows the newest until it is scrolled up. n and N go to the next and the previous preemption, or\n"
        "step in which at least 1 % of the pool, and 8 blocks, lost cached content."
    )

    def __init__(self, model: ViewModel, *, id: str = "events") -> None:
        super().__init__(model, id=id)
        self._is_following = True

    @property
    def num_rows(self) -> int:
        """Events up to the step shown."""
        return self.model.num_events_shown()

    def update_view(self) -> None:
        """Follow the newest event."""
        if self._is_following:
            self.top = max(self.num_rows - self.num_visible, 0)
        super().update_view()

    def scroll_rows(self, count: int) -> None:
        """Scroll; following goes on at the end."""
        super().scroll_rows(count)
        if count:
            self._is_following = self.top >= self.num_rows - self.num_visible

    def reveal_incident(self) -> None:
        """Scroll to the event that was looked for."""
        if self.model.incident in self.model.events:
            self._is_following = False
            self.top = max(self.model.events.index(self.model.incident) - self.num_visible // 2, 0)
        self.update_view()

    def describe_empty(self) -> str:
        """Why there is no row."""
        return "nothing has happened yet"

    def draw_row(self, row: int, width: int) -> Strip:
        """One event."""
        event, palette = self.model.events[row], self.palette
        style = {
            EventKind.PREEMPT: palette.bad,
            EventKind.EVICT: palette.cached,
            EventKind.ADMIT: palette.good,
            EventKind.RESUME: palette.warn,
            EventKind.CLEAR: palette.cached,
            EventKind.SOURCE: palette.warn,
        }.get(event.kind, palette.muted)
        line = self.line(width)
        is_folded = self.size.height == 1
        line.add(" 5 " if is_folded else " ", palette.faint)
        if not self.model.is_server:
            line.add(f"{event.step:>7,} ", palette.muted)
        if width >= MIN_WIDTH_FOR_TIMES:
            line.add(f"{event.time_s:>8.2f}s  ", palette.faint)
        is_words = event.kind in (EventKind.NOTE, EventKind.SOURCE)
        line.add(f"{_GLYPHS[event.kind]} " if is_words else f"{_GLYPHS[event.kind]} {event.kind:<8}", style)
        line.add(f"{event.request_id} " if event.request_id else "", palette.text)
        line.add(_describe(event), palette.text if is_words else palette.muted)
        return line.strip(palette.selected if event is self.model.incident else None)


def _describe(event: Event) -> str:
    match event.kind:
        case EventKind.ARRIVE:
            return f"{event.amount:,} prompt tokens"
        case EventKind.ADMIT | EventKind.RESUME:
            return f"{event.amount:,} tokens hit" if event.amount else "no hit"
        case EventKind.PREEMPT if not event.request_id:
            return formats.plural(event.amount, "request")
        case EventKind.PREEMPT:
            return f"gives up {formats.plural(event.amount, 'block')}"
        case EventKind.EVICT:
            return f"{formats.plural(event.amount, 'cached block')}"
        case EventKind.FINISH:
            return f"{formats.plural(event.amount, 'token')}, {event.reason}"
        case EventKind.CLEAR:
            return "the whole prefix cache was reset"
        case EventKind.NOTE | EventKind.SOURCE:
            return printable(event.reason)
