"""What all sources have in common: a thread that reads, and a hand-over to the view's thread.

A source posts that it has news and what it is doing. The view takes the news when it gets to them: history whole, and
of the pictures only the newest, as what changed since the one taken before. So a view that is slow, or stands still,
costs the source nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Protocol

from textual.message import Message

from kvengine.gpu_readings import GpuPicture
from kvengine.telemetry.engine_list import RunningEngine
from kvengine.telemetry.history import Event, Sample
from kvengine.telemetry.schema import BlockContent, ControlState, Hello, Reply
from kvengine.telemetry.state import StepUpdate, StreamState
from kvtop.playback import Playhead
from kvtop.server_view import ServerPicture
from kvtop.trends import TrendPoint
from kvtop.view_model import SourceStatus

FRAME_S = 0.1
"""Time between two pictures unless another was chosen: ten a second are as many as an eye needs."""

Post = Callable[[Message], object]


@dataclass
class NewsArrived(Message):
    """There is something to take; it stands for all news before it."""

    def can_replace(self, message: Message) -> bool:
        """Any older one."""
        return isinstance(message, NewsArrived)


@dataclass
class StatusChanged(Message):
    """The source is doing something else now."""

    status: SourceStatus
    facts: Hello | None


@dataclass
class StartedAnew(Message):
    """Another stream follows; nothing of the one before belongs to it."""

    news: "Handover"
    """Where its news will be."""


@dataclass
class EnginesSeen(Message):
    """Which engines run on this machine has changed."""

    engines: Sequence[RunningEngine]


@dataclass
class RecordingChanged(Message):
    """The view's own recording has begun, ended or failed."""

    path: Path | None
    """The file that is written now."""
    note: str
    """What happened, in words."""
    is_failure: bool = False
    """It ended, or did not begin, although it was wanted."""


@dataclass
class Controlled(Message):
    """An engine says how it stands, what came of a command, or what is in a block."""

    frame: ControlState | Reply | BlockContent


@dataclass
class GpusRead(Message):
    """The GPUs of this machine were asked."""

    picture: GpuPicture


@dataclass
class SourceBroke(Message):
    """The source's thread died of a bug."""

    error: Exception


class Source(Protocol):
    """Something that can be watched.

    Attributes:
        frame_s: Least time between two pictures.
    """

    frame_s: float

    @property
    def name(self) -> str:
        """What to call it on the screen."""
        ...

    @property
    def is_recording(self) -> bool:
        """Whether one can move through it."""
        ...

    @property
    def is_server(self) -> bool:
        """Whether it is a server of another engine, which tells no blocks."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether what is watched runs on this machine now, so that its GPUs are those of this machine."""
        ...

    @property
    def news(self) -> "Handover":
        """What there is to take."""
        ...

    def run(self, post: Post) -> None:
        """Read and post until `stop`; called on a thread of its own."""
        ...

    def stop(self) -> None:
        """Make `run` return soon; called on any thread."""
        ...

    def record(self, path: Path | None) -> None:
        """Write what is shown into a file from now on, or stop; called on any thread. Recordings do nothing."""
        ...


class Handover:
    """What a source's thread has ready for the view's thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._samples: list[Sample] = []
        self._events: list[Event] = []
        self._points: list[TrendPoint] = []
        self._server: ServerPicture | None = None
        self._update: StepUpdate | None = None
        self._last: StreamState | None = None
        self._playhead: Playhead | None = None

    # The source's side.

    def add_history(self, samples: Sequence[Sample], events: Sequence[Event]) -> None:
        """Put in what happened next."""
        with self._lock:
            self._samples += samples
            self._events += events

    def add_points(self, points: Sequence[TrendPoint]) -> None:
        """Put in the next points of the trend, where they do not follow from samples."""
        with self._lock:
            self._points += points

    def put_server(self, picture: ServerPicture) -> None:
        """Put in what is known of a server."""
        self._server = picture

    @property
    def wants_update(self) -> bool:
        """Whether the last picture has been taken, so that the next may be put in."""
        return self._update is None

    def put_update(self, update: StepUpdate) -> None:
        """Put in the next picture, once the last has been taken."""
        assert self._update is None, "changes of a picture that was not taken would be lost"
        self._update = update

    def put_last(self, state: StreamState) -> None:
        """Leave the last state to the view: the source will not change it any more."""
        self._last = state

    def put_playhead(self, playhead: Playhead) -> None:
        """Put in where a recording stands."""
        self._playhead = playhead

    # The view's side.

    def take_history(self) -> tuple[list[Sample], list[Event]]:
        """What happened since the last call."""
        with self._lock:
            taken = self._samples, self._events
            self._samples, self._events = [], []
        return taken

    def take_points(self) -> list[TrendPoint]:
        """Points of the trend since the last call."""
        with self._lock:
            taken, self._points = self._points, []
        return taken

    def take_server(self) -> ServerPicture | None:
        """What is known of a server, if that is news."""
        picture, self._server = self._server, None
        return picture

    def take_update(self) -> StepUpdate | None:
        """The next picture, if there is one; there may be one more behind it."""
        update, self._update = self._update, None
        if update is None and self._last is not None:
            last, self._last = self._last, None
            return last.take_update()
        return update

    def take_playhead(self) -> Playhead | None:
        """Where a recording stands, if that is news."""
        playhead, self._playhead = self._playhead, None
        return playhead
