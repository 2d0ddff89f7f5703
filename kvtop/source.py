"""Where pictures come from: a running engine or a recording, each read on a worker thread that posts messages."""

import queue
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event as ThreadEvent
from typing import Protocol

from textual.message import Message

from kvengine.errors import TelemetryError
from kvengine.telemetry.history import Event, History, Sample
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.recording import Recording
from kvengine.telemetry.schema import End, Frame, Hello
from kvengine.telemetry.state import StepSnapshot, StreamState
from kvtop.playback import Playback, Playhead
from kvtop.view_model import Phase, SourceStatus

FRAME_S = 0.1
"""Time between two pictures: ten a second are as many as an eye needs."""
LOOK_FOR_MORE_S = 0.5
"""How often a recording without an end is looked at for new steps."""

Post = Callable[[Message], object]


@dataclass
class SnapshotArrived(Message):
    """A newer picture of the pool; an unseen older one may be dropped."""

    snapshot: StepSnapshot

    def can_replace(self, message: Message) -> bool:
        """Any older picture."""
        return isinstance(message, SnapshotArrived)


@dataclass
class HistoryArrived(Message):
    """What happened in the steps since the last such message."""

    samples: Sequence[Sample]
    events: Sequence[Event]


@dataclass
class StatusChanged(Message):
    """The source is doing something else now."""

    status: SourceStatus
    facts: Hello | None


@dataclass
class PlayheadMoved(Message):
    """A recording stands somewhere else, or plays differently."""

    playhead: Playhead

    def can_replace(self, message: Message) -> bool:
        """Any older position."""
        return isinstance(message, PlayheadMoved)


class Source(Protocol):
    """Something that can be watched."""

    @property
    def name(self) -> str:
        """What to call it on the screen."""
        ...

    @property
    def is_recording(self) -> bool:
        """Whether one can move through it."""
        ...

    def run(self, post: Post) -> None:
        """Read and post until `stop`; called on a thread of its own."""
        ...

    def stop(self) -> None:
        """Make `run` return soon; called on any thread."""
        ...


class LiveSource:
    """A running engine."""

    is_recording = False

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._stopped = ThreadEvent()
        self._state: StreamState | None = None
        self._history = History()
        self._samples: list[Sample] = []
        self._events: list[Event] = []
        self._is_changed = False
        self._posted: tuple[SourceStatus, Hello | None] | None = None

    @property
    def name(self) -> str:
        """The socket's file name."""
        return self._attachment.path.name

    def run(self, post: Post) -> None:
        """Fold what the engine sends, and post a picture at most every `FRAME_S`."""
        self._post_status(post, Phase.WAITING)
        due_s = 0.0
        try:
            while not self._stopped.is_set():
                frames = self._attachment.receive(FRAME_S)
                now_s = time.monotonic()
                for frame in frames or ():
                    self._fold(frame)
                if frames is None or now_s >= due_s:
                    self._post_picture(post)
                    due_s = now_s + FRAME_S
                if frames is None:
                    break
        except TelemetryError as error:
            self._post_status(post, Phase.GONE, error.message)
        else:
            self._post_end(post)
        finally:
            self._attachment.close()

    def stop(self) -> None:
        """Make `run` return within one frame."""
        self._stopped.set()

    def _fold(self, frame: Frame) -> None:
        if isinstance(frame, Hello):
            self._state = StreamState(frame)
            return
        if self._state is None:
            raise TelemetryError(f"{self.name}: the stream does not begin with a hello")
        if not self._state.apply(frame) or isinstance(frame, End):
            return
        sample, events = self._history.read(frame)
        self._samples.append(sample)
        self._events += events
        self._is_changed = True

    def _post_picture(self, post: Post) -> None:
        state = self._state
        if state is None or not self._is_changed:
            if state is not None and not state.is_started:
                self._post_status(post, Phase.WAITING)
            return
        if state.lost:
            self._post_status(post, Phase.LOST, state.lost)
            return
        self._is_changed = False
        # History first, so that the trends already reach the step that is shown.
        post(HistoryArrived(self._samples, self._events))
        post(SnapshotArrived(state.freeze()))
        self._samples, self._events = [], []
        self._post_status(post, Phase.LIVE)

    def _post_end(self, post: Post) -> None:
        if self._stopped.is_set():
            return
        end = self._state.end if self._state is not None else None
        if end is not None:
            self._post_status(post, Phase.ENDED, end.reason)
        else:
            self._post_status(post, Phase.GONE, "the engine went away without a goodbye")

    def _post_status(self, post: Post, phase: Phase, detail: str = "") -> None:
        status = SourceStatus(phase=phase, detail=detail)
        message = StatusChanged(status, self._state.facts if self._state is not None else None)
        if (message.status, message.facts) != self._posted:
            self._posted = message.status, message.facts
            post(message)


