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
from kvengine.forks import Forks, check_fork
from kvengine.kv_cache_manager import KVCacheManager
from kvengine.kv_groups.chunk_ends import chunk_ends_for
from kvengine.request import FinishReason, Request, RequestId, RequestStatus
from kvengine.scheduler_output import ScheduledRequest, SchedulerOutput
from kvengine.scheduling.admission import Admission
from kvengine.scheduling.drafts import Drafts
from kvengine.scheduling.preemption import Preemption
from kvengine.scheduling.queues import RequestQueues
from kvengine.scheduling.step_plan import StepPlan
from kvengine.scheduling.token_shares import TokenShares
from kvengine.transfer_pins import Transfer, TransferHandle

# What `ScheduledRequest(...)` comes to, without 0.2 us of a NamedTuple's own constructor: a fifth of a decode's share.
_tuple_as = tuple.__new__


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
        self._kv_cache: KVMemory = KVCacheManager(config) if memory is None else memory
        self._paged = self._kv_cache if isinstance(self._kv_cache, KVCacheManager) else None
        self._swapping = self._paged_memory("swap") if config.preemption is PreemptionMode.SWAP else None
        self._has_groups = len(config.kv_groups) > 1
        self._queues = queues = RequestQueues(by_priority=config.scheduler.policy is SchedulingPolicy.PRIORITY)
        chunk_ends = chunk_ends_for(self._kv_cache.sizes, config.scheduler)
        self._shares = TokenShares(config.scheduler, chunk_ends, queues)
        self._drafts = Drafts(chunk_ends, queues)
        self._forks = Forks(config.scheduler.max_num_seqs, self._paged, queues)
        self._preemption = Preemption(config, self._kv_cache, self._swapping, queues, self._drafts)
        self._admission = Admission(config, self._kv_cache, self._swapping, queues, self._shares)
        self._step_is_open = False
        self._num_steps = 0

    @property
    def kv_cache(self) -> KVMemory:
        """The blocks of all running requests."""
        return self._kv_cache

    @property
    def running(self) -> Sequence[Request]:
        """Admitted requests in running order; a live view, not to be changed."""
        return self._queues.running

    @property
    def waiting(self) -> Iterator[Request]:
        """Requests that are not admitted, in queue order."""
        return iter(self._queues.waiting)

    @property
    def num_waiting(self) -> int:
        """How many requests are not admitted."""
        return len(self._queues.waiting)

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is running or waiting."""
        return bool(self._queues.requests)

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
        self._queues.arrive(request)
        self._forks.pending.add(request)

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
        return self._forks.fork(parent, child_ids, last_token_ids)

    def take_forked(self) -> list[Request]:
        """Requests that came by a fork since the last call."""
        return self._forks.take_forked()

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
        request = self._queues.requests.get(request_id)
        if request is None:
            return None
        was_running = request.status is RequestStatus.RUNNING
        if was_running:
            self._queues.running.remove(request)
        self._finish(request, reason, has_blocks=was_running)
        if not was_running:
            self._queues.waiting.note_abort()
        return request

    def preempt(self, request_id: RequestId) -> Request | None:
        """Preempt a running request with the next step, though nobody needs its blocks; None if it does not run."""
        request = self._queues.find_running(request_id)
        if request is not None:
            self._preemption.ask(request)
        return request

    def resize_pool(self, usable_blocks: int, *, preempt: bool = False) -> None:
        """Let only so many blocks be handed out from now on; blocks in use are kept back as they are freed.

        Args:
            usable_blocks: From 1 to all but the null block.
            preempt: Do not wait for blocks in use: preempt requests with the next step until there are enough.

        Raises:
            ConfigError: There are not so many blocks, or no blocks at all.
        """
        pool = self._kv_cache.pool
        if not isinstance(pool, BlockPool):
            raise ConfigError("only a pool of blocks can be made smaller, and this one hands out memory in another way")
        most = pool.num_blocks - 1
        if not 1 <= usable_blocks <= most:
            raise ConfigError(f"usable_blocks: expected 1 to {most}, got {usable_blocks}")
        pool.withhold(most - usable_blocks)
        self._preemption.shrink(pool if preempt else None)

    def never_fits(self, request: Request) -> CapacityError | None:
        """Why a request could never be finished, even alone in an empty pool; None if it could.

        With `MisfitPolicy.STALL` such a request is accepted and waits for ever; a caller that must end asks first.
        """
        return never_fits(request, self._config) or self._kv_cache.never_holds(request)

    def add_drafts(self, drafts: Mapping[RequestId, Sequence[int]]) -> None:
        """Have guesses at the next tokens of running requests computed behind the known ones in their next step.

        What is not scheduled in that step is dropped. Requests that ended, or have not sampled a token yet, get none.

        Raises:
            ConfigError: There are more than a block of states can take back.
        """
        for request_id, token_ids in drafts.items():
            if request_id not in self._forks.pending:
                self._drafts.propose(request_id, token_ids)

    def schedule(self) -> SchedulerOutput:
        """Decide the next step; `update` must follow before the next call."""
        self._step_is_open = True
        plan = StepPlan(self._limits.max_num_batched_tokens)
        self._kv_cache.begin_step()
        self._preemption.as_asked(plan)
        self._schedule_running(plan)
        if not plan.preempted:
            self._admission.admit(plan)
        swapped_out, swapped_in = self._swapping.take_swaps() if self._swapping is not None else ((), ())
        output = SchedulerOutput(
            step=self._num_steps,
            scheduled=plan.scheduled,
            admitted=plan.first_admissions + plan.resumptions,
            preempted=plan.preempted,
            block_copies=self._kv_cache.finish_step(),
            num_tokens=self._limits.max_num_batched_tokens - plan.budget,
            group_blocks=plan.group_blocks(self._kv_cache) if self._has_groups else (),
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
        finished = self._forks.fork_samples(output, sampled) if self._forks.pending else []
        for request, start, num_tokens, _, _ in output.scheduled:
            if request.status is not RequestStatus.RUNNING:
                continue  # aborted while the step ran
            tokens = request.all_token_ids
            request.num_computed_tokens = num_computed = start + num_tokens
            if num_computed != len(tokens):
                if num_computed < len(tokens):
                    continue
                reason = self._drafts.accept(request, accepted.get(request.request_id, 0) if accepted else 0)
                if reason is not None:
                    self._finish(request, reason, has_blocks=True)
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
        if self._drafts:
            self._drafts.drop(output)
        if finished:
            self._queues.drop_finished()
        return finished

    def _schedule_running(self, plan: StepPlan) -> None:
        # The loop that every decode of every step goes through: no calls on its common path.
        running, scheduled, held_by = self._queues.running, plan.scheduled, self._kv_cache.tables
        # A request that asks for no more than this has nothing to decide about it.
        usual = 0 if self._drafts else 1
        index = 0
        while index < len(running) and plan.budget > 0:
            request = running[index]
            start = request.num_computed_tokens
            num_tokens = len(request.all_token_ids) - start
            held = held_by[request.request_id]
            if num_tokens > usual:
                num_tokens = self._shares.of_running(request, plan.budget, junction=held.junction)
                if num_tokens == 0:
                    index += 1
                    continue
            new_blocks: Sequence[BlockId] = ()
            if start + num_tokens >= held.quiet_until:
                taken = self._preemption.make_room(request, start + num_tokens, plan)
                if taken is None:
                    return
                if taken:
                    new_blocks = taken[0]
                if self._has_groups:
                    plan.new_blocks[request.request_id] = taken
                if plan.preempted:
                    index = running.index(request)
            scheduled.append(_tuple_as(ScheduledRequest, (request, start, num_tokens, held.block_ids, new_blocks)))
            plan.budget -= num_tokens
            index += 1

    def _refuse_if_asked(self, request: Request) -> None:
        """Refuse a request that could never be finished, or for which the queue has no room.

        Raises:
            RejectedError: It says why, and what a server would answer.
        """
        limits = self._limits
        if self._config.misfits is MisfitPolicy.REJECT:
            misfit = self.never_fits(request)
            if misfit is not None:
                raise misfit
        if limits.max_waiting is not None and len(self._queues.waiting) >= limits.max_waiting:
            raise RejectedError(
                f"request {request.request_id!r}: {len(self._queues.waiting)} requests wait, and max_waiting is "
                f"{limits.max_waiting}",
                status=429,
                hint="send it again later, or raise max_waiting",
            )

    def _is_in_use(self, request_id: RequestId) -> bool:
        """Whether a request has this id, or will have it."""
        return request_id in self._queues.requests or self._forks.pending.reserves(request_id)

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
        request = self._queues.find_running(request_id)
        if request is None:
            raise ConfigError(f"no running request {request_id!r}: only a running one has blocks to share")
        if self._step_is_open:
            raise ConfigError(f"request {request_id!r}: a step is being computed; call update first")
        return request

    def _finish(self, request: Request, reason: FinishReason, *, has_blocks: bool) -> None:
        if has_blocks:
            self._kv_cache.free(request, request.num_computed_tokens)
        self._kv_cache.forget(request)
        self._drafts.forget(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        del self._queues.requests[request.request_id]
        self._forks.pending.remove(request)

    def check_invariants(self) -> None:
        """Every request is in one place, with the status and the blocks that belong there."""
        self._kv_cache.check_invariants()
        self._queues.check_invariants()
        running = self._queues.running
        assert len(running) <= self._limits.max_num_seqs, f"{len(running)} requests are running"
        for request in running:
            self._kv_cache.check_slots(request)
