import pytest

from kvengine.request import Request, RequestStatus
from kvengine.waiting_queue import FcfsQueue, PriorityQueue, WaitingQueue
from tests.builders import a_request


def names(queue: WaitingQueue) -> list[str]:
    return [request.request_id for request in queue]


def fill(queue: WaitingQueue, *requests: Request) -> None:
    for index, request in enumerate(requests):
        request.arrival_index = index
        queue.add(request)


def abort(queue: WaitingQueue, request: Request) -> None:
    request.status = RequestStatus.FINISHED
    queue.note_abort()


@pytest.fixture(params=[FcfsQueue, PriorityQueue])
def queue(request: pytest.FixtureRequest) -> WaitingQueue:
    built: WaitingQueue = request.param()
    return built


def test_equal_priorities_leave_in_order_of_arrival(queue: WaitingQueue) -> None:
    fill(queue, a_request("a"), a_request("b"), a_request("c"))
    assert names(queue) == ["a", "b", "c"]
    assert queue.peek() is queue.pop()
    assert names(queue) == ["b", "c"]


def test_an_empty_queue_has_no_next(queue: WaitingQueue) -> None:
    assert queue.peek() is None
    assert len(queue) == 0


def test_a_preempted_request_comes_back_before_those_that_arrived_later(queue: WaitingQueue) -> None:
    fill(queue, a_request("a"), a_request("b"))
    first = queue.pop()
    queue.put_back(first)
    assert names(queue) == ["a", "b"]


def test_aborted_requests_are_never_seen_again(queue: WaitingQueue) -> None:
    requests = [a_request(name) for name in "abcdef"]
    fill(queue, *requests)
    left = list("abcdef")
    for index in (0, 3, 1, 5, 2, 4):
        abort(queue, requests[index])
        left.remove("abcdef"[index])
        assert names(queue) == left
        assert len(queue) == len(left)
        first = queue.peek()
        assert (first.request_id if first else None) == (left[0] if left else None)


def test_requests_taken_out_between_aborts_keep_the_count_right(queue: WaitingQueue) -> None:
    requests = [a_request(name) for name in "abcde"]
    fill(queue, *requests)
    abort(queue, requests[0])
    assert queue.peek() is requests[1]
    assert queue.pop() is requests[1]
    abort(queue, requests[3])
    assert names(queue) == ["c", "e"]
    assert len(queue) == 2


def test_the_smallest_priority_number_goes_first() -> None:
    queue = PriorityQueue()
    fill(queue, a_request("low", priority=9), a_request("high", priority=-1), a_request("middle", priority=3))
    assert names(queue) == ["high", "middle", "low"]
    assert [queue.pop().request_id for _ in range(3)] == ["high", "middle", "low"]
