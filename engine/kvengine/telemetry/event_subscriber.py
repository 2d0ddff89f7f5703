"""Listens to the KV-cache events of one publisher over ZMQ and asks for replays where messages are missing."""

import time
from math import inf
from typing import TYPE_CHECKING

from kvengine.errors import ConfigError, DeviceError
from kvengine.telemetry.event_sources import Address
from kvengine.telemetry.event_stream import EventStream
from kvengine.telemetry.kv_events import EventBatch

if TYPE_CHECKING:
    import zmq

RECEIVE_HIGH_WATER_MARK = 100_000
"""What servers keep for a slow listener by default; past it messages are dropped, and a replay mends the gap."""
SECOND_LOOK_S = 1.0
"""When to ask again what was published, if nothing was heard by then: a subscription takes a moment to be in place."""


class EventSubscriber:
    """The sockets of one publisher, and the stream they feed. Used from one thread.

    Args:
        live: Where messages are had, see `event_sources.live_address`.
        replay: Where replays are asked for; None without such a socket.
        topic: What the topic of wanted messages begins with; all by default.
        replay_timeout_s: How long no part of a replay may come before the missing messages are taken for lost.

    Raises:
        DeviceError: pyzmq is not installed.
        ConfigError: An address is none, or is taken.
    """

    def __init__(self, live: Address, replay: str | None, *, topic: str = "", replay_timeout_s: float = 3.0) -> None:
        try:
            import zmq
        except ModuleNotFoundError:
            raise DeviceError(
                "listening to KV-cache events needs pyzmq, which is not installed",
                hint="pip install 'pagedkv[events]'",
            ) from None
        self.stream = EventStream(has_replay=replay is not None)
        self._zmq = zmq
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._replay_address = replay
        self._replay_timeout_s = replay_timeout_s
        self._replay: zmq.Socket[bytes] | None = None
        self._replay_deadline_s = 0.0
        self._second_look_s = time.monotonic() + SECOND_LOOK_S
        self._live = self._socket(zmq.SUB)
        self._live.setsockopt(zmq.SUBSCRIBE, topic.encode())
        self._attach(self._live, live)
        if replay is not None:
            self._ask(self.stream.ask_for_the_rest())

    def poll(self, timeout_s: float) -> list[EventBatch]:
        """Wait for messages and fold them in.

        Args:
            timeout_s: How long to wait for the first; what is there already is taken at once.

        Returns:
            The batches folded in, in order.
        """
        zmq = self._zmq
        poller = zmq.Poller()
        poller.register(self._live, zmq.POLLIN)
        if self._replay is not None:
            poller.register(self._replay, zmq.POLLIN)
        poller.poll(timeout_s * 1000)
        folded = self._take_replays()
        while (frames := self._receive(self._live)) is not None:
            folded += self.stream.take_live(frames)
        if (request := self.stream.take_replay_request()) is not None:
            self._ask(request)
        elif time.monotonic() > self._second_look_s:
            self._look_again()
        return folded

    def close(self) -> None:
        """Close the sockets; nothing unsent is waited for."""
        self._context.destroy(linger=0)

    def _look_again(self) -> None:
        """Ask for what was published after the first replay and before the subscription was in place."""
        self._second_look_s = inf
        if self._replay is not None and not self.stream.has_heard and not self.stream.is_waiting_for_replay:
            self._ask(self.stream.ask_for_the_rest())

    def _ask(self, request: list[bytes]) -> None:
        """Ask on a socket of its own, so that an answer to an older request cannot be taken for this one's."""
        if self._replay_address is None:
            return
        self._connect_to_replay(self._replay_address).send_multipart(request)
        self._replay_deadline_s = time.monotonic() + self._replay_timeout_s

    def _connect_to_replay(self, address: str) -> "zmq.Socket[bytes]":
        if self._replay is not None:
            self._replay.close(linger=0)
        self._replay = self._socket(self._zmq.DEALER)
        self._attach(self._replay, Address(address, bind=False))
        return self._replay

    def _take_replays(self) -> list[EventBatch]:
        folded: list[EventBatch] = []
        if self._replay is None:
            return folded
        while (frames := self._receive(self._replay)) is not None:
            folded += self.stream.take_replay(frames)
            self._replay_deadline_s = time.monotonic() + self._replay_timeout_s
        if self.stream.is_waiting_for_replay and time.monotonic() > self._replay_deadline_s:
            folded += self.stream.give_up_replay()
        return folded

    def _receive(self, socket: "zmq.Socket[bytes]") -> list[bytes] | None:
        try:
            return socket.recv_multipart(self._zmq.NOBLOCK)
        except self._zmq.Again:
            return None

    def _socket(self, kind: int) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.setsockopt(self._zmq.RCVHWM, RECEIVE_HIGH_WATER_MARK)
        return socket

    def _attach(self, socket: "zmq.Socket[bytes]", where: Address) -> None:
        try:
            if where.bind:
                socket.bind(where.address)
            else:
                socket.connect(where.address)
        except self._zmq.ZMQError as error:
            self.close()
            verb = "listen at" if where.bind else "connect to"
            raise ConfigError(f"cannot {verb} {where.address!r}: {error.strerror}") from None
