"""A running engine of ours, watched on its socket, and the engines that follow on it."""

import time
from collections.abc import Sequence
from pathlib import Path
from threading import Event as ThreadEvent

from kvengine.errors import TelemetryError
from kvengine.telemetry.commands import Command
from kvengine.telemetry.engine_list import RunningEngine
from kvengine.telemetry.history import Event, EventKind, History
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.schema import BlockContent, ControlState, Delta, End, Hello, Reply, Snapshot
from kvengine.telemetry.state import StreamState
from kvtop.following import Following
from kvtop.sources.base import (
    FRAME_S,
    Controlled,
    EnginesSeen,
    Handover,
    NewsArrived,
    Post,
    RecordingChanged,
    StartedAnew,
    StatusChanged,
)
from kvtop.sources.recorder import STOPPED, ViewRecorder
from kvtop.view_model import Phase, SourceStatus

LOOK_S = 0.3
"""How often the next engine is looked for while there is none."""
LOOK_AROUND_S = 2.0
"""How often it is looked which other engines run."""
NONE_RUNS = "no engine runs on this machine; kvtop waits for one"


class LiveSource:
    """Folds what an engine sends, and offers a picture at most every `frame_s`.

    Args:
        attachment: The engine; None to wait for the first.
        following: Finds what to watch after it; None to stay where it ended.
    """

    is_recording = False
    is_server = False
    is_local = True

    def __init__(self, attachment: Attachment | None, *, following: Following | None = None) -> None:
        assert attachment is not None or following is not None, "there is something to watch, or to wait for"
        self.frame_s = FRAME_S
        self.news = Handover()
        self.recorder = ViewRecorder()
        self._attachment = attachment
        self._following = following
        self._stopped = ThreadEvent()
        self._is_held = False
        self._state: StreamState | None = None
        self._history = History()
        self._is_changed = False
        self._posted: tuple[SourceStatus, Hello | None] | None = None
        self._engines: Sequence[RunningEngine] = ()
        self._looked_s = 0.0
        self._noted = ""

    @property
    def name(self) -> str:
        """The socket's file name."""
        return self._attachment.path.name if self._attachment is not None else "no engine yet"

    def run(self, post: Post) -> None:
        """Read one engine after the other, until `stop` or until none can follow."""
        try:
            while not self._stopped.is_set():
                if self._attachment is None and not self._attach_next(post):
                    self._stopped.wait(LOOK_S)
                    continue
                self._read_stream(post)
                if self._following is None:
                    break
        except TelemetryError as error:
            self._post_status(post, Phase.GONE, error.message)
        finally:
            self.recorder.finish(STOPPED, self._state)
            self._tell_of_recording(post)

    def stop(self) -> None:
        """Make `run` return within one frame."""
        self._stopped.set()

    def hold(self, is_held: bool) -> None:
        """Stay with an engine that has ended, or go on to the next."""
        self._is_held = is_held

    def do(self, command: Command) -> bool:
        """Ask the engine for something; whether it could be handed over."""
        attachment = self._attachment
        return attachment is not None and attachment.send(command)

    def record(self, path: Path | None) -> None:
        """Record from now on, or stop; called on any thread."""
        self.recorder.want(path)

    # One stream.

    def _read_stream(self, post: Post) -> None:
        """Read until the engine goes."""
        attachment = self._attachment
        assert attachment is not None, "there is a stream to read"
        self._post_status(post, Phase.WAITING)
        try:
            self._read_frames(attachment, post)
        except TelemetryError as error:
            self._following = None  # what comes from there cannot be read
            self._post_status(post, Phase.GONE, error.message)
        else:
            self._post_end(post)
        finally:
            attachment.close()
            self._attachment = None
            if self._state is not None and self._is_changed:
                self.news.put_last(self._state)
                post(NewsArrived())

    def _read_frames(self, attachment: Attachment, post: Post) -> None:
        due_s = 0.0
        while not self._stopped.is_set():
            frames = attachment.receive(min(self.frame_s, FRAME_S))
            now_s = time.monotonic()
            for frame in frames or ():
                if isinstance(frame, ControlState | Reply | BlockContent):
                    post(Controlled(frame))
                else:
                    self._fold(frame)
            self.recorder.obey(self._state)
            if frames is None or now_s >= due_s:
                self._offer_picture(post)
                self._tell_of_recording(post)
                self._look_around(post, now_s)
                due_s = now_s + self.frame_s
            if frames is None:
                return

    def _fold(self, frame: Hello | Snapshot | Delta | End) -> None:
        if isinstance(frame, Hello):
            self._state = StreamState(frame)
            self.recorder.obey(self._state)
            return
        if self._state is None:
            raise TelemetryError(f"{self.name}: the stream does not begin with a hello")
        if not self._state.apply(frame):
            return
        self.recorder.take(frame, self._state)
        if isinstance(frame, End):
            return
        sample, events = self._history.read(frame)
        self.news.add_history([sample], events)
        self._is_changed = True

    def _offer_picture(self, post: Post) -> None:
        state = self._state
        if state is None:
            return
        if not state.is_started:
            self._post_status(post, Phase.WAITING)
            return
        if state.lost:
            self._post_status(post, Phase.LOST, state.lost)
        elif self._is_changed:
            self._post_status(post, Phase.LIVE)
        if self._is_changed:
            if self.news.wants_update:
                self._is_changed = False
                self.news.put_update(state.take_update())
            post(NewsArrived())

    # From one stream to the next.

    def _attach_next(self, post: Post) -> bool:
        """Attach to what comes next, if there is anything; the state of what ended stays until then."""
        assert self._following is not None, "without it the first stream is the last"
        if self._is_held:
            return False
        before = self._state
        self._look_around(post, time.monotonic())
        self._attachment = self._following.attach_next(before.facts if before is not None else None)
        if self._attachment is None:
            if before is None:
                self._post_status(post, Phase.CHOOSING, NONE_RUNS)
            return False
        self._state, self._history, self._is_changed = None, History(), False
        if before is not None:
            self.news = Handover()
            self.news.add_history((), [_follows_on(before)])
            post(StartedAnew(self.news))
        return True

    def _look_around(self, post: Post, now_s: float) -> None:
        """Say which engines run, when that has changed."""
        if self._following is None or now_s - self._looked_s < LOOK_AROUND_S:
            return
        self._looked_s = now_s
        engines = self._following.look()
        if engines != self._engines:
            self._engines = engines
            post(EnginesSeen(engines))

    def _tell_of_recording(self, post: Post) -> None:
        if self.recorder.note != self._noted:
            self._noted = self.recorder.note
            post(RecordingChanged(self.recorder.path, self._noted, self.recorder.has_failed))

    def _post_end(self, post: Post) -> None:
        if self._stopped.is_set():
            return
        end = self._state.end if self._state is not None else None
        if end is None:
            self.recorder.finish("", self._state)
        waits = "; the next engine is waited for" if self._following is not None else ""
        if end is not None:
            self._post_status(post, Phase.ENDED, end.reason + waits)
        else:
            self._post_status(post, Phase.GONE, "the engine went away without a goodbye" + waits)

    def _post_status(self, post: Post, phase: Phase, detail: str = "") -> None:
        status = SourceStatus(phase=phase, detail=detail)
        message = StatusChanged(status, self._state.facts if self._state is not None else None)
        if (message.status, message.facts) != self._posted:
            self._posted = message.status, message.facts
            post(message)


def _follows_on(before: StreamState) -> Event:
    """The first line in the log of a stream that follows on another."""
    facts, end = before.facts, before.end
    what = f"{facts.model} {facts.label}".strip()
    how = end.reason if end is not None else "gone without a goodbye"
    words = f"follows on {what} ({how}), pid {facts.pid}"
    return Event(step=0, time_s=0.0, kind=EventKind.SOURCE, request_id="", amount=0, reason=words)
