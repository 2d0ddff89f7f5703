"""Where a recording stands: one line with a slider."""

from dataclasses import dataclass

from textual import events
from textual.message import Message
from textual.strip import Strip

from kvengine.telemetry.schema import ControlState
from kvtop import formats
from kvtop.view_model import ViewModel
from kvtop.widgets.foreign_text import printable
from kvtop.widgets.line_pane import LinePane, Part, arrange

MIN_SLIDER_COLUMNS = 10


class PlaybackBar(LinePane):
    """Position, speed, and what is odd about the recording's end. A click goes to a position."""

    @dataclass
    class PositionWanted(Message):
        """The slider was clicked."""

        fraction: float

    def __init__(self, model: ViewModel, *, id: str = "playback") -> None:
        super().__init__(model, id=id)
        self._slider = (0, 1)
        """First column and columns of the slider as last drawn."""

    def draw_line(self, y: int, width: int) -> Strip:  # noqa: ARG002
        """The one line."""
        playhead, palette = self.model.playhead, self.palette
        if self.model.control is not None:
            return self._draw_control(self.model.control, width)
        if playhead is None:
            return self.line(width).strip()
        state = "▶" if playhead.is_playing else "‖"
        left = (
            (f" {state} ", palette.good if playhead.is_playing else palette.warn),
            (f"×{playhead.speed:g} ", palette.text),
            (f" {playhead.position:,}", palette.strong),
            (f" of {playhead.num_positions - 1:,} ", palette.muted),
            (f" {playhead.time_s:.2f}s ", palette.text),
        )
        right = ((f" {formats.seconds(playhead.last_time_s)} ", palette.muted), (f"{playhead.note} ", palette.warn))
        taken = sum(len(text) for text, _ in (*left, *right))
        columns = max(width - taken, 0)
        self._slider = sum(len(text) for text, _ in left), max(columns, 1)
        knob = round(playhead.fraction * (columns - 1)) if columns >= MIN_SLIDER_COLUMNS else 0
        slider = (
            (("━" * knob, palette.used), ("●", palette.strong), ("─" * (columns - knob - 1), palette.faint))
            if columns >= MIN_SLIDER_COLUMNS
            else ()
        )
        return arrange([Part(0, left), Part(1, slider)], [Part(2, right)], width, self.base)

    def _draw_control(self, control: ControlState, width: int) -> Strip:
        """How an engine stands that can be steered, and what happens in the scene."""
        palette, model = self.palette, self.model
        state = " ‖ engine stopped " if control.is_paused else " ▶ "
        speed = f"{control.steps_per_s:g} steps/s " if control.steps_per_s else "full speed "
        pool = f" pool {control.usable_blocks:,} blocks "
        parts = [
            Part(0, ((state, palette.warn if control.is_paused else palette.good), (speed, palette.text))),
            Part(2, ((pool, palette.muted),)),
        ]
        wanted = model.facts.num_blocks - 1 - control.usable_blocks if model.facts is not None else 0
        if control.withheld_blocks < wanted:
            parts.append(Part(3, ((f"({wanted - control.withheld_blocks} still held) ", palette.warn),)))
        if control.scene:
            parts.append(Part(1, ((f" {printable(control.scene)} ", palette.strong),)))
        return arrange(parts, [], width, self.base)

    def on_click(self, event: events.Click) -> None:
        """Go where the slider was clicked."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        first, columns = self._slider
        fraction = (offset.x - first) / max(columns - 1, 1)
        if 0 <= fraction <= 1:
            self.post_message(self.PositionWanted(fraction))
