"""What to compute next: continuous batching, chunked prefill, admission and preemption.

The decisions are those of vLLM 0.32's synchronous V1 scheduler, to the block id. One thing is different on purpose:
when a request is preempted in the step in which it was scheduled, the blocks that entered the prefix cache for it in
this step leave it again, since no forward pass will write them.
"""

from collections.abc import Iterator, Mapping, Sequence

from kvengine.block_pool import BlockId
from kvengine.config import EngineConfig, SchedulingPolicy
from kvengine.errors import CapacityError, ConfigError
from kvengine.feasibility import check_config, check_request, max_num_tokens, never_fits
from kvengine.kv_cache_manager import KVCacheManager
from kvengine.request import FinishReason, Request, RequestId, RequestStatus
from kvengine.scheduler_output import Admission, ScheduledRequest, SchedulerOutput
from kvengine.waiting_queue import FcfsQueue, PriorityQueue, WaitingQueue

# What `ScheduledRequest(...)` comes to, without 0.2 us of a NamedTuple's own constructor: a fifth of a decode's share.
_tuple_as = tuple.__new__


class _Step:
    """What one step has decided so far."""

    __slots__ = ("budget", "first_admissions", "preempted", "resumptions", "scheduled")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.scheduled: list[ScheduledRequest] = []
        self.preempted: list[RequestId] = []
        self.first_admissions: list[Admission] = []
        self.resumptions: list[Admission] = []


