"""One of two sources that are compared: its state, its map, its curves."""

import time
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from kvtop.feed import Feed
from kvtop.sources.base import (
    Controlled,
    EnginesSeen,
    NewsArrived,
    RecordingChanged,
    Source,
    SourceBroke,
    StartedAnew,
    StatusChanged,
)
from kvtop.widgets.engine_totals import EngineTotals
from kvtop.widgets.playback_bar import PlaybackBar
from kvtop.widgets.pool_map import PoolMap
from kvtop.widgets.state_line import StateLine
from kvtop.widgets.trend_chart import TrendChart

CURVES_EVERY_S = 0.95


class SidePanel(Vertical):
    """Feeds its own model, and tells the screen when something is new.

    Args:
        source: What it shows.
    """

    @dataclass
    class Changed(Message):
        """There is something new to compare."""

        panel: "SidePanel"
        has_moved: bool
        """A recording stands somewhere else."""

    def __init__(self, source: Source, *, id: str) -> None:
        super().__init__(id=id)
        self.source = source
        self._feed = Feed(source)
        self.model = model = self._feed.model
        self.state_line = StateLine(model, is_compared=True)
        self.map = EngineTotals(model) if model.is_server else PoolMap(model)
        self.trend = TrendChart(model)
        self.playback = PlaybackBar(model)
        self._curves_drawn_s = 0.0

    def compose(self) -> ComposeResult:
        """From what it is down to where it stands."""
        yield self.state_line
        yield self.map
        yield self.trend
        if self.model.is_recording:
            yield self.playback

    def on_mount(self) -> None:
        """Begin to read."""
        self._feed.start(self.post_message)

    def on_unmount(self) -> None:
        """Let the thread end."""
        self._feed.stop()

    def on_source_broke(self, message: SourceBroke) -> None:
        """Fail as the source did: a bug is never hidden."""
        raise message.error

    def on_news_arrived(self, message: NewsArrived) -> None:
        """Draw what is new."""
        message.stop()
        taken = self._feed.take_news()
        if taken.has_picture or taken.has_server:
            self.show_all(with_curves=time.monotonic() - self._curves_drawn_s > CURVES_EVERY_S)
        if taken.has_playhead:
            self.playback.update_view()
        self.post_message(self.Changed(self, taken.has_playhead))

    def on_status_changed(self, message: StatusChanged) -> None:
        """Show what the source is doing."""
        self._take(message)

    def on_started_anew(self, message: StartedAnew) -> None:
        """Show the stream that follows."""
        self._take(message)
        self.show_all()

    def on_engines_seen(self, message: EnginesSeen) -> None:
        """Nothing: two were chosen."""
        self._take(message)

    def on_recording_changed(self, message: RecordingChanged) -> None:
        """Nothing is recorded here."""
        self._take(message)

    def on_controlled(self, message: Controlled) -> None:
        """How the engine stands."""
        self._take(message)

    def on_pool_map_cursor_moved(self, message: PoolMap.CursorMoved) -> None:
        """Put the cursor on another block."""
        message.stop()
        self.model.cursor = message.block_id
        if isinstance(self.map, PoolMap):
            self.map.show_cursor()

    def on_pool_map_owner_wanted(self, message: PoolMap.OwnerWanted) -> None:
        """Light the first owner's blocks."""
        message.stop()
        picture = self.model.picture
        owners = picture.block(message.block_id).owners if picture is not None else ()
        self.model.selected_id = owners[0][0].request_id if owners else None
        self.map.update_view()

    def show_all(self, *, with_curves: bool = True) -> None:
        """Draw all that is known."""
        self.state_line.refresh()
        self.map.update_view()
        if with_curves:
            self._curves_drawn_s = time.monotonic()
            self.trend.update_view()

    def _take(self, message: StatusChanged | StartedAnew | EnginesSeen | RecordingChanged | Controlled) -> None:
        message.stop()
        self._feed.take(message)
        self.state_line.refresh()
