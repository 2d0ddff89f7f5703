"""What is on the screen, as plain values: folded from the source's messages, drawn by the widgets."""

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from kvengine.gpu_readings import NOT_ASKED, GpuPicture
from kvengine.telemetry.engine_list import RunningEngine
from kvengine.telemetry.engine_reading import EngineReading
from kvengine.telemetry.history import Event, EventKind, Sample
from kvengine.telemetry.rates import Window
from kvengine.telemetry.schema import BlockContent, ControlState, Hello, RequestState
from kvengine.telemetry.state import StepUpdate
from kvtop.map_order import MapColour, MapOrder
from kvtop.picture import Picture
from kvtop.playback import Playhead
from kvtop.pool import Pool
from kvtop.request_figures import SortKey, request_filter, sort_requests
from kvtop.server_view import ServerPicture
from kvtop.trends import TrendLog, TrendPoint

MAX_EVENTS = 20_000
"""A live view drops the older half of its events beyond this many."""
MIN_BURST, BURST_SHARE = 8, 0.01
"""An eviction burst is at least so many blocks in one step, and at least this share of the pool."""
STALE_AFTER_S = 2.0
"""A picture older than this is shown as old."""


class Phase(StrEnum):
    """What a source is doing."""

    CHOOSING = "choosing"
    """No source yet."""
    WAITING = "waiting"
    """Attached; the engine has not finished a step since."""
    LIVE = "live"
    LOST = "lost"
    """Frames are missing; the last consistent state stays until a snapshot comes."""
    ENDED = "ended"
    """The engine said goodbye."""
    GONE = "gone"
    """The engine is not there any more and did not say goodbye."""
    REPLAY = "replay"
    FAILING = "failing"
    """A server gives no answer with figures; the last one stays."""


