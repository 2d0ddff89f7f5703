"""A recording, read: an index of its steps, and the state after any of them."""

import fcntl
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Self

import msgspec

from kvengine.errors import TelemetryError
from kvengine.telemetry.framing import (
    LENGTH,
    MAX_PAYLOAD_BYTES,
    PREAMBLE,
    check_preamble,
    decode_payload,
    is_unknown_kind,
)
from kvengine.telemetry.history import Event, History, Sample
from kvengine.telemetry.schema import Delta, DeltaHead, End, Hello, Snapshot, SnapshotHead
from kvengine.telemetry.state import StepSnapshot, StreamState

_head_decoder = msgspec.msgpack.Decoder(Hello | SnapshotHead | DeltaHead | End)


class Recording:
    """The steps of one recording, which may still be growing.

    Opening it goes through the first fields of every frame; the rest is decoded where a step is looked at.

    Attributes:
        facts: What the engine said of itself.
        end: How the stream was closed; None for an engine that still runs or was killed.
        samples: One for each position; position 0 is the state that the recording begins with.
        events: All of them, in order.
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._history = History()
        self._next_offset = len(PREAMBLE)
        self._facts: Hello | None = None
        self._frames: list[tuple[int, int]] = []
        """Offset and length of the payload that leads to each position."""
        self._snapshots: list[tuple[int, int, int]] = []
        """Position, offset and length of each snapshot."""
        self._seq = 0
        self._state: StreamState | None = None
        self._state_position = -1
        self.path = path
        self.end: End | None = None
        self.samples: list[Sample] = []
        self.events: list[Event] = []

    @classmethod
    def open(cls, path: Path, *, partial: bool = False) -> Self:
        """Open a recording.

        Args:
            path: The file.
            partial: Accept one that was cut off or damaged, and show the steps before that.

        Raises:
            TelemetryError: There is no such file, it is no recording, of a newer version, cut off inside a frame,
                or without a single step.
        """
        try:
            file = path.open("rb")
        except OSError as error:
            raise TelemetryError(f"{path}: cannot be opened ({error.strerror})") from error
        recording = cls(file, path)
        try:
            recording._read_all(partial)
        except BaseException:
            file.close()
            raise
        return recording

    @property
    def facts(self) -> Hello:
        """What the engine said of itself."""
        assert self._facts is not None, "an opened recording begins with a hello"
        return self._facts

    @property
    def is_being_written(self) -> bool:
        """Whether an engine still adds to it."""
        if self.end is not None:
            return False
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return False

    def __len__(self) -> int:
        """Number of positions."""
        return len(self._frames)

    def extend(self) -> bool:
        """Look for frames that were added since the last call.

        Returns:
            Whether there were any.

        Raises:
            TelemetryError: The file ends inside a frame and nobody is writing it, or a frame is damaged.
        """
        num_before = len(self._frames)
        for offset, payload in self._new_payloads():
            self._index(offset, payload)
        return len(self._frames) > num_before

    def go_to(self, position: int) -> StreamState:
        """The state at a position, from 0 up to `len - 1`; the same object as before where it only goes forward.

        Raises:
            TelemetryError: The frames that lead there are damaged.
        """
        snapshot_position, offset, length = self._snapshots[self._snapshot_before(position)]
        state = self._state
        if state is None or not snapshot_position <= self._state_position <= position:
            state = self._state = StreamState(self.facts)
            self._apply(state, offset, length)
            self._state_position = snapshot_position
        while self._state_position < position:
            self._apply(state, *self._frames[self._state_position + 1])
            self._state_position += 1
        return state

    def read(self, position: int) -> StepSnapshot:
        """A copy of the state at a position; see `go_to`."""
        return self.go_to(position).freeze()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_all(self, partial: bool) -> None:
        try:
            preamble = self._file.read(len(PREAMBLE))
        except OSError as error:
            raise TelemetryError(f"{self.path}: cannot be read ({error.strerror})") from error
        check_preamble(preamble, where=str(self.path))
        try:
            self.extend()
        except TelemetryError as error:
            if not self.samples:
                raise TelemetryError(error.message) from error
            if not partial:
                raise
        if not self.samples:
            raise TelemetryError(f"{self.path}: no step was recorded")

    def _snapshot_before(self, position: int) -> int:
        return bisect_right(self._snapshots, position, key=lambda snapshot: snapshot[0]) - 1

    def _apply(self, state: StreamState, offset: int, length: int) -> None:
        self._file.seek(offset)
        frame = decode_payload(self._file.read(length), where=f"{self.path}: frame at byte {offset - LENGTH.size}")
        if not isinstance(frame, Snapshot | Delta):
            raise TelemetryError(f"{self.path}: the file was changed while it was open")
        try:
            state.apply(frame)
        except TelemetryError as error:
            raise TelemetryError(f"{self.path}: {error.message}") from error

    def _new_payloads(self) -> Iterator[tuple[int, bytes]]:
        """Offset and payload of each whole frame from the last known border on."""
        while True:
            self._file.seek(self._next_offset)
            prefix = self._file.read(LENGTH.size)
            if not prefix:
                return
            if len(prefix) < LENGTH.size:
                self._raise_unless_being_written()
                return
            (num_bytes,) = LENGTH.unpack(prefix)
            if num_bytes > MAX_PAYLOAD_BYTES:
                raise self._error("damaged at")
            payload = self._file.read(num_bytes)
            if len(payload) < num_bytes:
                self._raise_unless_being_written()
                return
            yield self._next_offset + LENGTH.size, payload
            self._next_offset += LENGTH.size + num_bytes

    def _raise_unless_being_written(self) -> None:
        if not self.is_being_written:
            raise self._error("cut off inside a frame at")

    def _error(self, fault: str) -> TelemetryError:
        after = f"after step {self.samples[-1].step}" if self.samples else "before its first step"
        return TelemetryError(
            f"{self.path}: {fault} byte {self._next_offset}, {after}",
            hint=f"kvtop --partial {self.path} shows the steps up to there",
        )

    def _index(self, offset: int, payload: bytes) -> None:
        try:
            head = _head_decoder.decode(payload)
        except msgspec.DecodeError as error:
            if is_unknown_kind(payload):
                return
            raise self._error("damaged at") from error
        if isinstance(head, Hello):
            self._facts = head
        elif isinstance(head, End):
            self.end = head
        elif self._facts is None or (isinstance(head, DeltaHead) and (not self._frames or head.seq != self._seq + 1)):
            raise self._error("a frame is missing before")
        else:
            self._add_position(head, offset, len(payload))

    def _add_position(self, head: SnapshotHead | DeltaHead, offset: int, length: int) -> None:
        is_snapshot = isinstance(head, SnapshotHead)
        sample, events = self._history.read(head)
        if not (is_snapshot and self._frames and head.seq == self._seq):  # else the same state once more
            self._frames.append((offset, length))
            self.samples.append(sample)
            self.events += events
        if is_snapshot:
            self._snapshots.append((len(self._frames) - 1, offset, length))
        self._seq = head.seq
