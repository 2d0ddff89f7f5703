"""Requests that must have ended by a time or a step, the next to run out first."""

from heapq import heappop, heappush

from kvengine.request import Request, RequestStatus


class Deadlines:
    """Keeps requests by their deadlines; O(log n) an operation, and nothing while none is due.

    A request that ends by itself is only dropped when its deadline comes.
    """

    def __init__(self) -> None:
        self._by_time: list[tuple[float, int, Request]] = []
        self._by_step: list[tuple[int, int, Request]] = []
        self._num_added = 0
        """Tells apart those of the same deadline, so that requests are never compared."""

    def add(self, request: Request) -> None:
        """Take in a request; it need not have a deadline."""
        self._num_added += 1
        if request.deadline_s is not None:
            heappush(self._by_time, (request.deadline_s, self._num_added, request))
        if request.deadline_step is not None:
            heappush(self._by_step, (request.deadline_step, self._num_added, request))

    def take_expired(self, *, now_s: float, step: int) -> list[Request]:
        """Take out the unfinished requests whose deadline has come, in the order of their deadlines.

        Args:
            now_s: The time on the engine's clock.
            step: Number of the step that is to be taken next.
        """
        expired: dict[Request, None] = {}
        while self._by_time and self._by_time[0][0] <= now_s:
            expired[heappop(self._by_time)[2]] = None
        while self._by_step and self._by_step[0][0] <= step:
            expired[heappop(self._by_step)[2]] = None
        return [request for request in expired if request.status is not RequestStatus.FINISHED]
