"""A recording, played: a thread that moves through it, and the commands that it obeys."""

import queue
import time
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from threading import Event as ThreadEvent

from kvengine.errors import TelemetryError
from kvengine.telemetry.recording import Recording
from kvengine.telemetry.state import StreamState
from kvtop.playback import Playback, Playhead
from kvtop.sources.base import FRAME_S, Handover, NewsArrived, Post, StatusChanged
from kvtop.view_model import Phase, SourceStatus

LOOK_FOR_MORE_S = 0.5
"""How often a recording without an end is looked at for new steps."""


@dataclass(frozen=True, slots=True)
class Seek:
    """Go to a position."""

    position: int


@dataclass(frozen=True, slots=True)
class SeekStep:
    """Go to the last position at or before a step of the engine."""

    step: int


@dataclass(frozen=True, slots=True)
class SeekTime:
    """Go to the last position at or before a stream time."""

    time_s: float


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


Command = Seek | SeekStep | SeekTime | StepBy | TogglePlay | ChangeSpeed


class RecordingSource:
    """A recording, which may still be growing.

    A finished one plays from its beginning; one that is being written is followed at its end.

    Args:
        recording: The file.
        start: Position at which to stand still at first; None to play.
    """

    is_recording = True
    is_server = False
    is_local = False

    def __init__(self, recording: Recording, *, start: int | None = None) -> None:
        self._start = start
        self.frame_s = FRAME_S
        self.news = Handover()
        self._recording = recording
        self._stopped = ThreadEvent()
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._times_s: list[float] = []
        self._playback = Playback(self._times_s)
        self._num_events = 0
        self._is_growing = False
        self._note = ""
        self._playhead: Playhead | None = None
        self._state: StreamState | None = None
        """The state to be shown, until it has been put in."""

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

    def record(self, path: Path | None) -> None:
        """Nothing: it is recorded already."""

    def do(self, command: Command) -> None:
        """Ask for something; called on any thread."""
        self._commands.put(command)

    def _run(self, post: Post) -> None:
        self._look_for_more(post)
        if self._is_growing:
            self._playback.go_to(self._playback.last)
        self._playback.is_playing = self._start is None
        if self._start is not None:
            self._playback.go_to(self._start)
        last_s = looked_s = time.monotonic()
        while not self._stopped.is_set():
            self._show(post)
            self._obey_within(self.frame_s)
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
            case SeekTime(time_s):
                playback.is_playing = False
                playback.go_to(bisect_right(self._times_s, time_s) - 1)
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
            self.news.add_history(samples, events)
            post(NewsArrived())

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
                self._state = self._recording.go_to(playback.position)
            self._playhead = playhead
            self.news.put_playhead(playhead)
        elif self._state is None:
            return
        if self._state is not None and self.news.wants_update:
            self.news.put_update(self._state.take_update())
            self._state = None
        post(NewsArrived())
