"""Who runs and who waits."""

from kvengine.request import Request, RequestId, RequestStatus
from kvengine.waiting_queue import FcfsQueue, PriorityQueue, WaitingQueue


class RequestQueues:
    """The unfinished requests: each is in the running list or in the waiting queue.

    Args:
        by_priority: Whether the more urgent wait in front.

    Attributes:
        requests: All of them, by id.
        running: In the order of admission; it stays the same list.
        waiting: In the order in which they will be admitted.
    """

    def __init__(self, *, by_priority: bool) -> None:
        self.requests: dict[RequestId, Request] = {}
        self.running: list[Request] = []
        self.waiting: WaitingQueue = PriorityQueue() if by_priority else FcfsQueue()
        self._num_arrived = 0

    def number(self, request: Request) -> None:
        """Give a request its place in the order of arrival."""
        request.arrival_index = self._num_arrived
        self._num_arrived += 1

    def arrive(self, request: Request) -> None:
        """Take in a new request, which waits."""
        self.number(request)
        self.requests[request.request_id] = request
        self.waiting.add(request)

    def find_running(self, request_id: RequestId) -> Request | None:
        """The request of this id, if it runs."""
        request = self.requests.get(request_id)
        return request if request is not None and request.status is RequestStatus.RUNNING else None

    def drop_finished(self) -> None:
        """Take those that have ended out of the running list."""
        self.running[:] = [request for request in self.running if request.status is RequestStatus.RUNNING]

    def check_invariants(self) -> None:
        """Every request is in one place, with the status that belongs there."""
        waiting = list(self.waiting)
        assert len(waiting) == len(self.waiting), f"queue counts {len(self.waiting)} and lists {len(waiting)} requests"
        placed = [request.request_id for request in [*self.running, *waiting]]
        assert len(set(placed)) == len(placed), f"a request is in two places: {placed}"
        assert set(placed) == set(self.requests), f"placed {sorted(placed)}, known {sorted(self.requests)}"
        for request in self.running:
            assert request.status is RequestStatus.RUNNING, f"{request.request_id} runs as {request.status}"
        for request in waiting:
            assert request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED), (
                f"{request.request_id} waits as {request.status}"
            )
            assert request.num_computed_tokens == 0, f"{request.request_id} waits with computed tokens"
