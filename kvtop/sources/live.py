"""A running engine of ours, watched on its socket."""

import time
from collections.abc import Callable
from threading import Event as ThreadEvent

from kvengine.errors import TelemetryError
from kvengine.telemetry.commands import Command
from kvengine.telemetry.history import History
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.schema import ControlState, Delta, End, Hello, Reply, Snapshot
from kvengine.telemetry.state import StreamState
from kvtop.sources.base import FRAME_S, Controlled, Handover, NewsArrived, Post, StartedAnew, StatusChanged
from kvtop.view_model import Phase, SourceStatus


class LiveSource:
    """Folds what an engine sends, and offers a picture at most every `frame_s`.

    Args:
        attachment: The engine.
        reattach: Attaches to what follows on a stream that has ended; None where nothing does.
    """

    is_recording = False
    is_server = False
    is_local = True

    def __init__(self, attachment: Attachment, *, reattach: Callable[[], Attachment] | None = None) -> None:
        self.frame_s = FRAME_S
        self.news = Handover()
        self._attachment = attachment
        self._reattach = reattach
        self._stopped = ThreadEvent()
        self._state: StreamState | None = None
        self._history = History()
        self._is_changed = False
        self._posted: tuple[SourceStatus, Hello | None] | None = None

    @property
    def name(self) -> str:
        """The socket's file name."""
        return self._attachment.path.name

    def run(self, post: Post) -> None:
        """Read until the engine goes."""
        self._post_status(post, Phase.WAITING)
        due_s = 0.0
        try:
            while not self._stopped.is_set():
                frames = self._attachment.receive(min(self.frame_s, FRAME_S))
                now_s = time.monotonic()
                for frame in frames or ():
                    if isinstance(frame, ControlState | Reply):
                        post(Controlled(frame))
                    else:
                        self._fold(frame)
                if frames is None or now_s >= due_s:
                    self._offer_picture(post)
                    due_s = now_s + self.frame_s
                if frames is None and not self._go_on(post):
                    break
        except TelemetryError as error:
            self._post_status(post, Phase.GONE, error.message)
        else:
            self._post_end(post)
        finally:
            self._attachment.close()
            if self._state is not None and self._is_changed:
                self.news.put_last(self._state)
                post(NewsArrived())

    def stop(self) -> None:
        """Make `run` return within one frame."""
        self._stopped.set()

    def do(self, command: Command) -> bool:
        """Ask the engine for something; whether it could be handed over."""
        return self._attachment.send(command)

    def _fold(self, frame: Hello | Snapshot | Delta | End) -> None:
        if isinstance(frame, Hello):
            self._state = StreamState(frame)
            return
        if self._state is None:
            raise TelemetryError(f"{self.name}: the stream does not begin with a hello")
        if not self._state.apply(frame) or isinstance(frame, End):
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

    def _go_on(self, post: Post) -> bool:
        """Attach anew where another stream follows on the one that has ended; whether there is one."""
        end = self._state.end if self._state is not None else None
        if self._reattach is None or end is None or self._stopped.is_set():
            return False
        self._attachment.close()
        self._attachment = self._reattach()
        self._state, self._history, self._is_changed = None, History(), False
        self.news = Handover()
        post(StartedAnew())
        return True

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
