"""The screen: panes around one `ViewModel`, fed by one source."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Footer

from kvengine.errors import KVError
from kvengine.telemetry.history import EventKind
from kvengine.telemetry.reader import Attachment, RunningEngine
from kvengine.telemetry.state import StepSnapshot
from kvtop.palette import DARK, DARK_VARIABLES, LIGHT
from kvtop.source import (
    ChangeSpeed,
    Command,
    HistoryArrived,
    LiveSource,
    PlayheadMoved,
    RecordingSource,
    Seek,
    SeekStep,
    SnapshotArrived,
    Source,
    StatusChanged,
    StepBy,
    TogglePlay,
)
from kvtop.view_model import ViewModel
from kvtop.widgets.block_detail import BlockDetail
from kvtop.widgets.block_table import BlockTable
from kvtop.widgets.engine_picker import EnginePicker
from kvtop.widgets.event_log import EventLog
from kvtop.widgets.help_screen import HelpScreen
from kvtop.widgets.line_pane import LinePane
from kvtop.widgets.playback_bar import PlaybackBar
from kvtop.widgets.pool_map import PoolMap
from kvtop.widgets.request_list import RequestList
from kvtop.widgets.shared_blocks import SharedBlocks
from kvtop.widgets.state_line import StateLine
from kvtop.widgets.trend_chart import TrendChart

TICK_S = 0.25
"""How often the age is drawn anew, and what was held back."""
TEXT_EVERY_S = 0.3
"""Figures and lists change no faster than this while pictures pour in: nobody reads faster, and it halves the work."""
MIN_LINES_OF_PANE = 3
"""A pane that is folded to fewer lines is enlarged when it is asked for."""
PANES = (
    ("1", "map", "Map"),
    ("2", "requests", "Requests"),
    ("3", "shared", "Shared"),
    ("4", "trend", "Trend"),
    ("5", "events", "Events"),
)
PANES_TOOLTIP = "Map, requests, shared blocks, trend, events; again: enlarge"
RECORDING_ONLY = {"step", "speed", "seek", "jump"}


class KvtopApp(App[None]):
    """The live view of one engine or recording.

    Args:
        source: What to watch; None to choose among `engines` first.
        engines: The running engines, when there are several.

    Attributes:
        failure: Why the chosen engine could not be watched.
    """

    CSS_PATH = "kvtop.tcss"
    TITLE = "kvtop"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-normal"), (160, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (20, "-short"), (32, "-tall"), (50, "-high")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "pause", "Pause", id="app.pause", tooltip="Stand still, or go on"),
        Binding("comma", "step(-1)", "Back", id="app.back", tooltip="A step back, forward", key_display=","),
        Binding("full_stop", "step(1)", "Step", id="app.forward", tooltip="A step back, forward", key_display="."),
        Binding("N", "jump(False)", "Previous", show=False, id="app.previous", tooltip="Previous, next preemption"),
        Binding("n", "jump(True)", "Next preemption", id="app.next", tooltip="Previous, next preemption"),
        Binding("left_square_bracket", "speed(False)", "Slower", show=False, id="app.slower", tooltip="Slower, faster"),
        Binding("right_square_bracket", "speed(True)", "Faster", show=False, id="app.faster", tooltip="Slower, faster"),
        Binding("home", "seek(0)", "Start", show=False, id="app.start", tooltip="Start, end of the recording"),
        Binding("end", "seek(1)", "End", show=False, id="app.end", tooltip="Start, end of the recording"),
        *[
            Binding(key, f"pane('{pane_id}')", title, show=False, id=f"app.{pane_id}", tooltip=PANES_TOOLTIP)
            for key, pane_id, title in PANES
        ],
        Binding("escape", "leave", "Leave", show=False, id="app.leave", tooltip="Out of an enlarged pane, or unselect"),
        Binding("question_mark", "help", "Help", id="app.help", tooltip="This page", key_display="?"),
        Binding("q,ctrl+c", "quit", "Quit", id="app.quit", tooltip="Leave kvtop; the engine goes on", key_display="q"),
    ]

    def __init__(self, source: Source | None, *, engines: Sequence[RunningEngine] = ()) -> None:
        super().__init__()
        self.failure: KVError | None = None
        self._source = source
        self._engines = engines
        self._unseen: StepSnapshot | None = None
        """The newest state that came while the view stood still."""
        self._unseen_history: list[HistoryArrived] = []
        self._is_stale = False
        self._is_text_due = False
        self._text_drawn_s = 0.0
        self.model = model = ViewModel(source_name="", is_recording=source is not None and source.is_recording)
        self._state_line = StateLine(model)
        self._map = PoolMap(model)
        self._block = BlockDetail(model)
        self._requests = RequestList(model)
        self._table = BlockTable(model)
        self._shared = SharedBlocks(model)
        self._trend = TrendChart(model)
        self._events = EventLog(model)
        self._playback = PlaybackBar(model)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """The colours of the pool, for themes that do not bring their own."""
        return DARK_VARIABLES

    def compose(self) -> ComposeResult:
        """The panes; kvtop.tcss says where they lie."""
        yield self._state_line
        with Horizontal(id="body"):
            with Vertical(id="left"):
                yield self._map
                yield self._block
            with Vertical(id="side"):
                yield self._requests
                yield self._table
                yield self._shared
        with Horizontal(id="bottom"):
            yield self._trend
            yield self._events
        yield self._playback
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Start watching, or ask what."""
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = DARK.name
        self.set_interval(TICK_S, self._tick)
        self._requests.focus()
        if self._source is not None:
            self._watch(self._source)
        else:
            self.push_screen(EnginePicker(self._engines), self._choose)

    def on_unmount(self) -> None:
        """Let the worker end."""
        if self._source is not None:
            self._source.stop()

    def _choose(self, path: Path | None) -> None:
        if path is None:
            self.exit()
            return
        try:
            self._watch(LiveSource(Attachment.open(path)))
        except KVError as error:
            self.failure = error
            self.exit()

    def _watch(self, source: Source) -> None:
        self._source = source
        self.model.source_name = source.name
        self.screen.set_class(source.is_recording, "-recording")
        self.run_worker(lambda: source.run(self.post_message), thread=True, name=source.name)

    # What the source says.

    def on_snapshot_arrived(self, message: SnapshotArrived) -> None:
        """Show a newer state, unless the view stands still."""
        if self.model.is_paused:
            self._unseen = message.snapshot
        else:
            self.model.take_snapshot(message.snapshot, now_s=time.monotonic())
            self._map.update_view()
            self._is_text_due = True
            if time.monotonic() - self._text_drawn_s >= TEXT_EVERY_S:
                self._update_panes()

    def on_history_arrived(self, message: HistoryArrived) -> None:
        """Add to trends and events; the snapshot that follows redraws them."""
        if self.model.is_paused:
            self._unseen_history.append(message)
        else:
            self.model.take_history(message.samples, message.events)

    def on_status_changed(self, message: StatusChanged) -> None:
        """Show what the source is doing."""
        self.model.status = message.status
        self.model.facts = message.facts or self.model.facts
        self._show_age()

    def on_playhead_moved(self, message: PlayheadMoved) -> None:
        """Show where the recording stands."""
        self.model.playhead = message.playhead
        self._playback.update_view()

    # What the panes ask for.

    def on_pool_map_cursor_moved(self, message: PoolMap.CursorMoved) -> None:
        """Look at another block."""
        self.model.cursor = message.block_id
        self._map.update_view()
        self._block.update_view()

    def on_pool_map_owner_wanted(self, message: PoolMap.OwnerWanted) -> None:
        """Select an owner of a block; the next one each time."""
        picture = self.model.picture
        owners = [request.request_id for request, _ in picture.block(message.block_id).owners] if picture else []
        if not owners:
            return
        selected = self.model.selected_id
        following = owners.index(selected) + 1 if selected in owners else 0
        self._select(owners[following % len(owners)])

    def on_request_list_selected(self, message: RequestList.Selected) -> None:
        """Light a request's blocks."""
        self._select(message.request_id)

    def on_request_list_sort_changed(self, message: RequestList.SortChanged) -> None:
        """Put the requests in another order."""
        self.model.sort_key = message.sort_key
        self._requests.update_view()

    def on_playback_bar_position_wanted(self, message: PlaybackBar.PositionWanted) -> None:
        """Go where the slider was clicked."""
        self.action_seek(message.fraction)

    def _select(self, request_id: str | None) -> None:
        self.model.selected_id = request_id
        self._requests.reveal_selected()
        for pane in (self._map, self._table, self._requests):
            pane.update_view()

    # Keys.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Moving through time is for recordings."""
        return self.model.is_recording if action in RECORDING_ONLY else True

    def action_help(self) -> None:
        """Show every key and sign."""
        self.push_screen(HelpScreen(self._keys()))

    def action_pause(self) -> None:
        """Play or stop a recording; let a live view stand still or catch up."""
        if self.model.is_recording:
            self._command(TogglePlay())
            return
        self.model.is_paused = not self.model.is_paused
        if not self.model.is_paused:
            for history in self._unseen_history:
                self.model.take_history(history.samples, history.events)
            self._unseen_history.clear()
            if self._unseen is not None:
                self.model.take_snapshot(self._unseen, now_s=time.monotonic())
                self._unseen = None
        self._update_panes()

    def action_step(self, count: int) -> None:
        """Stop, and move by so many steps."""
        self._command(StepBy(count))

    def action_speed(self, faster: bool) -> None:
        """Play faster or slower."""
        self._command(ChangeSpeed(faster))

    def action_seek(self, fraction: float) -> None:
        """Go to a part of the recording, from 0 to 1."""
        if self.model.playhead is not None:
            self._command(Seek(round(fraction * (self.model.playhead.num_positions - 1))))

    def action_jump(self, forward: bool) -> None:
        """Go to the nearest step with a preemption."""
        step = self.model.step_of_next((EventKind.PREEMPT,), forward=forward)
        if step is None:
            self.notify(f"no preemption {'after' if forward else 'before'} this step", timeout=2)
        else:
            self._command(SeekStep(step))

    def action_pane(self, pane_id: str) -> None:
        """Focus a pane; enlarge it if it has the focus already, or is folded to a line."""
        pane = self.query_one(f"#{pane_id}", LinePane)
        if pane_id in ("requests", "shared"):  # they take turns where there is no room for both
            self.screen.set_class(pane_id == "shared", "-tab-shared")
        if self.screen.maximized is not None:
            self.screen.minimize()
        elif pane.has_focus or pane.size.height < MIN_LINES_OF_PANE:
            self.screen.maximize(pane)
        pane.focus()
        self.call_after_refresh(pane.update_view)

    def action_leave(self) -> None:
        """Out of an enlarged pane; else unselect; else take the block cursor away."""
        if self.screen.maximized is not None:
            self.screen.minimize()
        elif self.model.selected_id is not None:
            self._select(None)
        else:
            self.model.cursor = None
            self._update_panes()

    def _command(self, command: Command) -> None:
        if isinstance(self._source, RecordingSource):
            self._source.do(command)

    def _keys(self) -> list[tuple[str, str]]:
        """Each group of keys with what they do: bindings with the same tooltip are one group."""
        groups: dict[str, list[str]] = {}
        for binding in (*self.BINDINGS, *PoolMap.BINDINGS, *RequestList.BINDINGS):
            if isinstance(binding, Binding) and self.check_action(binding.action.partition("(")[0], ()):
                groups.setdefault(binding.tooltip, []).append(self.get_key_display(binding))
        return [(" ".join(keys), tooltip) for tooltip, keys in groups.items()]

    # Drawing.

    def _tick(self) -> None:
        if self._is_text_due:
            self._update_panes()
        self._show_age()

    def _update_panes(self) -> None:
        self._is_text_due = False
        self._text_drawn_s = time.monotonic()
        for pane in self._panes():
            if pane.display:
                pane.update_view()
        self._show_age()

    def _panes(self) -> tuple[LinePane, ...]:
        """All that a new picture changes."""
        return self._map, self._block, self._requests, self._table, self._shared, self._trend, self._events

    def _show_age(self) -> None:
        self._state_line.refresh()
        is_stale = self.model.is_stale(time.monotonic())
        if is_stale != self._is_stale:
            self._is_stale = is_stale
            self._state_line.screen.set_class(is_stale, "-stale")
