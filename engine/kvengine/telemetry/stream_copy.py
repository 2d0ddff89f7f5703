"""A viewer's own recording of the stream that it watches, readable like one that the engine made."""

from pathlib import Path
from typing import Self

from kvengine.telemetry.framing import encode_frame
from kvengine.telemetry.recorder import Recorder
from kvengine.telemetry.schema import Delta, End, Snapshot
from kvengine.telemetry.state import StreamState


class StreamCopy:
    """Writes what a viewer receives, from where it is asked to on.

    Snapshots go in where the stream has one after a gap, and as often as an engine's recording has them, so that any
    step is reached as fast.

    Args:
        recorder: The file.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    @classmethod
    def begin(cls, path: Path, state: StreamState) -> Self:
        """Begin a recording; an older one at this path is replaced, anything else is not.

        Args:
            path: The file.
            state: What is known of the stream so far.

        Raises:
            TelemetryError: The file cannot be made, or is not ours to replace.
        """
        copy = cls(Recorder.create(path, state.facts))
        if state.is_started:
            copy._write_snapshot(state.snapshot())
        return copy

    @property
    def path(self) -> Path:
        """The file."""
        return self._recorder.path

    @property
    def is_writing(self) -> bool:
        """Whether the file is still written; a full disk ends it."""
        return self._recorder.is_listening

    def take(self, frame: Snapshot | Delta | End, state: StreamState) -> None:
        """Write the next frame; one that was not folded is left out.

        Args:
            frame: As it came.
            state: The state after it.
        """
        if isinstance(frame, End):
            self.close(frame)
        elif isinstance(frame, Snapshot):
            self._write_snapshot(frame)
        elif not state.lost:
            self._recorder.send_delta(encode_frame(frame))
            if self._recorder.needs_snapshot:
                self._write_snapshot(state.snapshot())

    def close(self, end: End | None = None) -> None:
        """Close the file, with a goodbye if there was one."""
        self._recorder.close(encode_frame(end) if end is not None else b"")

    def _write_snapshot(self, snapshot: Snapshot) -> None:
        self._recorder.write_snapshot(encode_frame(snapshot))