@dataclass(frozen=True, slots=True)
class Seek:
    """Go to a position."""

    position: int


@dataclass(frozen=True, slots=True)
class SeekStep:
    """Go to the last position at or before a step of the engine."""

    step: int


@dataclass(frozen=True, slots=True)
class StepBy:
    """Stop, and move by so many positions."""

    count: int


@dataclass(frozen=True, slots=True)
class TogglePlay:
    """Play or stop."""


@dataclass(frozen=True, slots=True)
class ChangeSpeed:
    """Play faster or slower."""

    faster: bool


Command = Seek | SeekStep | StepBy | TogglePlay | ChangeSpeed


class RecordingSource:
    """A recording, which may still be growing.

    A finished one plays from its beginning; one that is being written is followed at its end.
    """

    is_recording = True

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._stopped = ThreadEvent()
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._times_s: list[float] = []
        self._playback = Playback(self._times_s)
        self._num_events = 0
        self._is_growing = False
        self._note = ""
        self._playhead: Playhead | None = None

    @property
    def name(self) -> str:
        """The file's name."""
        return self._recording.path.name

    def run(self, post: Post) -> None:
        """Play, and do what was asked for."""
        post(StatusChanged(SourceStatus(phase=Phase.REPLAY), self._recording.facts))
        try:
            self._run(post)
        except TelemetryError as error:
            post(StatusChanged(SourceStatus(phase=Phase.GONE, detail=error.message), self._recording.facts))
        finally:
            self._recording.close()

    def stop(self) -> None:
        """Make `run` return within one frame."""
        self._stopped.set()

    def do(self, command: Command) -> None:
        """Ask for something; called on any thread."""
        self._commands.put(command)

    def _run(self, post: Post) -> None:
        self._look_for_more(post)
        if self._is_growing:
            self._playback.go_to(self._playback.last)
        self._playback.is_playing = True
        last_s = looked_s = time.monotonic()
        while not self._stopped.is_set():
            self._show(post)
            self._obey_within(FRAME_S)
            now_s = time.monotonic()
            self._playback.advance(now_s - last_s)
            last_s = now_s
            if self._is_growing and now_s - looked_s > LOOK_FOR_MORE_S:
                looked_s = now_s
                self._look_for_more(post)

    def _obey_within(self, seconds: float) -> None:
        """Wait for a command, and carry out all that there are."""
        try:
            command = self._commands.get(timeout=seconds)
            while True:
                self._obey(command)
                command = self._commands.get_nowait()
        except queue.Empty:
            return

    def _obey(self, command: Command) -> None:
        playback = self._playback
        match command:
            case Seek(position):
                playback.go_to(position)
            case SeekStep(step):
                steps = self._recording.samples
                playback.is_playing = False
                playback.go_to(bisect_right(steps, step, key=lambda sample: sample.step) - 1)
            case StepBy(count):
                playback.step(count)
            case TogglePlay():
                playback.toggle()
            case ChangeSpeed(faster):
                playback.change_speed(faster)

    def _look_for_more(self, post: Post) -> None:
        recording = self._recording
        try:
            recording.extend()
            self._is_growing = recording.is_being_written
            self._note = self._describe_end()
        except TelemetryError as error:
            self._is_growing = False
            self._note = error.message
        self._playback.is_growing = self._is_growing
        samples = recording.samples[len(self._times_s) :]
        events = recording.events[self._num_events :]
        if samples:
            self._times_s += [sample.time_s for sample in samples]
            self._num_events += len(events)
            post(HistoryArrived(samples, events))

    def _describe_end(self) -> str:
        if self._recording.end is None:
            return "being written" if self._is_growing else "not closed"
        reason = self._recording.end.reason
        return "" if reason == "done" else f"ended: {reason}"

    def _show(self, post: Post) -> None:
        playback = self._playback
        playhead = Playhead(
            position=playback.position,
            num_positions=len(self._times_s),
            time_s=self._times_s[playback.position],
            last_time_s=self._times_s[-1],
            speed=playback.speed,
            is_playing=playback.is_playing,
            is_growing=self._is_growing,
            note=self._note,
        )
        if playhead != self._playhead:
            if self._playhead is None or playhead.position != self._playhead.position:
                post(SnapshotArrived(self._recording.read(playback.position)))
            post(PlayheadMoved(playhead))
            self._playhead = playhead


def as_source(opened: Recording | Attachment) -> Source:
    """What watches something that was opened."""
    return RecordingSource(opened) if isinstance(opened, Recording) else LiveSource(opened)
