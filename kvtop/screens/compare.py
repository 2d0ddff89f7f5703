"""Two sources side by side; two recordings move together."""

from enum import StrEnum
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import Screen

from kvtop.places import Place
from kvtop.screens.prompt import Prompt
from kvtop.sources.base import Source
from kvtop.sources.recording import ChangeSpeed, Command, RecordingSource, Seek, SeekStep, SeekTime, StepBy, TogglePlay
from kvtop.widgets.difference_table import DifferenceTable
from kvtop.widgets.key_line import KeyLine
from kvtop.widgets.side_panel import SidePanel

TICK_S = 0.25
RECORDINGS_ONLY = {"step", "speed", "seek", "go_to", "sync"}


class Sync(StrEnum):
    """How two recordings are kept together."""

    STEP = "step"
    TIME = "time"
    NONE = "none"


class CompareScreen(Screen[None]):
    """Two panels over a table of their figures.

    Args:
        left: What is compared with.
        right: What is compared.
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-normal"), (160, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (20, "-short"), (32, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "pause", "Pause", id="compare.pause", tooltip="Stand still, or go on"),
        Binding("comma", "step(-1)", "Back", id="compare.back", tooltip="A step back, forward", key_display=","),
        Binding("full_stop", "step(1)", "Step", id="compare.forward", tooltip="A step back, forward", key_display="."),
        Binding(
            "left_square_bracket", "speed(False)", "Slower", show=False, id="compare.slower", tooltip="Slower, faster"
        ),
        Binding(
            "right_square_bracket", "speed(True)", "Faster", show=False, id="compare.faster", tooltip="Slower, faster"
        ),
        Binding("home", "seek(0)", "Start", show=False, id="compare.start", tooltip="Start, end of the recordings"),
        Binding("end", "seek(1)", "End", show=False, id="compare.end", tooltip="Start, end of the recordings"),
        Binding("t", "go_to", "Go to", id="compare.go_to", tooltip="Go to a time or a step"),
        Binding("y", "sync", "Together by", id="compare.sync", tooltip="Keep together by step, by time, not at all"),
        Binding("tab", "app.focus_next", "Other", show=False, id="compare.next", tooltip="Go to the next pane"),
    ]

    def __init__(self, left: Source, right: Source) -> None:
        super().__init__()
        self.left, self.right = SidePanel(left, id="left-side"), SidePanel(right, id="right-side")
        self.differences = DifferenceTable(self.left.model, self.right.model)
        self.keys_shown = KeyLine(self.left.model)
        self._are_recordings = left.is_recording and right.is_recording
        self.sync = Sync.STEP if self._are_recordings else Sync.NONE

    def compose(self) -> ComposeResult:
        """The two, and below them what they differ in."""
        with Horizontal(id="sides"):
            yield self.left
            yield self.right
        yield self.differences
        yield self.keys_shown

    def on_mount(self) -> None:
        """Say how they are kept together."""
        self.set_interval(TICK_S, self._tick)
        self.left.map.focus()
        self._describe()

    def on_side_panel_changed(self, message: SidePanel.Changed) -> None:
        """Move the other recording along, and compare anew."""
        if message.has_moved and message.panel is self._leader:
            self._lead(message.panel)
        self.differences.update_view()

    def show_all(self) -> None:
        """Draw all that is known."""
        self.left.show_all()
        self.right.show_all()
        self.differences.update_view()

    # Keys.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Moving through time is for recordings."""
        return self._are_recordings if action in RECORDINGS_ONLY else True

    def action_pause(self) -> None:
        """Play or stop recordings; let live views stand still or catch up."""
        if self._are_recordings:
            self._command(TogglePlay())
            return
        is_paused = not self.left.model.is_paused
        for panel in (self.left, self.right):
            panel.model.is_paused = is_paused
            panel.state_line.refresh()

    def action_step(self, count: int) -> None:
        """Stop, and move by so many steps."""
        self._command(StepBy(count))

    def action_speed(self, faster: bool) -> None:
        """Play faster or slower."""
        self._command(ChangeSpeed(faster))

    def action_seek(self, fraction: float) -> None:
        """Go to a part of the recordings, from 0 to 1."""
        for panel in self._commanded:
            playhead = panel.model.playhead
            if playhead is not None:
                _tell(panel, Seek(round(fraction * (playhead.num_positions - 1))))

    def action_go_to(self) -> None:
        """Ask for a time or a step, and go there."""
        self.app.push_screen(Prompt("go to a time (12.5s, 1m30s) or a step (#120)"), self._go_to)

    def action_sync(self) -> None:
        """Keep them together in another way."""
        ways = list(Sync)
        self.sync = ways[(ways.index(self.sync) + 1) % len(ways)]
        if self._leader is not None:
            self._lead(self._leader)
        self._describe()

    def _go_to(self, text: str | None) -> None:
        if not text:
            return
        place = Place.try_parse(text)
        if place is None:
            self.notify(f"{text!r} is no time such as 12.5s and no step such as #120", severity="warning")
        else:
            self._command(SeekStep(int(place.value)) if place.is_step else SeekTime(place.value))

    # Moving together.

    @property
    def _leader(self) -> SidePanel | None:
        """The recording that reaches further: the other one stops at its end meanwhile. None if each goes alone."""
        if self.sync is Sync.NONE:
            return None

        def reach(panel: SidePanel) -> float:
            if self.sync is Sync.STEP:
                return panel.model.trends.last_step
            return panel.model.playhead.last_time_s if panel.model.playhead is not None else 0.0

        return max((self.left, self.right), key=reach)

    @property
    def _commanded(self) -> list[SidePanel]:
        leader = self._leader
        return [self.left, self.right] if leader is None else [leader]

    def _lead(self, leader: SidePanel) -> None:
        """Put the other one to the leader's step or time."""
        other = self.right if leader is self.left else self.left
        playhead = leader.model.playhead
        if playhead is None:
            return
        if self.sync is Sync.TIME:
            _tell(other, SeekTime(playhead.time_s))
        elif leader.model.picture is not None:
            _tell(other, SeekStep(leader.model.picture.step))

    def _command(self, command: Command) -> None:
        for panel in self._commanded:
            _tell(panel, command)

    def _tick(self) -> None:
        """Ages go on, and the other recording catches up with where the leader stands now."""
        if self._leader is not None:
            self._lead(self._leader)
        self.left.state_line.refresh()
        self.right.state_line.refresh()

    def _describe(self) -> None:
        if self._are_recordings:
            how = "each for itself" if self.sync is Sync.NONE else f"together by {self.sync}"
            self.differences.NUMBERED_TITLE = f"Figures  [$kv-muted]{how}[/]"
        self.differences.update_view()


def _tell(panel: SidePanel, command: Command) -> None:
    if isinstance(panel.source, RecordingSource):
        panel.source.do(command)
