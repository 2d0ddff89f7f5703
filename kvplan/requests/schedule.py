"""Hands out the requests of a workload as they come due: at a step, at a time, or when a reply is there."""

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvengine.request import RequestId
from kvplan.requests.spec import RequestSpec


class Due(NamedTuple):
    """A request whose time has come."""

    spec: RequestSpec
    time_s: float | None
    """When it came; None if a step of the engine decided that."""
    history: Sequence[int]
    """All tokens of the request before, if this one repeats it."""


class _Entry(NamedTuple):
    time_s: float
    step: int
    order: int
    """Tells apart those of the same time, so that the rest is never compared."""
    due: Due


class Schedule:
    """The requests that are still to come.

    A request comes once its step and its time are reached and the request before it has ended. With `users`, no more
    sessions than that are open; the others wait in order.

    Args:
        requests: In order of arrival.
        users: Sessions that may be open at once; None for any number.
        think_s: Seconds from the end of a session to the next one of the same user.
    """

    def __init__(self, requests: Iterable[RequestSpec], *, users: int | None = None, think_s: float = 0.0) -> None:
        self._think_s = think_s
        self._coming: list[_Entry] = []
        """A heap."""
        self._followers: dict[RequestId, list[RequestSpec]] = {}
        self._sessions: deque[list[RequestSpec]] = deque()
        """First requests of the sessions that wait for a user."""
        self._open: Counter[int] = Counter()
        """Requests of each session that have not ended."""
        self._session_of: dict[RequestId, int] = {}
        self._num_pushed = 0
        self._has_users = users is not None
        firsts: dict[int, list[RequestSpec]] = {}
        for spec in requests:
            self._open[spec.session] += 1
            if spec.after is not None:
                self._followers.setdefault(spec.after, []).append(spec)
            elif users is None:
                self._push(spec, spec.arrival_s)
            else:
                firsts.setdefault(spec.session, []).append(spec)
        self._sessions.extend(firsts.values())
        for _ in range(users or 0):
            self._begin_session(0.0)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to come any more."""
        return not (self._coming or self._followers or self._sessions)

    @property
    def next_s(self) -> float | None:
        """When the next request comes whose time is known; None if others must end first, or nothing is left."""
        return self._coming[0].time_s if self._coming else None

    def take(self, *, step: int, now_s: float) -> list[Due]:
        """Take out the requests that have come due."""
        taken = []
        while self._coming and self._coming[0].time_s <= now_s and self._coming[0].step <= step:
            due = heapq.heappop(self._coming).due
            self._session_of[due.spec.request_id] = due.spec.session
            taken.append(due)
        return taken

    def ended(self, request_id: RequestId, now_s: float, *, tokens: Sequence[int] = ()) -> None:
        """Note that a request has ended, which may be what others wait for.

        Args:
            request_id: Of a request that was taken out.
            now_s: When it ended.
            tokens: Its prompt and output.
        """
        session = self._session_of.pop(request_id)
        for spec in self._followers.pop(request_id, ()):
            self._push(spec, max(spec.arrival_s, now_s + spec.think_s), tokens if spec.history_tokens else ())
        self._open[session] -= 1
        if not self._open[session]:
            del self._open[session]
            if self._has_users:
                self._begin_session(now_s + self._think_s)

    def _begin_session(self, time_s: float) -> None:
        if self._sessions:
            for spec in self._sessions.popleft():
                self._push(spec, max(spec.arrival_s, time_s))

    def _push(self, spec: RequestSpec, time_s: float, history: Sequence[int] = ()) -> None:
        heapq.heappush(self._coming, _Entry(time_s, spec.arrival_step, self._num_pushed, _due(spec, time_s, history)))
        self._num_pushed += 1


def _due(spec: RequestSpec, time_s: float, history: Sequence[int]) -> Due:
    return Due(spec, None if spec.arrival_step else time_s, history)
