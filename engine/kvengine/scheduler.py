"""What to compute next: continuous batching, chunked prefill, admission and preemption.

The decisions are those of vLLM 0.32's synchronous V1 scheduler, to the block id. What differs on purpose keeps tokens
from attending to what was never written:

* When a request is preempted in the step in which it was scheduled, the blocks that entered the prefix cache for it in
  this step leave it again.
* Chunks are aligned to the blocks of states, even if another group has smaller ones.
* A hit that ends inside a block which this step has yet to write waits for the next step, since the block would be
  copied before it is written.
* A chunk of chunked-local attention that begins inside a block is granted no part of the chunk before it unseen.
"""

from collections.abc import Iterator, Mapping, Sequence

from kvengine.allocators.protocol import KVMemory
from kvengine.block_pool import BlockId, BlockPool
from kvengine.config import EngineConfig, MisfitPolicy, PreemptionMode, SchedulingPolicy
from kvengine.errors import CapacityError, ConfigError, RejectedError
from kvengine.feasibility import check_config, check_request, max_num_tokens, never_fits
from kvengine.forks import PendingSamples, check_fork, reason_to_end
from kvengine.kv_cache_manager import KVCacheManager, NewBlocks
from kvengine.kv_groups.chunk_ends import chunk_ends_for
from kvengine.request import FinishReason, Request, RequestId, RequestStatus
from kvengine.scheduler_output import Admission, GroupBlocks, ScheduledRequest, SchedulerOutput
from kvengine.transfer_pins import Transfer, TransferHandle
from kvengine.victims import victim_chooser
from kvengine.waiting_queue import FcfsQueue, PriorityQueue, WaitingQueue

# What `ScheduledRequest(...)` comes to, without 0.2 us of a NamedTuple's own constructor: a fifth of a decode's share.
_tuple_as = tuple.__new__


class _Step:
    """What one step has decided so far."""

    __slots__ = ("budget", "first_admissions", "new_blocks", "preempted", "resumptions", "scheduled")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.scheduled: list[ScheduledRequest] = []
        self.new_blocks: dict[RequestId, NewBlocks] = {}
        """Of requests that took any in some group."""
        self.preempted: list[RequestId] = []
        self.first_admissions: list[Admission] = []
        self.resumptions: list[Admission] = []


