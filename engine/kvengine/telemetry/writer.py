"""Where frames go: to the viewers on a socket. Nothing here ever waits for anybody.

A viewer gets the greeting (preamble and hello) as soon as it attaches, from a thread that does nothing else, so that
it knows whom it sees while a long step runs. The engine's own thread sends the rest: a snapshot with the next step,
then every delta. A viewer that reads too slowly loses deltas and gets a fresh snapshot once it has caught up; one that
reads nothing is cut off.
"""

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from threading import Event as ThreadEvent
from threading import Thread
from typing import Protocol, Self

from kvengine.errors import TelemetryError
from kvengine.telemetry.commands import Command, CommandParser
from kvengine.telemetry.framing import PREAMBLE, encode_frame
from kvengine.telemetry.runtime_dir import MAX_SOCKET_PATH_BYTES, make_private_dir, runtime_dir
from kvengine.telemetry.schema import Hello

logger = logging.getLogger(__name__)

MAX_VIEWERS = 16
RECEIVE_BYTES = 2**14
MAX_PENDING_BYTES = 2**22
"""A viewer that is this far behind loses what is queued."""
STALLED_AFTER_S = 10.0
"""A viewer that takes nothing for so long although bytes are queued is cut off."""
ACCEPT_AGAIN_AFTER_S = 0.5
"""After a connection that could not be taken, such as for want of file descriptors."""
CLOSE_WITHIN_S = 0.2
"""How long `close` may try to hand out the last frames; the engine has nothing else to do by then."""


class FrameSink(Protocol):
    """Takes the frames of one stream."""

    @property
    def is_listening(self) -> bool:
        """Whether anybody wants frames."""
        ...

    @property
    def needs_snapshot(self) -> bool:
        """Whether a snapshot should follow the next delta."""
        ...

    def poll(self) -> None:
        """Do what is due without waiting."""
        ...

    def send_delta(self, data: bytes) -> None:
        """Take an encoded delta."""
        ...

    def send_snapshot(self, data: bytes) -> None:
        """Take an encoded snapshot of the state after the last delta."""
        ...

    def close(self, last: bytes) -> None:
        """Take the last frame and stop."""
        ...


