"""What is on the screen, as plain values: folded from the source's messages, drawn by the widgets."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kvengine.telemetry.history import Event, EventKind, Sample
from kvengine.telemetry.schema import Hello, RequestState
from kvengine.telemetry.state import StepSnapshot
from kvtop.picture import Picture
from kvtop.playback import Playhead
from kvtop.trends import TrendLog

MAX_EVENTS = 20_000
"""A live view drops the older half of its events beyond this many."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """How it stands with the source, with the reason in words."""

    phase: Phase
    detail: str = ""


class SortKey(StrEnum):
    """What the requests are sorted by."""

    ARRIVAL = "arrival"
    BLOCKS = "blocks"
    TOKENS = "tokens"
    PREEMPTIONS = "preemptions"
    STATUS = "status"


@dataclass(kw_only=True)
class ViewModel:
    """Everything that the widgets draw from. The app changes it; widgets only read it."""

    source_name: str
    is_recording: bool
    facts: Hello | None = None
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
    sort_key: SortKey = SortKey.ARRIVAL
    trends: TrendLog = field(init=False)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.trends = TrendLog(keeps_all=self.is_recording)

    def take_snapshot(self, snapshot: StepSnapshot, *, now_s: float) -> None:
        """Show a newer state."""
        self.facts = snapshot.facts
        self.picture = Picture(snapshot)
        self.received_s = now_s
        if self.cursor is not None and self.cursor >= snapshot.facts.num_blocks:
            self.cursor = None

    def take_history(self, samples: Sequence[Sample], events: Sequence[Event]) -> None:
        """Add what happened since the last call."""
        self.trends.extend(samples)
        self.events += events
        if not self.is_recording and len(self.events) > MAX_EVENTS:
            del self.events[: len(self.events) // 2]

    def age_s(self, now_s: float) -> float | None:
        """How long ago the picture came; None without one and for a recording, which does not age."""
        return None if self.received_s is None or self.is_recording else now_s - self.received_s

    def is_stale(self, now_s: float) -> bool:
        """Whether the picture must not pass for the present."""
        age_s = self.age_s(now_s)
        return self.status.phase in (Phase.LOST, Phase.GONE, Phase.ENDED) or (
            age_s is not None and age_s > STALE_AFTER_S
        )

    @property
    def selected(self) -> RequestState | None:
        """The selected request, while it is unfinished."""
        if self.picture is None or self.selected_id is None:
            return None
        return self.picture.requests_by_id.get(self.selected_id)

    def sorted_requests(self) -> list[RequestState]:
        """Unfinished requests in the chosen order, ties by arrival."""
        if self.picture is None:
            return []
        requests = list(self.picture.snapshot.requests)
        if self.sort_key is SortKey.BLOCKS:
            requests.sort(key=lambda request: -len(request.block_table))
        elif self.sort_key is SortKey.TOKENS:
            requests.sort(key=lambda request: -(request.num_prompt_tokens + request.num_output_tokens))
        elif self.sort_key is SortKey.PREEMPTIONS:
            requests.sort(key=lambda request: -request.num_preemptions)
        elif self.sort_key is SortKey.STATUS:
            requests.sort(key=lambda request: _STATUS_ORDER[request.status])
        return requests

    def num_events_shown(self) -> int:
        """How many of the events have happened by the step shown."""
        if self.picture is None:
            return 0
        return bisect_right(self.events, self.picture.snapshot.step, key=lambda event: event.step)

    def step_of_next(self, kinds: Sequence[EventKind], *, forward: bool) -> int | None:
        """The nearest other step in which one of these happened; None if there is none."""
        if self.picture is None:
            return None
        here = self.picture.snapshot.step
        steps = [event.step for event in self.events if event.kind in kinds]
        later = [step for step in steps if step > here]
        earlier = [step for step in steps if step < here]
        if forward:
            return min(later, default=None)
        return max(earlier, default=None)


_STATUS_ORDER = {1: 0, 2: 1, 0: 2}
"""Running, then preempted, then waiting."""
