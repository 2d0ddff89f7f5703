"""One watch: panes around one `ViewModel`, fed by one source."""

import time
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen

from kvengine.gpu_readings import ELSEWHERE, NOTHING_RUNS, GpuWatcher
from kvengine.telemetry.commands import AbortRequest, NextScene, PreemptRequest, TellBlock
from kvengine.telemetry.commands import Command as EngineCommand
from kvengine.telemetry.schema import BlockContent, ControlState, Reply
from kvtop.conductor import Conductor
from kvtop.feed import Feed
from kvtop.pacing import Pacer
from kvtop.places import Place
from kvtop.screens.prompt import Prompt
from kvtop.screens.watch_keys import BLOCKS_ONLY, FRAME_CHOICES_S, KEYS, RECORDING_ONLY, STEERING
from kvtop.sources.base import (
    Controlled,
    EnginesSeen,
    GpusRead,
    RecordingChanged,
    Source,
    SourceBroke,
    StartedAnew,
    StatusChanged,
)
from kvtop.sources.live import LiveSource
from kvtop.sources.recording import SeekStep
from kvtop.widgets.block_detail import BlockDetail
from kvtop.widgets.block_table import BlockTable
from kvtop.widgets.caption import Caption
from kvtop.widgets.engine_totals import EngineTotals
from kvtop.widgets.event_log import EventLog
from kvtop.widgets.foreign_text import printable
from kvtop.widgets.gpu_table import GpuTable
from kvtop.widgets.key_line import KeyLine
from kvtop.widgets.line_pane import LinePane
from kvtop.widgets.playback_bar import PlaybackBar
from kvtop.widgets.pool_map import PoolMap
from kvtop.widgets.prefix_list import PrefixList
from kvtop.widgets.request_list import RequestList
from kvtop.widgets.server_figures import ServerFigures
from kvtop.widgets.state_line import StateLine
from kvtop.widgets.trend_chart import TrendChart
from kvtop.widgets.waste_table import WasteTable

TICK_S = 0.25
"""How often the age is drawn anew, and what was held back."""
LISTS_EVERY_S = 0.7
"""Lists change no faster than this while pictures pour in: nobody reads faster, and they are half of the work."""
SUMMARIES_EVERY_S = 0.95
"""The same for what changes little from one second to the next: curves, prefixes, waste."""
MAP_SHARE = 0.3
"""Of the time, at most, to draw the map: millions of blocks whose colours change with each step come less often."""
MIN_LINES_OF_PANE = 3
"""A pane that is folded to fewer lines is enlarged when it is asked for."""


def recording_path(name: str, *, is_server: bool) -> Path:
    """A new file in the current folder, named after what is recorded and when."""
    plain = "".join(sign if sign.isalnum() or sign in "-._" else "-" for sign in name)
    return Path(f"kvtop-{plain}-{time.strftime('%Y%m%d-%H%M%S')}.{'jsonl' if is_server else 'kvrec'}")


