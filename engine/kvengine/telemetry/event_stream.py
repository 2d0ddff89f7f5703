"""One publisher's event messages put in order: late joins, gaps, replays and restarts of the server.

Nothing here talks to a socket. A caller hands in what arrives on the live and the replay socket, sends the request that
`take_replay_request` gives out, and calls `give_up_replay` when no answer comes. Each data-parallel rank publishes its
own sequence, so each has a stream of its own.
"""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from kvengine.telemetry.cached_blocks import CachedBlocks
from kvengine.telemetry.kv_events import EventBatch, EventMessage, decode_message, replay_request

MAX_PENDING = 20_000
"""Live messages kept back while a replay is on its way: twice what servers buffer by default."""


class StreamState(StrEnum):
    """How far the folded state can be trusted."""

    SILENT = "silent"
    """No message yet. An idle server sends nothing, so this is no sign of death."""
    COMPLETE = "complete"
    """Every message since the server started, or since its cache was last cleared."""
    CATCHING_UP = "catching-up"
    """Messages are missing and a replay was asked for; newer ones wait."""
    DOUBTFUL = "doubtful"
    """Messages are lost for good; true again once the cache is cleared."""


class Lost(NamedTuple):
    """Messages that never came, first and last number."""

    first: int
    last: int


class EventStream:
    """The state of one publisher's cache, and what is known of its completeness.

    Args:
        has_replay: The server has a replay socket that the caller can ask.

    Attributes:
        blocks: The folded state; a new object after a restart of the server.
        doubt: Why the state is doubtful, in words; empty when it is not.
        gaps: Messages that were missing when a later one came, replayed or not, newest last.
        lost: Those of them that no replay brought.
        num_restarts: How often the server began anew under our eyes.
        num_unreadable: Messages that could not be decoded.
    """

    def __init__(self, *, has_replay: bool = True) -> None:
        self.blocks = CachedBlocks()
        self.doubt = ""
        self.gaps: deque[Lost] = deque(maxlen=1000)
        self.lost: deque[Lost] = deque(maxlen=1000)
        self.num_restarts = 0
        self.num_unreadable = 0
        self.last_unix_s: float | None = None
        self._has_replay = has_replay
        self._next_seq: int | None = None
        self._last_live: tuple[int, bytes] | None = None
        self._pending: deque[EventMessage] = deque()
        self._asked_from: int | None = None

    @property
    def state(self) -> StreamState:
        """How far the state can be trusted now."""
        if self._next_seq is None:
            return StreamState.SILENT
        if self._pending or self.is_waiting_for_replay:
            return StreamState.CATCHING_UP
        return StreamState.DOUBTFUL if self.doubt else StreamState.COMPLETE

    @property
    def next_seq(self) -> int | None:
        """Number of the first message not yet folded in; None before the first message."""
        return self._next_seq

    @property
    def is_waiting_for_replay(self) -> bool:
        """Whether a replay was asked for and has not ended."""
        return self._asked_from is not None

    @property
    def has_heard(self) -> bool:
        """Whether any live message has come."""
        return self._last_live is not None

    def ask_for_the_rest(self) -> list[bytes]:
        """The frames to send to the replay socket to learn what was published so far: an idle server says nothing."""
        self._asked_from = self._next_seq or 0
        return replay_request(self._asked_from)

    def take_replay_request(self) -> list[bytes] | None:
        """The frames to send to the replay socket; None while nothing needs to be asked. Given out once."""
        if not self._pending or self._asked_from is not None or self._next_seq is None:
            return None
        self._asked_from = self._next_seq
        return replay_request(self._asked_from)

    def take_live(self, frames: Sequence[bytes]) -> list[EventBatch]:
        """Take a message of the live socket.

        Returns:
            The batches folded into `blocks` by it, in order.
        """
        message = decode_message(frames)
        if message.seq is None:
            self.num_unreadable += not message.is_replay_end
            return []
        if self._has_gone_back(message.seq, frames[-1]):
            self._restart()
        elif self._last_live is not None and message.seq == self._last_live[0]:
            return []
        self._last_live = (message.seq, frames[-1])
        if self._next_seq is None:
            self._next_seq = 0
        if self._pending or message.seq > self._next_seq:
            return self._keep_back(message)
        # One that a replay brought already is skipped.
        return self._fold(message) if message.seq == self._next_seq else []

    def take_replay(self, frames: Sequence[bytes]) -> list[EventBatch]:
        """Take a message of the replay socket; batches that are not wanted (any more) are skipped."""
        message = decode_message(frames)
        if not self.is_waiting_for_replay:
            return []
        if message.is_replay_end:
            return self._end_replay()
        if message.seq is None:
            self.num_unreadable += 1
            return []
        return self._fold_from(message) + self._drain_up_to_gap()

    def give_up_replay(self) -> list[EventBatch]:
        """Go on without what the replay did not bring: it ended, or the server does not answer."""
        folded: list[EventBatch] = []
        while self._pending:
            folded += self._fold_from(self._pending.popleft())
        self._asked_from = None
        return folded

    def _end_replay(self) -> list[EventBatch]:
        """Ask again for a gap that opened later, as long as that gets on; else go on without."""
        if self._asked_from is not None and (self._next_seq or 0) > self._asked_from:
            self._asked_from = None
            return []
        return self.give_up_replay()

    def _keep_back(self, message: EventMessage) -> list[EventBatch]:
        """Hold a message until what comes before it is there, or is known to be lost."""
        expected = _seq(self._pending[-1]) + 1 if self._pending else self._next_seq or 0
        if _seq(message) > expected:
            self.gaps.append(Lost(expected, _seq(message) - 1))
        self._pending.append(message)
        if not self._has_replay or len(self._pending) > MAX_PENDING:
            return self.give_up_replay()
        return []

    def _drain_up_to_gap(self) -> list[EventBatch]:
        """Fold the waiting messages that follow without a gap; with the last of them a replay has done its work."""
        if not self._pending:
            return []
        folded: list[EventBatch] = []
        while self._pending and _seq(self._pending[0]) <= (self._next_seq or 0):
            folded += self._fold_from(self._pending.popleft())
        if not self._pending:
            self._asked_from = None
        return folded

    def _fold_from(self, message: EventMessage) -> list[EventBatch]:
        """Fold a message in; what lies between is lost, and what is folded already is skipped."""
        next_seq = self._next_seq or 0
        if _seq(message) < next_seq:
            return []
        if _seq(message) > next_seq:
            self.lost.append(Lost(next_seq, _seq(message) - 1))
            self.doubt = _missing(self.lost[-1])
        return self._fold(message)

    def _fold(self, message: EventMessage) -> list[EventBatch]:
        self._next_seq = _seq(message) + 1
        batch = message.batch
        if batch is None:
            self.num_unreadable += 1
            self.doubt = f"message {message.seq} could not be read"
            return []
        if self.blocks.apply(batch):
            self.doubt = ""
        if batch.num_malformed:
            self.doubt = f"message {message.seq} could be read in part only"
        self.last_unix_s = batch.unix_s
        return [batch]

    def _has_gone_back(self, seq: int, payload: bytes) -> bool:
        """Whether the live numbers went back, as they do when a server starts anew at 0."""
        if self._last_live is None:
            return False
        last_seq, last_payload = self._last_live
        return seq < last_seq or (seq == last_seq and payload != last_payload)

    def _restart(self) -> None:
        self.blocks = CachedBlocks()
        self.doubt = ""
        self.num_restarts += 1
        self._next_seq = None
        self._pending.clear()
        self._asked_from = None


def _seq(message: EventMessage) -> int:
    assert message.seq is not None, "only messages with a number are folded or kept"
    return message.seq


def _missing(lost: Lost) -> str:
    if lost.first == 0:
        return f"watching began late: the first {lost.last + 1} messages are gone"
    return (
        f"messages {lost.first} to {lost.last} are lost" if lost.last > lost.first else f"message {lost.first} is lost"
    )
