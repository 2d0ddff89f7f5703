import threading
import time
from collections.abc import Iterator

import pytest

from kvengine.errors import ConfigError
from kvengine.telemetry.event_sources import Address
from kvengine.telemetry.event_stream import StreamState
from kvengine.telemetry.event_subscriber import EventSubscriber
from tests.foreign_servers import a_message, stored

zmq = pytest.importorskip("zmq", reason="needs pyzmq")

DEADLINE_S = 10.0


class Publisher:
    """Publishes on a PUB socket and replays from a ROUTER, as vLLM from 0.25 does; it can keep a message to itself."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.live = self.context.socket(zmq.PUB)
        self.live_port = self.live.bind_to_random_port("tcp://127.0.0.1")
        self.router = self.context.socket(zmq.ROUTER)
        self.replay_port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.log: list[list[bytes]] = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.serve_replays)
        self.thread.start()

    @property
    def address(self) -> Address:
        return Address(f"tcp://127.0.0.1:{self.live_port}", bind=False)

    @property
    def replay_address(self) -> str:
        return f"tcp://127.0.0.1:{self.replay_port}"

    def publish(self, *, lose: bool = False) -> None:
        seq = len(self.log)
        self.log.append(a_message(seq, stored([seq])))
        if not lose:
            self.live.send_multipart(self.log[-1])

    def serve_replays(self) -> None:
        while not self.stop.is_set():
            if self.router.poll(10):
                client, _, first = self.router.recv_multipart()
                for message in self.log[int.from_bytes(first, "big") :]:
                    self.router.send_multipart([client, b"", *message])
                self.router.send_multipart([client, b"", b"", b"\xff" * 8, b""])

    def close(self) -> None:
        self.stop.set()
        self.thread.join()
        self.context.destroy(linger=0)


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    made = Publisher()
    yield made
    made.close()


def follow(publisher: Publisher, subscriber: EventSubscriber, state: StreamState, num_blocks: int) -> None:
    """Poll until the stream is where it should be."""
    deadline_s = time.monotonic() + DEADLINE_S
    while (subscriber.stream.state, subscriber.stream.blocks.num_blocks) != (state, num_blocks):
        subscriber.poll(0.01)
        assert time.monotonic() < deadline_s, (subscriber.stream.state, subscriber.stream.blocks.num_blocks)


def join(publisher: Publisher, subscriber: EventSubscriber) -> None:
    """Publish until the subscription is in place."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not subscriber.stream.has_heard:
        publisher.publish()
        subscriber.poll(0.05)
        assert time.monotonic() < deadline_s, "no message came"


def test_a_late_listener_gets_the_beginning_and_later_losses_replayed(publisher: Publisher) -> None:
    publisher.publish(lose=True)
    subscriber = EventSubscriber(publisher.address, publisher.replay_address)
    try:
        join(publisher, subscriber)
        publisher.publish(lose=True)
        publisher.publish()
        follow(publisher, subscriber, StreamState.COMPLETE, len(publisher.log))
        assert subscriber.stream.gaps
    finally:
        subscriber.close()


def test_a_replay_that_nobody_answers_is_given_up(publisher: Publisher) -> None:
    publisher.publish(lose=True)
    nobody = f"tcp://127.0.0.1:{publisher.live_port}"  # not a replay socket
    subscriber = EventSubscriber(publisher.address, nobody, replay_timeout_s=0.1)
    try:
        join(publisher, subscriber)
        follow(publisher, subscriber, StreamState.DOUBTFUL, len(publisher.log) - subscriber.stream.gaps[0].last - 1)
        assert subscriber.stream.doubt.startswith("watching began late")
    finally:
        subscriber.close()


def test_a_listener_binds_where_the_server_connects() -> None:
    port = EventSubscriber(Address("tcp://127.0.0.1:*", bind=True), None)
    port.close()


def test_an_address_that_is_none_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="cannot connect to 'tcp//nonsense'"):
        EventSubscriber(Address("tcp//nonsense", bind=False), None)


def test_a_late_joiner_to_an_idle_server_learns_all_that_was_published(publisher) -> None:
    for _ in range(5):
        publisher.publish()
    subscriber = EventSubscriber(publisher.address, publisher.replay_address)
    try:
        give_up_s = time.monotonic() + DEADLINE_S
        while subscriber.stream.state is not StreamState.COMPLETE:
            assert time.monotonic() < give_up_s
            subscriber.poll(0.05)
        assert subscriber.stream.blocks.num_blocks == 5
    finally:
        subscriber.close()


def test_what_was_published_between_the_replay_and_the_subscription_is_asked_for_once_more(publisher) -> None:
    publisher.publish()
    subscriber = EventSubscriber(publisher.address, publisher.replay_address)
    try:
        follow(publisher, subscriber, StreamState.COMPLETE, 1)
        publisher.publish(lose=True)
        # The server is idle from here on: nothing live tells of the second message.
        follow(publisher, subscriber, StreamState.COMPLETE, 2)
        assert not subscriber.stream.has_heard
    finally:
        subscriber.close()