class Scheduler:
    """Decides step by step which requests compute how many tokens, and in which blocks.

    The running list keeps the order of admission. Running requests are served first, in that order; waiting ones are
    admitted behind them, strictly in queue order, and only in a step without preemptions.

    Args:
        config: Pool and limits.
        memory: What hands out slots; blocks as tokens come if not given.

    Raises:
        ConfigError: A limit is out of range.
    """

    def __init__(self, config: EngineConfig, *, memory: KVMemory | None = None) -> None:
        check_config(config)
        self._config = config
        self._limits = config.scheduler
        self._by_priority = config.scheduler.policy is SchedulingPolicy.PRIORITY
        self._watermark_blocks = int(config.scheduler.watermark * config.num_blocks)
        self._reserves_whole_prompts = config.reserves_whole_prompts
        self._kv_cache: KVMemory = KVCacheManager(config) if memory is None else memory
        self._paged = self._kv_cache if isinstance(self._kv_cache, KVCacheManager) else None
        pool = self._kv_cache.pool
        self._block_pool = pool if isinstance(pool, BlockPool) else None
        self._swapping = self._paged_memory("swap") if config.preemption is PreemptionMode.SWAP else None
        self._choose_victim = victim_chooser(config.scheduler.chosen_victim_policy, self._kv_cache)
        self._has_groups = len(config.kv_groups) > 1
        self._chunk_ends = chunk_ends_for(self._kv_cache.sizes, config.scheduler)
        self._requests: dict[RequestId, Request] = {}
        self._drafting: set[RequestId] = set()
        """Requests with drafts for their next step."""
        self._samples = PendingSamples()
        self._forked: list[Request] = []
        self._step_is_open = False
        self._running: list[Request] = []
        self._waiting: WaitingQueue = PriorityQueue() if self._by_priority else FcfsQueue()
        self._num_arrived = 0
        self._num_steps = 0
        self._to_preempt: list[Request] = []
        self._takes_blocks_by_force = False

    @property
    def kv_cache(self) -> KVMemory:
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
            RejectedError: Its prompt leaves no room for output within `max_model_len`; unless misfits are to stall,
                it could never be finished; or the queue is full.
        """
        for request_id in (request.request_id, *request.sample_ids):
            if self._is_in_use(request_id):
                raise ConfigError(f"request id {request_id!r} is already in use")
        check_request(request, self._config)
        self._refuse_if_asked(request)
        request.max_num_tokens = max_num_tokens(request, self._config)
        request.arrival_index = self._num_arrived
        self._num_arrived += 1
        self._requests[request.request_id] = request
        self._samples.add(request)
        self._waiting.add(request)

    def fork(
        self, request_id: RequestId, child_ids: Sequence[RequestId], last_token_ids: Sequence[int] | None = None
    ) -> list[Request]:
        """Let further requests go on from what a running one has computed, sharing its blocks; see `forks`.

        Call it between `update` and `schedule`. The children stand last in the running list; those for which
        `max_num_seqs` leaves no place wait at the front of the queue, and start from what is cached of them.

        Args:
            request_id: The parent, which goes on as it is.
            child_ids: Ids of the children.
            last_token_ids: For each child the output token that it has in place of the parent's last one, which is not
                computed yet; None for the same. A child that ends with it holds no blocks and is `FINISHED`.

        Returns:
            The children, in the order given.

        Raises:
            ConfigError: The parent does not run, an id is in use, a token cannot be, or a step is being computed.
        """
        self._paged_memory("fork")
        parent = self._between_steps(request_id)
        check_fork(parent, child_ids, last_token_ids, self._is_in_use)
        children = [parent.fork(child_id, index) for index, child_id in enumerate(child_ids, start=1)]
        if last_token_ids is not None:
            for child, token in zip(children, last_token_ids, strict=True):
                child.all_token_ids[-1] = token
        self._place(parent, children)
        return children

    def take_forked(self) -> list[Request]:
        """Requests that came by a fork since the last call."""
        forked, self._forked = self._forked, []
        return forked

    def pin(self, request_id: RequestId) -> Transfer:
        """Keep all that a running request has computed until `unpin`, whatever becomes of the request.

        Call it between `update` and `schedule`. The blocks are not written to while they are pinned.

        Raises:
            ConfigError: The request does not run, or a step is being computed.
        """
        return self._paged_memory("pin").pin(self._between_steps(request_id))

    def unpin(self, handle: TransferHandle) -> Transfer:
        """Complete a transfer that `pin` began.

        Raises:
            TransferError: There never was such a transfer, or it has been completed already.
        """
        return self._paged_memory("unpin").unpin(handle)

    def abort_request(self, request_id: RequestId, *, reason: FinishReason = FinishReason.ABORT) -> Request | None:
        """End a request at once and free its blocks; None if it is unknown or has already ended."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        was_running = request.status is RequestStatus.RUNNING
        if was_running:
            self._running.remove(request)
        self._finish(request, reason, has_blocks=was_running)
        if not was_running:
            self._waiting.note_abort()
        return request

    def preempt(self, request_id: RequestId) -> Request | None:
        """Preempt a running request with the next step, though nobody needs its blocks; None if it does not run."""
        request = self._requests.get(request_id)
        if request is None or request.status is not RequestStatus.RUNNING:
            return None
        self._to_preempt.append(request)
        return request

    def resize_pool(self, usable_blocks: int, *, preempt: bool = False) -> None:
        """Let only so many blocks be handed out from now on; blocks in use are kept back as they are freed.

        Args:
            usable_blocks: From 1 to all but the null block.
            preempt: Do not wait for blocks in use: preempt requests with the next step until there are enough.

        Raises:
            ConfigError: There are not so many blocks, or no blocks at all.
        """
        pool = self._block_pool
        if pool is None:
            raise ConfigError("only a pool of blocks can be made smaller, and this one hands out memory in another way")
        most = pool.num_blocks - 1
        if not 1 <= usable_blocks <= most:
            raise ConfigError(f"usable_blocks: expected 1 to {most}, got {usable_blocks}")
        pool.withhold(most - usable_blocks)
        self._takes_blocks_by_force = preempt

    def never_fits(self, request: Request) -> CapacityError | None:
        """Why a request could never be finished, even alone in an empty pool; None if it could.

        With `MisfitPolicy.STALL` such a request is accepted and waits for ever; a caller that must end asks first.
        """
        return never_fits(request, self._config) or self._kv_cache.never_holds(request)

    def _refuse_if_asked(self, request: Request) -> None:
        """Refuse a request that could never be finished, or for which the queue has no room.

        Raises:
            RejectedError: It says why, and what a server would answer.
        """
        limits = self._limits
        if limits.misfits is MisfitPolicy.REJECT:
            misfit = self.never_fits(request)
            if misfit is not None:
                raise misfit
        if limits.max_waiting is not None and len(self._waiting) >= limits.max_waiting:
            raise RejectedError(
                f"request {request.request_id!r}: {len(self._waiting)} requests wait, and max_waiting is "
                f"{limits.max_waiting}",
                status=429,
                hint="send it again later, or raise max_waiting",
            )

    def add_drafts(self, drafts: Mapping[RequestId, Sequence[int]]) -> None:
        """Have guesses at the next tokens of running requests computed behind the known ones in their next step.

        What is not scheduled in that step is dropped. Requests that ended, or have not sampled a token yet, get none.

        Raises:
            ConfigError: There are more than a block of states can take back.
        """
        for request_id, token_ids in drafts.items():
            request = self._requests.get(request_id)
            if request is None or request.num_computed_tokens + 1 != request.num_tokens:
                continue
            if request_id in self._samples:
                continue
            if self._chunk_ends is not None:
                self._chunk_ends.check_drafts(len(token_ids))
            request.draft_token_ids = token_ids
            self._drafting.add(request_id)

    def schedule(self) -> SchedulerOutput:
        """Decide the next step; `update` must follow before the next call."""
        self._step_is_open = True
        step = _Step(self._limits.max_num_batched_tokens)
        self._kv_cache.begin_step()
        if self._to_preempt or self._takes_blocks_by_force:
            self._preempt_as_asked(step)
        self._schedule_running(step)
        if not step.preempted:
            self._admit_waiting(step)
        swapped_out, swapped_in = self._swapping.take_swaps() if self._swapping is not None else ((), ())
        output = SchedulerOutput(
            step=self._num_steps,
            scheduled=step.scheduled,
            admitted=step.first_admissions + step.resumptions,
            preempted=step.preempted,
            block_copies=self._kv_cache.finish_step(),
            num_tokens=self._limits.max_num_batched_tokens - step.budget,
            group_blocks=self._group_blocks(step),
            swapped_out=swapped_out,
            swapped_in=swapped_in,
        )
        self._num_steps += 1
        return output

    def update(
        self,
        output: SchedulerOutput,
        sampled: Mapping[RequestId, int],
        accepted: Mapping[RequestId, int] | None = None,
    ) -> list[Request]:
        """Take in what a step computed.

        Args:
            output: What `schedule` returned last.
            sampled: The next token of each of `ScheduledRequest.sampled_ids`; it follows the accepted drafts, if any.
            accepted: How many leading drafts of a request were right; none of those that are left out.

        Returns:
            The requests that ended, in the order in which they were scheduled; their blocks are free. Sequences that
            ended with the first token of parallel sampling come before them.
        """
        self._step_is_open = False
        finished = self._fork_samples(output, sampled) if self._samples else []
        for request, start, num_tokens, _, _ in output.scheduled:
            if request.status is not RequestStatus.RUNNING:
                continue  # aborted while the step ran
            tokens = request.all_token_ids
            request.num_computed_tokens = num_computed = start + num_tokens
            if num_computed != len(tokens):
                if num_computed < len(tokens):
                    continue
                if self._take_drafts(request, (accepted or {}).get(request.request_id, 0)):
                    finished.append(request)
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
        if self._drafting:
            self._drop_drafts(output)
        if finished:
            self._running = [request for request in self._running if request.status is RequestStatus.RUNNING]
        return finished

    def _is_in_use(self, request_id: RequestId) -> bool:
        """Whether a request has this id, or will have it."""
        return request_id in self._requests or self._samples.reserves(request_id)

    def _paged_memory(self, what: str) -> KVCacheManager:
        """The memory manager that shares blocks.

        Raises:
            ConfigError: There is none here.
        """
        if self._paged is None:
            raise ConfigError(f"{what}: the memory of this engine has no blocks that several requests can hold")
        return self._paged

    def _between_steps(self, request_id: RequestId) -> Request:
        """A running request whose blocks hold what it has computed.

        Raises:
            ConfigError: It does not run, or a step is being computed.
        """
        request = self._requests.get(request_id)
        if request is None or request.status is not RequestStatus.RUNNING:
            raise ConfigError(f"no running request {request_id!r}: only a running one has blocks to share")
        if self._step_is_open:
            raise ConfigError(f"request {request_id!r}: a step is being computed; call update first")
        return request

    def _place(self, parent: Request, children: Sequence[Request]) -> None:
        """Take in the children of a fork: those that go on share the parent's blocks, as long as there are places.

        Memory that cannot share computes their tokens anew.
        """
        left_over: list[Request] = []
        for child in children:
            child.arrival_index = self._num_arrived
            self._num_arrived += 1
            self._forked.append(child)
            child.finish_reason = reason_to_end(child) if child.num_output_tokens else None
            if child.finish_reason is not None:
                child.status = RequestStatus.FINISHED
                continue
            self._requests[child.request_id] = child
            if self._paged is not None and len(self._running) < self._limits.max_num_seqs:
                self._paged.fork(parent, child)
                child.num_computed_tokens = parent.num_computed_tokens
                child.status = RequestStatus.RUNNING
                self._running.append(child)
            else:
                left_over.append(child)
        for child in reversed(left_over):
            self._waiting.put_back(child)

    def _fork_samples(self, output: SchedulerOutput, sampled: Mapping[RequestId, int]) -> list[Request]:
        """Fork the requests of parallel sampling whose first token this step samples; the children that end with it."""
        finished: list[Request] = []
        for item in self._samples.due(output):
            request = item.request
            self._samples.remove(request)
            request.num_computed_tokens = item.start + item.num_tokens
            children = [request.fork(child_id, index) for index, child_id in enumerate(request.sample_ids, start=1)]
            for child in children:
                child.append_output(sampled[child.request_id])
            self._place(request, children)
            finished += [child for child in children if child.status is RequestStatus.FINISHED]
        return finished

    def _schedule_running(self, step: _Step) -> None:
        # The loop that every decode of every step goes through: no calls on its common path.
        running, scheduled, held_by = self._running, step.scheduled, self._kv_cache.tables
        # A request that asks for no more than this has nothing to decide about it.
        usual = 0 if self._drafting else 1
        index = 0
        while index < len(running) and step.budget > 0:
            request = running[index]
            start = request.num_computed_tokens
            num_tokens = len(request.all_token_ids) - start
            held = held_by[request.request_id]
            if num_tokens > usual:
                num_tokens = self._next_tokens(request, held.junction, step.budget)
                if num_tokens == 0:
                    index += 1
                    continue
            new_blocks: Sequence[BlockId] = ()
            if start + num_tokens >= held.quiet_until:
                room = self._make_room(request, start + num_tokens, step)
                if room is None:
                    return
                if room:
                    new_blocks = room[0]
                if step.preempted:
                    index = running.index(request)
            scheduled.append(_tuple_as(ScheduledRequest, (request, start, num_tokens, held.block_ids, new_blocks)))
            step.budget -= num_tokens
            index += 1

    def _next_tokens(self, request: Request, junction: int, budget: int) -> int:
        """How many tokens a running request computes in this step; 0 if it waits for a larger budget."""
        start, drafts = request.num_computed_tokens, request.draft_token_ids
        num_tokens = min(self._num_wanted(request.num_tokens + len(drafts) - start), budget)
        if drafts:
            # The token sampled behind them must have its place too.
            num_tokens = min(num_tokens, self._limits.max_model_len - start - 1)
        if self._chunk_ends is not None:
            num_tokens = self._chunk_ends.shorten(request, start, num_tokens, junction=junction)
        return num_tokens

    def _num_wanted(self, num_known: int) -> int:
        """How many of a request's known but not computed tokens it may ask for in one step."""
        threshold = self._limits.long_prefill_token_threshold
        if 0 < threshold < num_known and len(self._requests) > 1:
            return threshold
        return num_known

    def _make_room(self, request: Request, num_tokens: int, step: _Step) -> NewBlocks | None:
        """Get slots for a running request, preempting others until there are enough; None if it went itself."""
        while (taken := self._kv_cache.try_extend(request, num_tokens)) is None:
            if self._swapping is not None and len(self._running) == 1 and self._swapping.reclaim():
                continue
            victim = self._choose_victim(self._running)
            self._preempt(victim, step)
            if victim is request:
                return None
        if self._has_groups:
            step.new_blocks[request.request_id] = taken
        return taken

    def _preempt_as_asked(self, step: _Step) -> None:
        """Preempt whom somebody chose, then as many more as hold blocks that the pool is to lose."""
        for request in self._to_preempt:
            if request.status is RequestStatus.RUNNING:
                self._preempt(request, step)
        self._to_preempt.clear()
        if self._takes_blocks_by_force and self._block_pool is not None:
            while self._running and self._block_pool.num_to_withhold:
                self._preempt(self._choose_victim(self._running), step)
        self._takes_blocks_by_force = False

    def _preempt(self, victim: Request, step: _Step) -> None:
        """Free a running request's blocks and let it wait; what this step had planned for it is undone."""
        self._running.remove(victim)
        for index, item in enumerate(step.scheduled):
            if item.request is victim:
                step.budget += item.num_tokens
                del step.scheduled[index]
                break
        if self._swapping is None or not self._swapping.try_swap_out(victim, victim.num_computed_tokens):
            self._kv_cache.free(victim, victim.num_computed_tokens)
        self._forget_drafts(victim)
        victim.status = RequestStatus.PREEMPTED
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self._waiting.put_back(victim)
        step.preempted.append(victim.request_id)

    def _admit_waiting(self, step: _Step) -> None:
        while step.budget > 0 and len(self._running) < self._limits.max_num_seqs:
            request = self._waiting.peek()
            if request is None:
                return
            if not self._try_admit(request, step):
                # When nobody runs, nobody will free what swapped-out requests share.
                if self._swapping is not None and not self._running and self._swapping.reclaim(request):
                    continue
                return

    def _try_admit(self, request: Request, step: _Step) -> bool:
        limits = self._limits
        hit = self._kv_cache.find_prefix(request)
        start = hit.start
        num_tokens = self._num_wanted(request.num_tokens - start)
        if num_tokens > step.budget:
            if not limits.enable_chunked_prefill:
                return False
            num_tokens = step.budget
        if self._chunk_ends is not None:
            num_tokens = self._chunk_ends.shorten(request, start, num_tokens, junction=hit.junction)
            if num_tokens == 0:
                return False
        taken = self._kv_cache.try_admit(
            request,
            hit,
            start + num_tokens,
            gate_tokens=request.num_tokens if self._reserves_whole_prompts else 0,
            spare_blocks=self._watermark_blocks if self._running else 0,
        )
        if taken is None:
            return False
        self._start(self._waiting.pop(), start, hit.num_tokens, step)
        step.new_blocks[request.request_id] = taken
        block_ids = self._kv_cache.block_ids(request.request_id)
        step.scheduled.append(ScheduledRequest(request, start, num_tokens, block_ids, taken[0]))
        step.budget -= num_tokens
        return True

    def _start(self, request: Request, start: int, num_cached_tokens: int, step: _Step) -> None:
        resumed = request.status is RequestStatus.PREEMPTED
        admissions = step.resumptions if resumed else step.first_admissions
        admissions.append(Admission(request.request_id, num_cached_tokens, resumed))
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens, request.num_cached_tokens = start, num_cached_tokens
        self._running.append(request)

    def _take_drafts(self, request: Request, num_accepted: int) -> bool:
        """Append the accepted drafts and go back behind them; whether the request ended with one."""
        tokens, drafts = request.all_token_ids, request.draft_token_ids
        request.num_computed_tokens = len(tokens) + num_accepted
        for token in drafts[:num_accepted]:
            tokens.append(token)
            reason = reason_to_end(request)
            if reason is not None:
                self._finish(request, reason, has_blocks=True)
                return True
        return False

    def _drop_drafts(self, output: SchedulerOutput) -> None:
        """Forget the drafts of a step that has been taken in."""
        for item in output.scheduled:
            self._forget_drafts(item.request)

    def _forget_drafts(self, request: Request) -> None:
        if request.request_id in self._drafting:
            self._drafting.remove(request.request_id)
            request.draft_token_ids = ()

    def _group_blocks(self, step: _Step) -> Sequence[GroupBlocks]:
        """What the groups hold and took for each scheduled request; nothing where there is one group."""
        if not self._has_groups:
            return ()
        nothing: NewBlocks = [()] * len(self._kv_cache.sizes.groups)
        return [
            GroupBlocks(
                self._kv_cache.group_tables(item.request.request_id),
                step.new_blocks.get(item.request.request_id) or nothing,
            )
            for item in step.scheduled
        ]

    def _finish(self, request: Request, reason: FinishReason, *, has_blocks: bool) -> None:
        if has_blocks:
            self._kv_cache.free(request, request.num_computed_tokens)
        self._kv_cache.forget(request)
        self._forget_drafts(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        del self._requests[request.request_id]
        self._samples.remove(request)

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
            self._kv_cache.check_slots(request)
        for request in waiting:
            assert request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED), (
                f"{request.request_id} waits as {request.status}"
            )
            assert request.num_computed_tokens == 0, f"{request.request_id} waits with computed tokens"