class Knowledge(StrEnum):
    """What a source can know."""

    FULL = "FULL"
    """Blocks by id, owners, block tables: our engine, or a recording of it."""
    EVENTS = "EVENTS"
    """The cached blocks by hash, and totals where metrics are asked for too."""
    METRICS = "METRICS"
    """Totals only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """How it stands with the source, with the reason in words."""

    phase: Phase
    detail: str = ""


@dataclass(kw_only=True)
class ViewModel:
    """Everything that the widgets draw from. The app changes it; widgets only read it."""

    source_name: str
    is_recording: bool
    clock: Callable[[], float] = time.monotonic
    """Tells how old things are."""
    is_server: bool = False
    """A vLLM or SGLang server: there is a `server`, and never a picture."""
    server: ServerPicture | None = None
    control: ControlState | None = None
    """How an engine stands that can be steered."""
    engines: Sequence[RunningEngine] = ()
    """The engines that run on this machine, where the source looks for them."""
    recorded_into: Path | None = None
    """The file into which the view itself records."""
    gpus: GpuPicture = NOT_ASKED
    facts: Hello | None = None
    pool: Pool | None = None
    """The blocks that the picture is made of."""
    picture: Picture | None = None
    received_s: float | None = None
    """When the picture came, by the viewer's own monotonic clock."""
    status: SourceStatus = SourceStatus(phase=Phase.CHOOSING)
    is_paused: bool = False
    """A live view stands still; the engine does not."""
    playhead: Playhead | None = None
    """Where a recording stands."""
    selected_id: str | None = None
    """The request whose blocks are lit."""
    cursor: int | None = None
    """The block whose details are shown."""
    content: BlockContent | None = None
    """What an engine last said of what is in a block."""
    incident: Event | None = None
    """The event that was last looked for in a live log."""
    hovered: int | None = None
    """The block under the mouse."""
    map_order: MapOrder = MapOrder.ID
    map_colour: MapColour = MapColour.STATE
    blocks_per_cell: int | None = None
    """How close the map looks; None for the whole pool at once."""
    sort_key: SortKey = SortKey.ARRIVAL
    filter_text: str = ""
    """Only requests that pass it are listed; see `request_filter`."""
    trends: TrendLog = field(init=False)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.trends = TrendLog(keeps_all=self.is_recording)

    def start_anew(self) -> None:
        """Forget what was seen: another stream follows."""
        self.pool = self.picture = self.received_s = self.control = self.content = None
        self.selected_id = self.cursor = self.hovered = self.incident = None
        self.trends = TrendLog(keeps_all=self.is_recording)
        self.events = []

    @property
    def note(self) -> str:
        """What was last said about the step shown or one before; empty where nothing was."""
        shown = self.events[: self.num_events_shown()]
        return next((event.reason for event in reversed(shown) if event.kind is EventKind.NOTE), "")

    def take_update(self, update: StepUpdate, *, now_s: float) -> None:
        """Show a newer state."""
        changes = update.blocks
        if self.pool is not None and len(self.pool) == update.facts.num_blocks:
            self.pool.apply(changes)
        else:
            assert changes.block_ids is None, "the first update is of all blocks"
            self.pool = Pool(changes.columns)
        self.facts = update.facts
        self.picture = Picture(update, self.pool)
        self.received_s = now_s
        if self.cursor is not None and self.cursor >= update.facts.num_blocks:
            self.cursor = None

    def take_server(self, picture: ServerPicture) -> None:
        """Show what is known of a server."""
        self.server = picture
        self.received_s = picture.metrics.read_at_s if picture.metrics is not None else None

    def take_history(
        self, samples: Sequence[Sample], events: Sequence[Event], points: Sequence[TrendPoint] = ()
    ) -> None:
        """Add what happened since the last call."""
        self.trends.extend(samples)
        for point in points:
            self.trends.add(point)
        self.events += events
        if not self.is_recording and len(self.events) > MAX_EVENTS:
            del self.events[: len(self.events) // 2]

    def age_s(self, now_s: float) -> float | None:
        """How long ago the picture came; None without one and for a recording, which does not age."""
        return None if self.received_s is None or self.is_recording else now_s - self.received_s

    def accepts(self, tag: str) -> bool:
        """Whether the engine obeys a command."""
        return self.facts is not None and tag in self.facts.accepts and not self.is_recording

    @property
    def step(self) -> int | None:
        """The step shown, or the number of a server's last answer; None before the first."""
        if self.picture is not None:
            return self.picture.step
        metrics = self.server.metrics if self.server is not None else None
        return metrics.number if metrics is not None else None

    @property
    def total(self) -> EngineReading | None:
        """What a server says of all its engines together."""
        metrics = self.server.metrics if self.server is not None else None
        return metrics.total if metrics is not None else None

    @property
    def window(self) -> Window | None:
        """What a server counted in the last minute, all its engines together."""
        metrics = self.server.metrics if self.server is not None else None
        return metrics.counted if metrics is not None else None

    @property
    def knowledge(self) -> Knowledge:
        """What the source can know."""
        if not self.is_server:
            return Knowledge.FULL
        is_listening = self.server is not None and self.server.events.num_blocks is not None
        return Knowledge.EVENTS if is_listening else Knowledge.METRICS

    def is_stale(self, now_s: float) -> bool:
        """Whether the picture must not pass for the present."""
        if self.is_server:
            metrics = self.server.metrics if self.server is not None else None
            return metrics is not None and metrics.is_stale(now_s)
        age_s = self.age_s(now_s)
        if self.status.phase is Phase.LIVE and self._stands_still:
            return False
        return self.status.phase in (Phase.LOST, Phase.GONE, Phase.ENDED) or (
            age_s is not None and age_s > STALE_AFTER_S
        )

    @property
    def _stands_still(self) -> bool:
        """Whether an engine was stopped by hand, or has nothing to do: then its last state is the present."""
        if self.control is None or self.picture is None:
            return False
        waits = bool(self.picture.totals.running or self.picture.totals.waiting)
        return self.control.is_paused or not waits or 0 < self.control.steps_per_s <= 1

    @property
    def selected(self) -> RequestState | None:
        """The selected request, while it is unfinished."""
        if self.picture is None or self.selected_id is None:
            return None
        return self.picture.requests_by_id.get(self.selected_id)

    @property
    def looked_at(self) -> int | None:
        """The block under the mouse, or else under the cursor."""
        return self.hovered if self.hovered is not None else self.cursor

    def listed_requests(self) -> list[RequestState]:
        """Unfinished requests that pass the filter, in the chosen order, ties by arrival."""
        if self.picture is None:
            return []
        picture, requests = self.picture, list(self.picture.requests)
        if self.filter_text:
            passes = request_filter(self.filter_text)
            requests = [request for request in requests if passes(request, picture)]
        sort_requests(requests, self.sort_key, picture)
        return requests

    def num_events_shown(self) -> int:
        """How many of the events have happened by the step shown."""
        if self.is_server:
            return len(self.events)
        if self.picture is None:
            return 0
        return bisect_right(self.events, self.picture.step, key=lambda event: event.step)

    def next_incident(self, *, forward: bool) -> Event | None:
        """The nearest other preemption or eviction burst; None if there is none.

        A recording is looked through from the step shown; a live log from the incident found last, or from its end.
        """
        if self.is_recording:
            if self.picture is None:
                return None
            step = self.picture.step
            later = [event for event in self.events if event.step > step]
            earlier = [event for event in self.events if event.step < step]
        else:
            start = self.events.index(self.incident) if self.incident in self.events else len(self.events)
            later, earlier = self.events[start + 1 :], self.events[:start]
        return next(filter(self._is_incident, later if forward else reversed(earlier)), None)

    def _is_incident(self, event: Event) -> bool:
        if event.kind is EventKind.PREEMPT:
            return True
        num_blocks = self.facts.num_blocks if self.facts is not None else 0
        if self.total is not None:
            num_blocks = self.total.gauges.num_blocks or 0
        return event.kind is EventKind.EVICT and event.amount >= max(MIN_BURST, num_blocks * BURST_SHARE)
