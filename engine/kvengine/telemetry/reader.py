"""The receiving side of telemetry: a running engine's socket."""

import socket
from pathlib import Path
from typing import Self

from kvengine.errors import TelemetryError
from kvengine.telemetry.commands import Command, encode_command
from kvengine.telemetry.framing import StreamParser
from kvengine.telemetry.schema import Frame

RECEIVE_BYTES = 2**18


class Attachment:
    """A connection to a running engine."""

    def __init__(self, connection: socket.socket, path: Path) -> None:
        self._connection = connection
        self._parser = StreamParser(str(path))
        self.path = path

    @classmethod
    def open(cls, path: Path) -> Self:
        """Connect to an engine's socket.

        Raises:
            TelemetryError: Nothing listens there.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connection.connect(str(path))
        except OSError as error:
            connection.close()
            raise TelemetryError(f"{path}: {_why_not(error)}", hint="kvtop without a target lists what runs") from error
        return cls(connection, path)

    def receive(self, timeout_s: float) -> list[Frame] | None:
        """The frames that have come, waiting at most so long for the first; None once the engine is gone.

        Raises:
            TelemetryError: What came is no telemetry, or of a newer version.
        """
        self._connection.settimeout(timeout_s)
        try:
            data = self._connection.recv(RECEIVE_BYTES)
        except TimeoutError:
            return []
        except OSError:
            return None
        return list(self._parser.feed(data)) if data else None

    def send(self, command: Command) -> bool:
        """Ask the engine for something; whether it could be handed over. Called on any thread."""
        try:
            self._connection.sendall(encode_command(command))
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _why_not(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such socket"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens on this socket; its engine has gone"
    return f"cannot be attached to ({error.strerror or error})"