class Scheduler:
    """Decides step by step which requests compute how many tokens, and in which blocks.

    The running list keeps the order of admission. Running requests are served first, in that order; waiting ones are
    admitted behind them, strictly in queue order, and only in a step without preemptions.

    Raises:
        ConfigError: A limit is out of range.
    """

    def __init__(self, config: EngineConfig) -> None:
        check_config(config)
        self._config = config
        self._limits = config.scheduler
        self._by_priority = config.scheduler.policy is SchedulingPolicy.PRIORITY
        self._watermark_blocks = int(config.scheduler.watermark * config.num_blocks)
        self._kv_cache = KVCacheManager(
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
        )
        self._requests: dict[RequestId, Request] = {}
        self._running: list[Request] = []
        self._waiting: WaitingQueue = PriorityQueue() if self._by_priority else FcfsQueue()
        self._num_arrived = 0
        self._num_steps = 0

    @property
    def kv_cache(self) -> KVCacheManager:
        """The blocks of all running requests."""
        return self._kv_cache

    @property
    def running(self) -> Sequence[Request]:
        """Admitted requests in running order; a live view, not to be changed."""
        return self._running

    @property
    def waiting(self) -> Iterator[Request]:
        """Requests that are not admitted, in queue order."""
        return iter(self._waiting)

    @property
    def num_waiting(self) -> int:
        """How many requests are not admitted."""
        return len(self._waiting)

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is running or waiting."""
        return bool(self._requests)

    def add_request(self, request: Request) -> None:
        """Put a new request into the waiting queue.

        Raises:
            ConfigError: Its id is in use, or it has no prompt or asks for no output.
            CapacityError: Its prompt leaves no room for output within `max_model_len`.
        """
        if request.request_id in self._requests:
            raise ConfigError(f"request id {request.request_id!r} is already in use")
        check_request(request, self._config)
        request.max_num_tokens = max_num_tokens(request, self._config)
        request.arrival_index = self._num_arrived
        self._num_arrived += 1
        self._requests[request.request_id] = request
        self._waiting.add(request)

    def abort_request(self, request_id: RequestId) -> Request | None:
        """End a request at once and free its blocks; None if it is unknown or has already ended."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        was_running = request.status is RequestStatus.RUNNING
        if was_running:
            self._running.remove(request)
        self._finish(request, FinishReason.ABORT, has_blocks=was_running)
        if not was_running:
            self._waiting.note_abort()
        return request

    def never_fits(self, request: Request) -> CapacityError | None:
        """Why a request could never be finished, even alone in an empty pool; None if it could.

        Such a request is accepted and waits for ever, as in vLLM; a caller that must end asks first.
        """
        return never_fits(request, self._config)

    def fits_alone(self, request: Request) -> bool:
        """Whether a request could be finished if it had the whole pool; see `never_fits`."""
        return self.never_fits(request) is None

    def schedule(self) -> SchedulerOutput:
        """Decide the next step; `update` must follow before the next call."""
        step = _Step(self._limits.max_num_batched_tokens)
        self._schedule_running(step)
        if not step.preempted:
            self._admit_waiting(step)
        output = SchedulerOutput(
            step=self._num_steps,
            scheduled=step.scheduled,
            admitted=step.first_admissions + step.resumptions,
            preempted=step.preempted,
            block_copies=(),
            num_tokens=self._limits.max_num_batched_tokens - step.budget,
        )
        self._num_steps += 1
        return output

    def update(self, output: SchedulerOutput, sampled: Mapping[RequestId, int]) -> list[Request]:
        """Take in what a step computed.

        Args:
            output: What `schedule` returned last.
            sampled: The next token of each request whose `ScheduledRequest.samples` is true.

        Returns:
            The requests that ended, in the order in which they were scheduled; their blocks are free.
        """
        finished: list[Request] = []
        for request, start, num_tokens, _, _ in output.scheduled:
            if request.status is not RequestStatus.RUNNING:
                continue  # aborted while the step ran
            tokens = request.all_token_ids
            request.num_computed_tokens = num_computed = start + num_tokens
            if num_computed < len(tokens):
                continue
            token = sampled[request.request_id]
            tokens.append(token)
            if token in request.sampling.stop_token_ids:
                self._finish(request, FinishReason.STOP, has_blocks=True)
            elif len(tokens) >= request.max_num_tokens:
                self._finish(request, FinishReason.LENGTH, has_blocks=True)
            else:
                continue
            finished.append(request)
        if finished:
            self._running = [request for request in self._running if request.status is RequestStatus.RUNNING]
        return finished

    def _schedule_running(self, step: _Step) -> None:
        # The loop that every decode of every step goes through: no calls on its common path.
        running, scheduled, tables = self._running, step.scheduled, self._kv_cache.tables
        index = 0
        while index < len(running) and step.budget > 0:
            request = running[index]
            start = request.num_computed_tokens
            num_tokens = len(request.all_token_ids) - start
            if num_tokens > 1:
                num_tokens = min(self._num_wanted(num_tokens), step.budget)
            table = tables[request.request_id]
            new_blocks: Sequence[BlockId] = ()
            if start + num_tokens >= table.quiet_until:
                room = self._make_room(request, start + num_tokens, step)
                if room is None:
                    return
                new_blocks = room
                if step.preempted:
                    index = running.index(request)
            scheduled.append(_tuple_as(ScheduledRequest, (request, start, num_tokens, table.block_ids, new_blocks)))
            step.budget -= num_tokens
            index += 1

    def _num_wanted(self, num_known: int) -> int:
        """How many of a request's known but not computed tokens it may ask for in one step."""
        threshold = self._limits.long_prefill_token_threshold
        if 0 < threshold < num_known and len(self._requests) > 1:
            return threshold
        return num_known

    def _make_room(self, request: Request, num_tokens: int, step: _Step) -> Sequence[BlockId] | None:
        """Get slots for a running request, preempting others until there are enough; None if it went itself."""
        while (new_blocks := self._kv_cache.try_extend(request, num_tokens)) is None:
            victim = self._choose_victim()
            self._preempt(victim, step)
            if victim is request:
                return None
        return new_blocks

    def _choose_victim(self) -> Request:
        if self._by_priority:
            return max(self._running, key=lambda request: (request.priority, request.arrival_index))
        return self._running[-1]

    def _preempt(self, victim: Request, step: _Step) -> None:
        """Free a running request's blocks and let it wait; what this step had planned for it is undone."""
        self._running.remove(victim)
        for index, item in enumerate(step.scheduled):
            if item.request is victim:
                step.budget += item.num_tokens
                del step.scheduled[index]
                break
        self._kv_cache.free(victim, victim.num_computed_tokens)
        victim.status = RequestStatus.PREEMPTED
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self._waiting.put_back(victim)
        step.preempted.append(victim.request_id)

    def _admit_waiting(self, step: _Step) -> None:
        while step.budget > 0 and len(self._running) < self._limits.max_num_seqs:
            request = self._waiting.peek()
            if request is None or not self._try_admit(request, step):
                return

    def _try_admit(self, request: Request, step: _Step) -> bool:
        limits = self._limits
        hit = self._kv_cache.find_prefix(request)
        start = hit.num_tokens
        num_tokens = self._num_wanted(request.num_tokens - start)
        if num_tokens > step.budget:
            if not limits.enable_chunked_prefill:
                return False
            num_tokens = step.budget
        new_blocks = self._kv_cache.try_admit(
            request,
            hit,
            start + num_tokens,
            gate_tokens=request.num_tokens if limits.reserve_full_isl else 0,
            spare_blocks=self._watermark_blocks if self._running else 0,
        )
        if new_blocks is None:
            return False
        self._start(self._waiting.pop(), start, step)
        block_ids = self._kv_cache.block_ids(request.request_id)
        step.scheduled.append(ScheduledRequest(request, start, num_tokens, block_ids, new_blocks))
        step.budget -= num_tokens
        return True

    def _start(self, request: Request, num_cached_tokens: int, step: _Step) -> None:
        resumed = request.status is RequestStatus.PREEMPTED
        admissions = step.resumptions if resumed else step.first_admissions
        admissions.append(Admission(request.request_id, num_cached_tokens, resumed))
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = request.num_cached_tokens = num_cached_tokens
        self._running.append(request)

    def _finish(self, request: Request, reason: FinishReason, *, has_blocks: bool) -> None:
        if has_blocks:
            self._kv_cache.free(request, request.num_computed_tokens)
        self._kv_cache.forget(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        del self._requests[request.request_id]

    def check_invariants(self) -> None:
        """Every request is in one place, with the status and the blocks that belong there."""
        self._kv_cache.check_invariants()
        waiting = list(self._waiting)
        assert len(waiting) == len(self._waiting), (
            f"queue counts {len(self._waiting)} and lists {len(waiting)} requests"
        )
        placed = [request.request_id for request in [*self._running, *waiting]]
        assert len(set(placed)) == len(placed), f"a request is in two places: {placed}"
        assert set(placed) == set(self._requests), f"placed {sorted(placed)}, known {sorted(self._requests)}"
        assert len(self._running) <= self._limits.max_num_seqs, f"{len(self._running)} requests are running"
        for request in self._running:
            assert request.status is RequestStatus.RUNNING, f"{request.request_id} runs as {request.status}"
            num_slots = len(self._kv_cache.block_ids(request.request_id)) * self._config.block_size
            assert request.num_computed_tokens <= num_slots, (
                f"{request.request_id} has {request.num_computed_tokens} tokens in {num_slots} slots"
            )
        for request in waiting:
            assert request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED), (
                f"{request.request_id} waits as {request.status}"
            )
            assert request.num_computed_tokens == 0, f"{request.request_id} waits with computed tokens"
