"""The KV-cache events of a server's publishers, followed on a thread of their own."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event as ThreadEvent
from threading import Lock, Thread
from typing import TYPE_CHECKING

from kvengine.errors import KVError
from kvengine.telemetry.event_sources import Address
from kvengine.telemetry.event_stream import EventStream
from kvengine.telemetry.history import Event, EventKind
from kvtop.event_tree import tree_of_events
from kvtop.pacing import Pacer
from kvtop.prefix_tree import PrefixTree
from kvtop.server_view import CacheEvents, EventsPicture

if TYPE_CHECKING:
    from kvengine.telemetry.event_subscriber import EventSubscriber

POLL_S = 0.1
REPORT_S = 0.5
"""Least time between two reports."""
TREE_SHARE = 0.05
"""Of the time, at most, to work the prefix tree out: 100,000 cached blocks take 0.4 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTarget:
    """One publisher."""

    rank: int
    live: Address
    replay: str | None
    topic: str = ""


Report = Callable[[CacheEvents, Sequence[Event]], None]


class EventsFollower:
    """Listens to publishers, which may change, and reports what their caches hold.

    Args:
        report: Told the state and what happened since; called on the follower's thread.
        now_s: Time for what happened, from the same clock as other events.
    """

    def __init__(self, report: Report, now_s: Callable[[], float]) -> None:
        self._report = report
        self._now_s = now_s
        self._lock = Lock()
        self._wanted: tuple[Sequence[EventTarget], str] | None = None
        """Targets and note that were asked for last, until the thread has taken them up."""
        self._stopped = ThreadEvent()
        self._publishers: list[_Publisher] = []
        self._note = ""
        self._tree: PrefixTree | None = None
        self._tree_pace = Pacer(TREE_SHARE)
        self._thread = Thread(target=self._run, name="kv events", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def stop(self) -> None:
        """Hang up; returns at once."""
        self._stopped.set()

    def follow(self, targets: Sequence[EventTarget], note: str = "") -> None:
        """Listen to these publishers from now on; called on any thread.

        Args:
            targets: Publishers; those that are listened to already go on.
            note: Why there are none, in words.
        """
        with self._lock:
            self._wanted = targets, note

    def _run(self) -> None:
        reported_s, was_changed = 0.0, False
        while not self._stopped.is_set():
            was_changed |= self._take_up()
            if not self._publishers:
                self._stopped.wait(POLL_S)
            for publisher in self._publishers:
                was_changed |= publisher.poll(POLL_S / len(self._publishers))
            if was_changed and time.monotonic() - reported_s >= REPORT_S:
                self._tell()
                reported_s, was_changed = time.monotonic(), False
        for publisher in self._publishers:
            publisher.close()

    def _take_up(self) -> bool:
        """Do what `follow` asked for; whether anything was asked."""
        with self._lock:
            wanted, self._wanted = self._wanted, None
        if wanted is None:
            return False
        targets, self._note = wanted
        kept = {publisher.target: publisher for publisher in self._publishers}
        for target in kept.keys() - set(targets):
            kept[target].close()
        self._publishers = []
        for target in targets:
            publisher = kept.get(target)
            if publisher is None:
                try:
                    publisher = _Publisher.connect(target)
                except KVError as error:
                    self._note = f"{error.message}; {error.hint}" if error.hint else error.message
                    continue
            self._publishers.append(publisher)
        return True

    def _tell(self) -> None:
        if self._tree_pace.is_due:
            with self._tree_pace.work():
                named = [(f"engine {p.target.rank}", p.stream.blocks) for p in self._publishers]
                self._tree = tree_of_events(named) if named else None
        state = CacheEvents(
            sources=tuple(publisher.picture() for publisher in self._publishers), tree=self._tree, note=self._note
        )
        now_s = self._now_s()
        self._report(state, [event for publisher in self._publishers for event in publisher.take_events(now_s)])


class _Publisher:
    """One publisher that is listened to, and what of it has been told."""

    def __init__(self, target: EventTarget, subscriber: "EventSubscriber") -> None:
        self.target = target
        self._subscriber = subscriber
        self._told_removed = 0
        self._told_cleared = 0
        self._told_lost = 0
        self._told_restarts = 0

    @classmethod
    def connect(cls, target: EventTarget) -> "_Publisher":
        """Open the sockets.

        Raises:
            DeviceError: pyzmq is not installed.
            ConfigError: An address is none, or is taken.
        """
        from kvengine.telemetry.event_subscriber import EventSubscriber

        return cls(target, EventSubscriber(target.live, target.replay, topic=target.topic))

    @property
    def stream(self) -> EventStream:
        """What its messages were folded into."""
        return self._subscriber.stream

    def poll(self, timeout_s: float) -> bool:
        """Take messages; whether there were any."""
        before = self.stream.state, self.stream.num_unreadable
        return bool(self._subscriber.poll(timeout_s)) or before != (self.stream.state, self.stream.num_unreadable)

    def close(self) -> None:
        """Hang up."""
        self._subscriber.close()

    def picture(self) -> EventsPicture:
        """What is known now."""
        stream, blocks = self.stream, self.stream.blocks
        return EventsPicture(
            rank=self.target.rank,
            address=self.target.live.address,
            state=stream.state,
            doubt=stream.doubt,
            num_blocks=blocks.num_blocks,
            num_distinct=blocks.num_distinct,
            num_orphans=blocks.num_orphans,
            stored_blocks=blocks.totals.stored_blocks,
            removed_blocks=blocks.totals.removed_blocks,
            num_lost=sum(lost.last - lost.first + 1 for lost in stream.lost),
            num_restarts=stream.num_restarts,
            num_unreadable=stream.num_unreadable,
            next_seq=stream.next_seq,
            last_unix_s=stream.last_unix_s,
        )

    def take_events(self, now_s: float) -> list[Event]:
        """What happened since the last call, as lines of a log."""
        stream, totals = self.stream, self.stream.blocks.totals
        events: list[Event] = []

        def add(kind: EventKind, amount: int, reason: str = "") -> None:
            events.append(Event(step=0, time_s=now_s, kind=kind, request_id="", amount=amount, reason=reason))

        where = f"events of engine {self.target.rank}"
        if stream.num_restarts > self._told_restarts:
            add(EventKind.SOURCE, 0, f"{where}: the server started anew")
            self._told_restarts = stream.num_restarts
            self._told_removed = self._told_cleared = 0
        if len(stream.lost) > self._told_lost:
            first, last = stream.lost[-1]
            lost = f"messages {first} to {last}" if last > first else f"message {first}"
            add(EventKind.SOURCE, 0, f"{where}: {lost} never came")
        self._told_lost = len(stream.lost)
        num_cleared = totals.events["AllBlocksCleared"]
        if num_cleared > self._told_cleared:
            add(EventKind.CLEAR, num_cleared - self._told_cleared)
        self._told_cleared = num_cleared
        if totals.removed_blocks > self._told_removed:
            add(EventKind.EVICT, totals.removed_blocks - self._told_removed)
        self._told_removed = totals.removed_blocks
        return events
