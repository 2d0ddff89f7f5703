"""What a live view records: a file for each engine that it watches, while it is asked to."""

from pathlib import Path
from threading import Lock

from kvengine.errors import TelemetryError
from kvengine.telemetry.schema import Delta, End, Snapshot
from kvengine.telemetry.state import StreamState
from kvengine.telemetry.stream_copy import StreamCopy

STOPPED = "recording stopped"
"""Reason with which a recording ends that was stopped by hand."""


class ViewRecorder:
    """Obeys the view's thread on the source's.

    Attributes:
        note: What came of the last wish, in words; empty until there was one.
        has_failed: Whether it was no success.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._wanted: Path | None = None
        self._is_wish_new = False
        self._num_files = 0
        self._copy: StreamCopy | None = None
        self.note = ""
        self.has_failed = False

    def want(self, path: Path | None) -> None:
        """Record into a file from now on, the next engine into a file beside it; None to stop."""
        with self._lock:
            self._wanted, self._is_wish_new = path, True

    @property
    def path(self) -> Path | None:
        """The file that is written now."""
        copy = self._copy
        return copy.path if copy is not None and copy.is_writing else None

    def obey(self, state: StreamState | None) -> None:
        """Begin or stop, if that is wanted and there is a stream."""
        with self._lock:
            wanted, is_new, self._is_wish_new = self._wanted, self._is_wish_new, False
        if is_new:
            self.has_failed = False
            self.finish(STOPPED, state)
            self._num_files = 0
        if wanted is not None and self._copy is None and state is not None and state.end is None:
            self._begin(wanted, state)

    def take(self, frame: Snapshot | Delta | End, state: StreamState) -> None:
        """Write the next frame of the stream."""
        if self._copy is None:
            return
        self._copy.take(frame, state)
        if isinstance(frame, End):
            self.note, self._copy = f"recorded {self._copy.path}", None
        elif not self._copy.is_writing:
            self._fail(f"{self._copy.path}: recording stopped, the disk took no more")

    def finish(self, reason: str, state: StreamState | None) -> None:
        """Close the file; a reason stands in it as its end, none for a stream that broke off."""
        if self._copy is None:
            return
        seq = state.seq if state is not None else 0
        self._copy.close(End(seq=seq, reason=reason) if reason else None)
        self.note, self._copy = f"recorded {self._copy.path}", None

    def _begin(self, wanted: Path, state: StreamState) -> None:
        self._num_files += 1
        path = wanted if self._num_files == 1 else wanted.with_stem(f"{wanted.stem}-{self._num_files}")
        try:
            self._copy = StreamCopy.begin(path, state)
            self.note = f"recording into {path}"
        except TelemetryError as error:
            self._fail(error.message)

    def _fail(self, note: str) -> None:
        self.note, self.has_failed, self._copy, self._wanted = note, True, None, None