class ViewerServer:
    """Listens on a private unix socket and keeps the attached viewers supplied."""

    def __init__(self, listener: socket.socket, path: Path, greeting: bytes, *, takes_commands: bool = False) -> None:
        self._listener = listener
        self._takes_commands = takes_commands
        self._commands: list[tuple[Command, Callable[[bytes], None]]] = []
        self._welcome = b""
        self._greeting = greeting
        self._viewers: list[_Viewer] = []
        self._greeted: deque[_Viewer] = deque()
        """Handed from the accepting thread to the engine's."""
        self._closed = ThreadEvent()
        self._owner_pid = os.getpid()
        self.path = path
        Thread(target=self._accept_viewers, name=f"viewers of {path.name}", daemon=True).start()

    @classmethod
    def listen(cls, hello: Hello, *, path: Path | None = None) -> Self:
        """Listen at a path, or where kvtop looks for running engines.

        Raises:
            TelemetryError: The folder is not private, or the socket cannot be made.
        """
        if path is None:
            directory = runtime_dir()
            make_private_dir(directory)
            _remove_dead_sockets(directory)
            path = _free_path(directory)
        return cls(_listen_at(path), path, PREAMBLE + encode_frame(hello), takes_commands=bool(hello.accepts))

    @property
    def is_listening(self) -> bool:
        """Whether any viewer is attached."""
        return bool(self._viewers)

    @property
    def needs_snapshot(self) -> bool:
        """Whether a viewer waits for a snapshot and has room for it."""
        return any(viewer.needs_snapshot and viewer.is_idle for viewer in self._viewers)

    @property
    def has_commands(self) -> bool:
        """Whether viewers have asked for something."""
        return bool(self._commands)

    def poll(self) -> None:
        """Take in viewers that have attached, and send what is queued."""
        while self._greeted:
            viewer = self._greeted.popleft()
            if self._welcome:
                viewer.send(self._welcome)
            self._viewers.append(viewer)
        if self._viewers:
            for viewer in self._viewers:
                viewer.flush()
                if self._takes_commands and not viewer.is_gone:
                    self._commands += [(command, viewer.send) for command in viewer.receive()]
            self._viewers = [viewer for viewer in self._viewers if not viewer.is_gone]

    def take_commands(self) -> list[tuple[Command, Callable[[bytes], None]]]:
        """What viewers have asked for since the last call, each with the way to answer its viewer."""
        taken, self._commands = self._commands, []
        return taken

    def tell(self, data: bytes) -> None:
        """Send a frame that is no part of the stream to every viewer, and to those that come later until the next."""
        self._welcome = data
        for viewer in self._viewers:
            viewer.send(data)

    def send_delta(self, data: bytes) -> None:
        """Send to the viewers that have everything before it."""
        for viewer in self._viewers:
            if not viewer.needs_snapshot:
                viewer.send(data)

    def send_snapshot(self, data: bytes) -> None:
        """Send to the viewers that wait for it."""
        for viewer in self._viewers:
            if viewer.needs_snapshot and viewer.is_idle:
                viewer.needs_snapshot = False
                viewer.send(data)

    def close(self, last: bytes) -> None:
        """Send the last frame, give slow viewers a moment, and take the socket away."""
        self._closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._listener.close()
        self.poll()
        for viewer in self._viewers:
            viewer.send(last)
        give_up_s = time.monotonic() + CLOSE_WITHIN_S
        while any(not viewer.is_idle for viewer in self._viewers) and time.monotonic() < give_up_s:
            time.sleep(0.005)
            for viewer in self._viewers:
                viewer.flush()
        for viewer in self._viewers:
            viewer.close()
        self._viewers.clear()
        if os.getpid() == self._owner_pid:  # a forked child must not take its parent's socket away
            self.path.unlink(missing_ok=True)

    def _accept_viewers(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if not self._closed.is_set():
                    time.sleep(ACCEPT_AGAIN_AFTER_S)
                continue
            if len(self._viewers) + len(self._greeted) >= MAX_VIEWERS:
                connection.close()
                continue
            viewer = _Viewer(connection, self._greeting)
            self._greeted.append(viewer)
            if self._closed.is_set():  # meanwhile: nobody will look at it any more
                viewer.close()


class _Viewer:
    """One attached viewer and the bytes that still have to go to it."""

    def __init__(self, connection: socket.socket, greeting: bytes) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._queue: deque[memoryview] = deque()
        self._num_queued_bytes = 0
        self._progress_s = time.monotonic()
        self._parser = CommandParser()
        self.needs_snapshot = True
        self.is_gone = False
        self.send(greeting)

    @property
    def is_idle(self) -> bool:
        """Whether everything queued so far has been sent."""
        return not self._queue

    def send(self, data: bytes) -> None:
        """Queue whole frames, and send what the socket takes."""
        if self.is_gone:
            return
        if not self._queue:
            self._progress_s = time.monotonic()
        self._queue.append(memoryview(data))
        self._num_queued_bytes += len(data)
        self.flush()
        # A lone entry may be a snapshot larger than the limit: it has to go out.
        if self._num_queued_bytes > MAX_PENDING_BYTES and len(self._queue) > 1:
            self._lose_queue()

    def flush(self) -> None:
        """Send what the socket takes now."""
        try:
            while self._queue:
                num_sent = self._connection.send(self._queue[0])
                self._progress_s = time.monotonic()
                self._num_queued_bytes -= num_sent
                if num_sent < len(self._queue[0]):
                    self._queue[0] = self._queue[0][num_sent:]
                else:
                    self._queue.popleft()
        except BlockingIOError:
            if time.monotonic() - self._progress_s > STALLED_AFTER_S:
                logger.info("a viewer read nothing for %.0f s and was cut off", STALLED_AFTER_S)
                self.close()
        except OSError:
            self.close()

    def receive(self) -> list[Command]:
        """The commands that have come; one that sends anything else is cut off."""
        try:
            data = self._connection.recv(RECEIVE_BYTES)
            return list(self._parser.feed(data)) if data else self._hang_up("")
        except BlockingIOError:
            return []
        except OSError:
            return self._hang_up("")
        except TelemetryError as error:
            return self._hang_up(error.message)

    def _hang_up(self, reason: str) -> list[Command]:
        if reason:
            logger.warning("a viewer was cut off: %s", reason)
        self.close()
        return []

    def close(self) -> None:
        """Cut this viewer off."""
        self.is_gone = True
        self._queue.clear()
        self._connection.close()

    def _lose_queue(self) -> None:
        # The first entry may be half sent; it has to be finished or all that follows would be garbage.
        while len(self._queue) > 1:
            self._num_queued_bytes -= len(self._queue.pop())
        self.needs_snapshot = True


def _listen_at(path: Path) -> socket.socket:
    # Renamed into place once it listens, so that a socket that refuses a connection is surely dead.
    unborn = path.with_name(path.name + ".new")
    if len(os.fsencode(unborn)) > MAX_SOCKET_PATH_BYTES:
        raise TelemetryError(
            f"{path}: too long for a unix socket (at most {MAX_SOCKET_PATH_BYTES - len('.new')} bytes)",
            hint="point XDG_RUNTIME_DIR at a shorter path",
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        unborn.unlink(missing_ok=True)
        listener.bind(str(unborn))
        unborn.chmod(0o600)
        listener.listen(MAX_VIEWERS)
        _refuse_to_replace(path)
        unborn.rename(path)
    except OSError as error:
        listener.close()
        unborn.unlink(missing_ok=True)
        raise TelemetryError(f"{path}: cannot listen for viewers ({error.strerror or error})") from error
    return listener


def _refuse_to_replace(path: Path) -> None:
    if path.exists() and not is_dead_socket(path):
        raise OSError(None, "there is something else")


def _free_path(directory: Path) -> Path:
    """The first unused name of this process: `4711-1.sock`, `4711-2.sock` and so on."""
    taken = set(directory.iterdir())
    number = 1
    while (path := directory / f"{os.getpid()}-{number}.sock") in taken:
        number += 1
    return path


def is_dead_socket(path: Path) -> bool:
    """Whether a path is a unix socket that nobody listens on any more."""
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _remove_dead_sockets(directory: Path) -> None:
    for path in directory.glob("*.sock"):
        if is_dead_socket(path):
            path.unlink(missing_ok=True)