class WatchScreen(Screen[None]):
    """The panes of one source.

    Args:
        source: What to watch.

    Attributes:
        model: What the panes draw from.
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-normal"), (160, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (20, "-short"), (32, "-tall"), (38, "-roomy"), (50, "-high")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [*KEYS]

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source
        self._feed = Feed(source)
        self._conductor = Conductor(source, self._feed.model)
        self._is_stale = False
        self._is_text_due = False
        self._is_map_due = False
        self._lists_drawn_s = self._summaries_drawn_s = 0.0
        self._drawn_s = 0.0
        self._map_pace = Pacer(MAP_SHARE)
        self.model = model = self._feed.model
        self.state_line = StateLine(model)
        self.map = PoolMap(model)
        self.engines = EngineTotals(model)
        self.figures = ServerFigures(model)
        self.block = BlockDetail(model)
        self.waste = WasteTable(model)
        self.requests = RequestList(model)
        self.table = BlockTable(model)
        self.prefixes = PrefixList(model)
        self.trend = TrendChart(model)
        self.events = EventLog(model)
        self.gpu = GpuTable(model)
        self.playback = PlaybackBar(model)
        self.keys_shown = KeyLine(model)
        self.caption = Caption(model)
        self._gpu_watcher = GpuWatcher(lambda picture: self.post_message(GpusRead(picture)))

    def compose(self) -> ComposeResult:
        """The panes; kvtop.tcss says where they lie."""
        yield self.state_line
        yield self.caption
        with Horizontal(id="body"):
            with Vertical(id="left"):
                yield self.engines if self.model.is_server else self.map
                with Horizontal(id="details"):
                    yield self.block
                    yield self.waste
            with Vertical(id="side"):
                yield self.figures if self.model.is_server else self.requests
                yield self.table
                yield self.prefixes
                yield self.gpu
        with Horizontal(id="bottom"):
            yield self.trend
            yield self.events
        yield self.playback
        yield self.keys_shown

    def on_mount(self) -> None:
        """Start watching."""
        self.set_class(self.source.is_recording, "-recording")
        self.set_class(self.source.is_server, "-server")
        self.set_interval(TICK_S, self._tick)
        (self.figures if self.model.is_server else self.requests).focus()
        if self.source.is_local:
            self._gpu_watcher.start()
        else:
            self.model.gpus = NOTHING_RUNS if self.model.is_recording else ELSEWHERE
        self._feed.start(self.post_message)

    def on_unmount(self) -> None:
        """Let the threads end."""
        self._feed.stop()
        self._gpu_watcher.stop()

    def on_source_broke(self, message: SourceBroke) -> None:
        """Fail as the source did: a bug is never hidden."""
        raise message.error

    @property
    def panes(self) -> tuple[LinePane, ...]:
        """All that a new picture changes, but for the two lines of figures."""
        is_server = self.model.is_server
        return (
            self.engines if is_server else self.map,
            self.block,
            self.waste,
            self.figures if is_server else self.requests,
            self.table,
            self.prefixes,
            self.trend,
            self.events,
            self.gpu,
        )

    # What the source says.

    def on_news_arrived(self) -> None:
        """Take what there is, and draw it."""
        taken = self._feed.take_news()
        if taken.has_server:
            self._show_server()
        if taken.has_playhead:
            self.playback.update_view()
        if taken.has_picture:
            self._show_picture()

    def on_status_changed(self, message: StatusChanged) -> None:
        """Show what the source is doing."""
        self._feed.take(message)
        if message.facts is not None:
            self._gpu_watcher.pid = message.facts.pid
        if self.model.picture is None:
            self.map.update_view()
        self._show_age()

    def on_started_anew(self, message: StartedAnew) -> None:
        """Show the stream that follows from its beginning."""
        self._feed.take(message)
        self.set_class(False, "-steered")
        self._update_panes()

    def on_engines_seen(self, message: EnginesSeen) -> None:
        """Say how many engines there are to choose from."""
        self._feed.take(message)
        self._show_age()

    def on_recording_changed(self, message: RecordingChanged) -> None:
        """Say what is recorded, and where."""
        self._feed.take(message)
        self.notify(printable(message.note), severity="warning" if message.is_failure else "information", timeout=4)
        self._show_age()

    def on_controlled(self, message: Controlled) -> None:
        """Show how the engine stands; say why it did not do what was asked for."""
        self._feed.take(message)
        match message.frame:
            case ControlState():
                self.playback.update_view()
                self.set_class(True, "-steered")
            case BlockContent():
                self.block.update_view()
            case Reply(is_done=False, text=text):
                self.notify(printable(text), severity="warning", timeout=5)

    def on_gpus_read(self, message: GpusRead) -> None:
        """Show what the GPUs say; the pane has a place of its own only where there are any."""
        self.model.gpus = message.picture
        self.set_class(bool(message.picture.gpus), "-gpus")
        self.gpu.update_view()

    def _show_server(self) -> None:
        """Draw all panes: answers are rare."""
        self._drawn_s = time.monotonic()
        self._update_panes()

    # What the panes ask for.

    def on_pool_map_cursor_moved(self, message: PoolMap.CursorMoved) -> None:
        """Look at another block."""
        self._look_at(message.block_id)

    def on_pool_map_hovered(self, message: PoolMap.Hovered) -> None:
        """Tell of the block under the mouse."""
        if message.block_id != self.model.hovered:
            self.model.hovered = message.block_id
            self._show_block()

    def on_pool_map_owner_wanted(self, message: PoolMap.OwnerWanted) -> None:
        """Select an owner of a block; the next one each time."""
        picture = self.model.picture
        owners = [request.request_id for request, _, _ in picture.block(message.block_id).owners] if picture else []
        if not owners:
            return
        selected = self.model.selected_id
        following = owners.index(selected) + 1 if selected in owners else 0
        self._select(owners[following % len(owners)])

    def on_prefix_list_picked(self, message: PrefixList.Picked) -> None:
        """Look at the first block of a prefix."""
        self._look_at(message.block_id)

    def on_request_list_selected(self, message: RequestList.Selected) -> None:
        """Light a request's blocks."""
        self._select(message.request_id)

    def on_request_list_sort_changed(self, message: RequestList.SortChanged) -> None:
        """Put the requests in another order."""
        self.model.sort_key = message.sort_key
        self.requests.update_view()

    def on_request_list_filter_wanted(self) -> None:
        """Ask which requests to list; the list follows what is typed."""
        prompt = Prompt(
            "filter requests: part of an id or status, or such as blocks>10 wait>1.5 hit<50",
            self.model.filter_text,
            on_change=self._filter,
        )
        self.app.push_screen(prompt, self._filter)

    def on_playback_bar_position_wanted(self, message: PlaybackBar.PositionWanted) -> None:
        """Go where the slider was clicked."""
        self.action_seek(message.fraction)

    def _look_at(self, block_id: int | None) -> None:
        self.model.cursor = block_id
        self.map.show_cursor()
        self._show_block()

    def _show_block(self) -> None:
        self.set_class(self.model.looked_at is not None, "-looking")
        self._ask_for_content()
        self.block.update_view()

    def _ask_for_content(self) -> None:
        """Ask the engine what is in the block that is looked at, where it says such things."""
        block_id = self.model.looked_at
        if block_id is not None and self.block.is_seen and self.model.accepts("block"):
            self._conductor.steer(TellBlock(block_id))

    def _filter(self, text: str | None) -> None:
        self.model.filter_text = (text or "").strip()
        self.requests.update_view()

    def _select(self, request_id: str | None) -> None:
        self.model.selected_id = request_id
        self.requests.reveal_selected()
        for pane in (self.map, self.table, self.requests):
            pane.update_view()

    # Keys.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Moving through time is for recordings, finding blocks for what has any, steering for what obeys."""
        if action in STEERING:
            return self.model.accepts(STEERING[action])
        if action in ("step", "speed"):
            return self.model.is_recording or (self.model.accepts("steps") and parameters != (-1,))
        if action in RECORDING_ONLY:
            return self.model.is_recording
        if action == "record":
            return not self.model.is_recording
        return not self.model.is_server if action in BLOCKS_ONLY else True

    def action_pause(self) -> None:
        """Play or stop a recording, stop an engine that obeys; let any other view stand still or catch up."""
        if self._conductor.pause():
            return
        self.model.is_paused = not self.model.is_paused
        if isinstance(self.source, LiveSource):
            self.source.hold(self.model.is_paused)
        if not self.model.is_paused:
            self.on_news_arrived()
        self._update_panes()

    def action_step(self, count: int) -> None:
        """Stop, and move by so many steps; let an engine take one."""
        self._conductor.step(count)

    def action_speed(self, faster: bool) -> None:
        """Play, or let an engine run, faster or slower."""
        self._conductor.change_speed(faster)

    def action_resize(self, count: int) -> None:
        """Let an engine hand out more or fewer blocks."""
        self._conductor.resize(count)

    def action_abort(self) -> None:
        """End the selected request."""
        self._steer_selected(AbortRequest)

    def action_preempt(self) -> None:
        """Let the selected request give up its blocks, and wait again."""
        self._steer_selected(PreemptRequest)

    def _steer_selected(self, command: type[AbortRequest | PreemptRequest]) -> None:
        if self.model.selected_id is None:
            self.notify("select a request first", timeout=3)
        else:
            self._steer(command(self.model.selected_id))

    def action_scene(self) -> None:
        """Go on to the next scene."""
        self._steer(NextScene())

    def _steer(self, command: EngineCommand) -> None:
        if not self._conductor.steer(command):
            self.notify("the engine is not there any more", severity="warning")

    def action_seek(self, fraction: float) -> None:
        """Go to a part of the recording, from 0 to 1."""
        self._conductor.seek(fraction)

    def action_jump(self, forward: bool) -> None:
        """Go to the nearest step with a preemption or an eviction burst; in a live view, to its line in the log."""
        event = self.model.next_incident(forward=forward)
        if event is None:
            self.notify(f"no preemption or eviction burst {'after' if forward else 'before'} this step", timeout=2)
        elif self.model.is_recording:
            self._conductor.play(SeekStep(event.step))
        else:
            self.model.incident = event
            self.events.reveal_incident()

    def action_go_to(self) -> None:
        """Ask for a time or a step, and go there."""
        self.app.push_screen(Prompt("go to a time (12.5s, 1m30s) or a step (#120)"), self._go_to)

    def action_record(self) -> None:
        """Record into a new file in the current folder, or stop."""
        if self.model.recorded_into is not None:
            self.source.record(None)
            return
        name = self.model.facts.model if self.model.facts is not None else "server"
        self.source.record(recording_path(name, is_server=self.model.is_server))

    def action_find(self) -> None:
        """Ask for a block or a request, and look at it."""
        self.app.push_screen(Prompt("find a block (its id) or a request (part of its id)"), self._find)

    def action_rate(self, oftener: bool) -> None:
        """Draw more or fewer pictures a second."""
        index = FRAME_CHOICES_S.index(self.source.frame_s) if self.source.frame_s in FRAME_CHOICES_S else 0
        index = min(max(index + (-1 if oftener else 1), 0), len(FRAME_CHOICES_S) - 1)
        self.source.frame_s = FRAME_CHOICES_S[index]
        self.notify(f"at most {1 / FRAME_CHOICES_S[index]:g} pictures a second", timeout=2)

    def action_pane(self, pane_id: str) -> None:
        """Focus a pane; enlarge it if it has the focus already, or is folded."""
        if self.model.is_server:
            pane_id = {"map": "engines", "requests": "figures"}.get(pane_id, pane_id)
        pane = self.query_one(f"#{pane_id}", LinePane)
        if pane_id in ("requests", "figures", "prefixes"):  # they take turns where there is no room for both
            self.set_class(pane_id == "prefixes", "-tab-prefixes")
        if self.maximized is not None:
            self.minimize()
        elif self.focused is pane or pane.size.height < MIN_LINES_OF_PANE:
            self.maximize(pane)
        self.set_focus(pane)  # at once: the next key may be there already
        self.call_after_refresh(pane.update_view)

    def action_leave(self) -> None:
        """Out of an enlarged pane; else list all requests; else unselect; else take the block cursor away."""
        if self.maximized is not None:
            self.minimize()
        elif self.model.filter_text:
            self._filter("")
        elif self.model.selected_id is not None:
            self._select(None)
        else:
            self._look_at(None)

    def _go_to(self, text: str | None) -> None:
        place = Place.try_parse(text) if text else None
        if place is not None:
            self._conductor.go_to(place)
        elif text:
            self.notify(f"{text!r} is no time such as 12.5s and no step such as #120", severity="warning")

    def _find(self, text: str | None) -> None:
        picture, wanted = self.model.picture, (text or "").strip()
        if picture is None or not wanted:
            return
        if wanted.isdecimal() and int(wanted) < len(picture.pool):
            self._look_at(int(wanted))
            return
        found = [request for request in picture.requests if wanted.lower() in request.request_id.lower()]
        if found:
            self._select(found[0].request_id)
        else:
            self.notify(f"no block and no unfinished request {wanted!r}", severity="warning")

    # Drawing.

    def _show_picture(self) -> None:
        """Draw the map and the figures; the lists less often."""
        self._drawn_s = time.monotonic()
        if self._map_pace.is_due:
            with self._map_pace.work():
                self.map.update_view()
            self._is_map_due = False
        else:
            self._is_map_due = True
        self.set_class(bool(self.model.note), "-captioned")
        self.caption.update_view()
        self._is_text_due = True
        if self._drawn_s - self._lists_drawn_s >= LISTS_EVERY_S:
            self._update_lists(with_summaries=self._drawn_s - self._summaries_drawn_s >= SUMMARIES_EVERY_S)
        self._show_age()

    def _tick(self) -> None:
        if time.monotonic() - self._drawn_s < max(TICK_S, 1.5 * self.source.frame_s):
            return  # pictures pour in, and bring all that is due
        if self._is_text_due or self._is_map_due:
            self._update_panes()
        self._show_age()

    def show_all(self) -> None:
        """Draw all that is known, whether or not it is time for it."""
        self._update_panes()

    def _update_panes(self) -> None:
        """Draw all that is due."""
        self._is_map_due = False
        if not self.model.is_server:
            self.map.update_view()
        self._update_lists()
        self._show_age()

    def _update_lists(self, *, with_summaries: bool = True) -> None:
        now_s = time.monotonic()
        self._lists_drawn_s = now_s
        if with_summaries:
            self._summaries_drawn_s = now_s
            self._is_text_due = False
        self._ask_for_content()
        summaries = (self.trend, self.prefixes, self.waste, self.gpu)
        for pane in self.panes:
            if pane.display and pane is not self.map and (with_summaries or pane not in summaries):
                pane.update_view()

    def _show_age(self) -> None:
        self.state_line.refresh()
        is_stale = self.model.is_stale(self.model.clock())
        if is_stale != self._is_stale:
            self._is_stale = is_stale
            self.set_class(is_stale, "-stale")
