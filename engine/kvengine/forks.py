"""Forks: several sequences that go on from what one request has computed.

                      parent          child
    before            [10, 11, 12]                      35 tokens in blocks of 16, the last one written to slot 2
    fork              [10, 11, 12]    [10, 11, 12]      each block has one owner more, nothing is copied
    parent writes     [10, 11, 13]    [10, 11, 12]      12 is copied to 13 before the step, then token 35 goes into 13
    child writes      [10, 11, 13]    [10, 11, 12]      the last to hold 12 writes in place

Parallel sampling (`SamplingParams.n`) forks by itself when the first token is sampled; a beam search calls
`Scheduler.fork` between steps, with the token that each new beam has in place of its parent's last one. vLLM serves
n > 1 as separate requests that hit each other's prefix; there the rest of the prompt behind its last whole block, and
without prefix caching all of it, is computed n times.
"""

from collections.abc import Callable, Mapping, Sequence

from kvengine.errors import ConfigError
from kvengine.feasibility import MAX_TOKEN_ID
from kvengine.kv_cache_manager import KVCacheManager
from kvengine.request import Request, RequestId, RequestStatus, reason_to_end
from kvengine.scheduler_output import ScheduledRequest, SchedulerOutput
from kvengine.scheduling.queues import RequestQueues


def check_fork(
    parent: Request,
    child_ids: Sequence[RequestId],
    last_token_ids: Sequence[int] | None,
    is_taken: Callable[[RequestId], bool],
) -> None:
    """Refuse a fork that cannot be.

    Args:
        parent: The request to fork.
        child_ids: Ids of the children.
        last_token_ids: What each has in place of the parent's last token; None for the same.
        is_taken: Whether an id is in use.

    Raises:
        ConfigError: What is wrong, with the ids and tokens given.
    """
    name = parent.request_id
    for index, child_id in enumerate(child_ids):
        if is_taken(child_id) or child_id in child_ids[:index]:
            raise ConfigError(f"fork of {name!r}: request id {child_id!r} is already in use")
    if last_token_ids is None:
        return
    if len(last_token_ids) != len(child_ids):
        raise ConfigError(
            f"fork of {name!r}: expected a last token for each of {len(child_ids)} children, got {len(last_token_ids)}"
        )
    if not parent.num_output_tokens:
        raise ConfigError(f"fork of {name!r}: it has no output yet, so no token of it can be replaced")
    for token in last_token_ids:
        if not 0 <= token <= MAX_TOKEN_ID:
            raise ConfigError(f"fork of {name!r}: expected token ids from 0 to {MAX_TOKEN_ID}, got {token}")


class PendingSamples:
    """Requests of parallel sampling without a token yet, and the ids that their further sequences will have."""

    def __init__(self) -> None:
        self._requests: set[RequestId] = set()
        self._reserved: set[RequestId] = set()

    def __bool__(self) -> bool:
        return bool(self._requests)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._requests

    def reserves(self, request_id: RequestId) -> bool:
        """Whether a sequence will have this id."""
        return request_id in self._reserved

    def add(self, request: Request) -> None:
        """Note a request that was queued, if several sequences are to be sampled from it."""
        if request.sampling.n > 1:
            self._requests.add(request.request_id)
            self._reserved.update(request.sample_ids)

    def remove(self, request: Request) -> None:
        """Note that a request has been sampled from, or ended before."""
        if request.request_id in self._requests:
            self._requests.remove(request.request_id)
            self._reserved.difference_update(request.sample_ids)

    def due(self, output: SchedulerOutput) -> list[ScheduledRequest]:
        """What of a step reaches the first token of such a request."""
        return [item for item in output.scheduled if item.request.request_id in self._requests and item.samples]


class Forks:
    """Makes further requests of running ones.

    Args:
        max_num_seqs: Most requests in the running list.
        kv_cache: The memory, if blocks can be shared; else the children's tokens are computed anew.
        queues: Where the children go.
    """

    def __init__(self, max_num_seqs: int, kv_cache: KVCacheManager | None, queues: RequestQueues) -> None:
        self._max_num_seqs = max_num_seqs
        self._kv_cache = kv_cache
        self._queues = queues
        self._pending = PendingSamples()
        self._forked: list[Request] = []

    @property
    def pending(self) -> PendingSamples:
        """Requests that will fork by themselves."""
        return self._pending

    def fork(
        self, parent: Request, child_ids: Sequence[RequestId], last_token_ids: Sequence[int] | None
    ) -> list[Request]:
        """Fork a running request; see `Scheduler.fork`."""
        children = [parent.fork(child_id, index) for index, child_id in enumerate(child_ids, start=1)]
        if last_token_ids is not None:
            for child, token in zip(children, last_token_ids, strict=True):
                child.all_token_ids[-1] = token
        self._place(parent, children)
        return children

    def fork_samples(self, output: SchedulerOutput, sampled: Mapping[RequestId, int]) -> list[Request]:
        """Fork the requests of parallel sampling whose first token a step samples; the children that end with it."""
        finished: list[Request] = []
        for item in self._pending.due(output):
            request = item.request
            self._pending.remove(request)
            request.num_computed_tokens = item.start + item.num_tokens
            children = [request.fork(child_id, index) for index, child_id in enumerate(request.sample_ids, start=1)]
            for child in children:
                child.append_output(sampled[child.request_id])
            self._place(request, children)
            finished += [child for child in children if child.status is RequestStatus.FINISHED]
        return finished

    def take_forked(self) -> list[Request]:
        """Requests that came by a fork since the last call."""
        forked, self._forked = self._forked, []
        return forked

    def _place(self, parent: Request, children: Sequence[Request]) -> None:
        """Let those that go on share the parent's blocks as long as there are places; the others wait in front."""
        left_over: list[Request] = []
        for child in children:
            self._queues.number(child)
            self._forked.append(child)
            child.finish_reason = reason_to_end(child) if child.num_output_tokens else None
            if child.finish_reason is not None:
                child.status = RequestStatus.FINISHED
                continue
            self._queues.requests[child.request_id] = child
            if self._kv_cache is not None and len(self._queues.running) < self._max_num_seqs:
                self._kv_cache.fork(parent, child)
                child.num_computed_tokens = parent.num_computed_tokens
                child.status = RequestStatus.RUNNING
                self._queues.running.append(child)
            else:
                left_over.append(child)
        for child in reversed(left_over):
            self._queues.waiting.put_back(child)


class SampleFamilies:
    """Which unfinished sequences came by parallel sampling from which request."""

    def __init__(self) -> None:
        self._members: dict[RequestId, list[Request]] = {}

    def add(self, children: Sequence[Request]) -> None:
        """Note sequences that have just parted from their parents."""
        for child in children:
            if child.parent_id is not None and child.status is not RequestStatus.FINISHED:
                self._members.setdefault(child.parent_id, []).append(child)

    def members(self, request_id: RequestId) -> list[Request]:
        """The unfinished sequences that parted from a request, which may have ended itself."""
        return list(self._members.get(request_id, ()))

    def remove(self, request: Request) -> None:
        """Note that a request ended."""
        family = self._members.get(request.parent_id) if request.parent_id is not None else None
        if family is not None and request in family:
            family.remove(request)
            if not family and request.parent_id is not None:
                del self._members[request.parent_id]
