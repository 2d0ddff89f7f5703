"""A recording: the same frames as on the socket, in a file that is readable whenever the engine dies."""

import fcntl
import logging
import os
from pathlib import Path
from typing import Self

from kvengine.errors import TelemetryError
from kvengine.telemetry.framing import MAGIC, PREAMBLE, encode_frame
from kvengine.telemetry.schema import Hello

logger = logging.getLogger(__name__)

SNAPSHOT_SHARE = 8
"""A snapshot goes in each time the deltas since the last one are this many times its size: a seventh more bytes at
most, and a reader that jumps to any step decodes no more than that."""


class Recorder:
    """Writes one stream to a file, each frame with one write and nothing kept back.

    If the disk fails or fills up, the file is cut back to its last whole frame and the engine goes on without it.
    """

    def __init__(self, file_descriptor: int, path: Path) -> None:
        self.path = path
        self._fd: int | None = file_descriptor
        self._num_bytes = 0
        self._snapshot_bytes = 0
        self._since_snapshot_bytes = 0

    @classmethod
    def create(cls, path: Path, hello: Hello) -> Self:
        """Begin a recording; an older recording at this path is replaced, anything else is not.

        Raises:
            TelemetryError: The file cannot be made, or is not ours to replace.
        """
        try:
            _remove_older_recording(path)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TelemetryError(f"{path}: another process is writing it") from error
        except OSError as error:
            raise TelemetryError(f"{path}: cannot be written ({error.strerror or error})") from error
        recorder = cls(descriptor, path)
        recorder._write(PREAMBLE + encode_frame(hello))
        return recorder

    @property
    def is_listening(self) -> bool:
        """Whether the file is still being written."""
        return self._fd is not None

    @property
    def needs_snapshot(self) -> bool:
        """Whether it is time for the next one."""
        return self._fd is not None and self._since_snapshot_bytes >= SNAPSHOT_SHARE * self._snapshot_bytes

    def poll(self) -> None:
        """Nothing is ever due."""

    def send_delta(self, data: bytes) -> None:
        """Append a delta."""
        self._since_snapshot_bytes += len(data)
        self._write(data)

    def send_snapshot(self, data: bytes) -> None:
        """Append a snapshot if it is time for one."""
        if self.needs_snapshot:
            self.write_snapshot(data)

    def write_snapshot(self, data: bytes) -> None:
        """Append a snapshot whether or not it is time for one: after a gap, readers need it."""
        self._snapshot_bytes = len(data)
        self._since_snapshot_bytes = 0
        self._write(data)

    def close(self, last: bytes) -> None:
        """Append the last frame and close the file."""
        self._write(last)
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _write(self, data: bytes) -> None:
        if self._fd is None:
            return
        try:
            num_written = os.write(self._fd, data)
            while num_written < len(data):  # only a disk that is nearly full writes less
                num_written += os.write(self._fd, data[num_written:])
            self._num_bytes += len(data)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        assert self._fd is not None, "only an open recording can fail"
        logger.warning("%s: recording stopped after %d bytes (%s)", self.path, self._num_bytes, error.strerror)
        os.ftruncate(self._fd, self._num_bytes)
        os.close(self._fd)
        self._fd = None


def _remove_older_recording(path: Path) -> None:
    """Unlink a finished recording, so that a view that has it open keeps what it sees."""
    if not os.path.lexists(path):
        return
    if not path.is_file():
        raise OSError(None, "there is something else, not a recording")
    with path.open("rb") as file:
        if file.read(len(MAGIC)) not in (MAGIC, b""):
            raise OSError(None, "there is a file that is not a recording")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    path.unlink()
