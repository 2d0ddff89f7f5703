"""Requests that are not running, in the order in which they will be admitted."""

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Protocol

from kvengine.request import Request, RequestStatus


class WaitingQueue(Protocol):
    """Requests that are not running, the next to be admitted first.

    An aborted request is only dropped when it comes to the front, or when more than half of the queue is such
    requests, so that an abort costs the same however long the queue is.
    """

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...

    def add(self, request: Request) -> None:
        """Take in a request that arrived."""

    def put_back(self, request: Request) -> None:
        """Take in a request that was preempted."""

    def peek(self) -> Request | None:
        """The next request; None if there is none."""

    def pop(self) -> Request:
        """Take out the request that `peek` just returned."""

    def note_abort(self) -> None:
        """Take note that a request in the queue has just become `FINISHED`."""


def _is_live(request: Request) -> bool:
    return request.status is not RequestStatus.FINISHED


class FcfsQueue:
    """First come, first served; a preempted request goes to the front."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()
        self._num_aborted = 0

    def __len__(self) -> int:
        return len(self._requests) - self._num_aborted

    def __iter__(self) -> Iterator[Request]:
        return filter(_is_live, self._requests)

    def add(self, request: Request) -> None:
        """Take in a request that arrived."""
        self._requests.append(request)

    def put_back(self, request: Request) -> None:
        """Take in a request that was preempted."""
        self._requests.appendleft(request)

    def peek(self) -> Request | None:
        """The next request; None if there is none."""
        requests = self._requests
        while requests:
            if _is_live(requests[0]):
                return requests[0]
            requests.popleft()
            self._num_aborted -= 1
        return None

    def pop(self) -> Request:
        """Take out the request that `peek` just returned."""
        return self._requests.popleft()

    def note_abort(self) -> None:
        """Take note that a request in the queue has just become `FINISHED`."""
        self._num_aborted += 1
        if self._num_aborted > len(self._requests) // 2:
            self._requests = deque(self)
            self._num_aborted = 0


class PriorityQueue:
    """The smallest priority number first, ties by arrival; a preempted request keeps both."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Request]] = []
        self._num_aborted = 0

    def __len__(self) -> int:
        return len(self._heap) - self._num_aborted

    def __iter__(self) -> Iterator[Request]:
        return (request for _, _, request in sorted(self._heap) if _is_live(request))

    def add(self, request: Request) -> None:
        """Take in a request that arrived."""
        heappush(self._heap, (request.priority, request.arrival_index, request))

    put_back = add

    def peek(self) -> Request | None:
        """The next request; None if there is none."""
        heap = self._heap
        while heap:
            if _is_live(heap[0][2]):
                return heap[0][2]
            heappop(heap)
            self._num_aborted -= 1
        return None

    def pop(self) -> Request:
        """Take out the request that `peek` just returned."""
        return heappop(self._heap)[2]

    def note_abort(self) -> None:
        """Take note that a request in the queue has just become `FINISHED`."""
        self._num_aborted += 1
        if self._num_aborted > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if _is_live(entry[2])]
            heapify(self._heap)
            self._num_aborted = 0
