"""The receiving side of telemetry: a running engine's socket, and which engines are running."""

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kvengine.errors import TelemetryError
from kvengine.telemetry.commands import Command, encode_command
from kvengine.telemetry.framing import StreamParser
from kvengine.telemetry.runtime_dir import check_private_dir, runtime_dir
from kvengine.telemetry.schema import Frame, Hello

RECEIVE_BYTES = 2**18
HELLO_WITHIN_S = 0.3
"""How long `discover` waits for an engine to say who it is."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEngine:
    """An engine that accepts viewers."""

    path: Path
    facts: Hello | None
    """None for an engine that does not answer, or that speaks a version which cannot be read."""


def discover(directory: Path | None = None) -> list[RunningEngine]:
    """The engines of this user that run on this machine, oldest socket first.

    Sockets that nobody listens on any more are passed over, and left where they are.

    Raises:
        TelemetryError: The folder where they would be is not private.
    """
    directory = directory if directory is not None else runtime_dir()
    if not directory.exists():
        return []
    check_private_dir(directory)
    engines = [_try_engine(path) for path in sorted(directory.glob("*.sock"), key=_age_key)]
    return [engine for engine in engines if engine is not None]


def _age_key(path: Path) -> tuple[int, str]:
    try:
        return path.lstat().st_mtime_ns, path.name
    except FileNotFoundError:  # gone since it was listed
        return 0, path.name


def _try_engine(path: Path) -> RunningEngine | None:
    try:
        with Attachment.open(path) as attachment:
            return RunningEngine(path=path, facts=_try_hello(attachment))
    except TelemetryError:
        return None


def _try_hello(attachment: Attachment) -> Hello | None:
    try:
        frames = attachment.receive(HELLO_WITHIN_S)
    except TelemetryError:
        return None
    first = frames[0] if frames else None
    return first if isinstance(first, Hello) else None


def _why_not(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such socket"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens on this socket; its engine has gone"
    return f"cannot be attached to ({error.strerror or error})"
