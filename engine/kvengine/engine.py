"""The engine loop: schedule, run the model, update, publish."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from kvengine.allocators.memory_use import MemoryUse
from kvengine.allocators.protocol import EngineScheduler, KVView
from kvengine.clock import Clock
from kvengine.config import EngineConfig, MisfitPolicy
from kvengine.deadlines import Deadlines
from kvengine.drafters import Drafter
from kvengine.errors import CapacityError, ConfigError
from kvengine.forks import SampleFamilies
from kvengine.out_of_blocks import out_of_blocks
from kvengine.overlap import HostWork, overlapping
from kvengine.request import FinishReason, Request, RequestId, RequestStatus
from kvengine.runner import ModelRunner
from kvengine.scheduler import Scheduler
from kvengine.scheduler_output import SchedulerOutput
from kvengine.stats import EngineStats, StatsCollector, StepTimes
from kvengine.step_tokens import StepTokens, TokenLogprobs
from kvengine.transfer_pins import Transfer, TransferHandle
from kvengine.units import cdiv

STALLED_AFTER_STEPS = 3
"""Steps in a row that do nothing although requests wait: from here on nothing will ever change."""


class Publisher(Protocol):
    """Where the engine is shown to whoever watches; it must never block. See `observer.TelemetryPublisher`."""

    def request_added(self, request: Request) -> None:
        """Note a request that the scheduler has queued."""
        ...

    def request_forked(self, request: Request) -> None:
        """Note a request that goes on from what another one has computed."""
        ...

    def request_aborted(self, request: Request) -> None:
        """Note a request that was taken out before its end."""
        ...

    def publish(
        self, scheduler: EngineScheduler, output: SchedulerOutput, finished: Sequence[Request], stats: StatsCollector
    ) -> None:
        """Show one finished step."""
        ...

    def poll(self) -> None:
        """Look after whoever watches while no step runs."""
        ...

    def close(self, reason: str) -> None:
        """Say that the run is over."""
        ...


class StepResult(NamedTuple):
    """What one step of the engine did."""

    step: int
    num_tokens: int
    """Tokens computed; 0 in an idle step."""
    finished: Sequence[Request]
    """Requests that ended in this step, in scheduled order."""
    expired: Sequence[Request]
    """Requests whose deadline came before this step; they are ended, and no part of `finished`."""
    sampled: Collection[RequestId]
    """Requests that got an output token."""
    forked: Sequence[Request]
    """Sequences that parted from their request with its first token in this step; they may have ended with it."""
    logprobs: Mapping[RequestId, Sequence[TokenLogprobs]]
    """Of requests that asked for them: an entry for each output token that they got, in order."""
    num_preempted: int
    num_used_blocks: int
    """Usable blocks that were not free right after `schedule`."""
    num_running: int
    """Requests in the running list right after `schedule`."""
    num_waiting: int
    """Requests in the queue right after `schedule`."""
    memory: MemoryUse
    """Where the pool's slots were right after `schedule`."""


class Engine:
    """Runs requests to their end on one model runner.

    Args:
        config: Pool and scheduling limits.
        runner: What computes a step.
        clock: Where step times come from.
        publisher: Shown every step; None when nobody can watch.
        debug: Check all invariants after every step.
        scheduler: What decides the steps; a `Scheduler` over blocks if not given. See `allocators.select`.
        drafter: Guesses at tokens for the runner to check; None for one token a step. The scheduler must be a
            `Scheduler`.
        overlap: Whether the host works on while a step runs, with the same results; see `overlap`. By default where
            the runner's device computes without it.

    Raises:
        ConfigError: The scheduler takes no drafts, or the runner cannot overlap.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: ModelRunner,
        *,
        clock: Clock,
        publisher: Publisher | None = None,
        debug: bool = False,
        scheduler: EngineScheduler | None = None,
        drafter: Drafter | None = None,
        overlap: bool | None = None,
    ) -> None:
        self.config = config
        self._runner = runner
        self._clock = clock
        self._publisher = publisher
        self._debug = debug
        self._scheduler: EngineScheduler = Scheduler(config) if scheduler is None else scheduler
        self._stats = StatsCollector(swaps=config.num_host_blocks > 0)
        self._deadlines = Deadlines()
        self._num_steps = 0
        self._idle_steps = 0
        self._families = SampleFamilies()
        if drafter is not None and not isinstance(self._scheduler, Scheduler):
            raise ConfigError("this engine's scheduler takes no drafts")
        self._drafter = drafter
        self._overlapping = overlapping(runner, overlap)
        self._host_work = None if self._overlapping is None else HostWork(config, self._scheduler, publisher)

    @property
    def stats(self) -> EngineStats:
        """Counters up to now."""
        return self._stats.snapshot()

    @property
    def scheduler(self) -> EngineScheduler:
        """What decides its steps."""
        return self._scheduler

    @property
    def kv_cache(self) -> KVView:
        """The memory of running requests, to be looked at."""
        return self._scheduler.kv_cache

    @property
    def step_times(self) -> StepTimes | None:
        """How long steps took; None before the first that scheduled a token."""
        return self._stats.step_times()

    def now_s(self) -> float:
        """The time on its clock."""
        return self._clock.now_s()

    @property
    def num_steps(self) -> int:
        """Steps taken so far: the number of the next one."""
        return self._num_steps

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is waiting or running."""
        return self._scheduler.has_unfinished

    @property
    def is_stalled(self) -> bool:
        """Whether requests wait although the last steps could do nothing for them."""
        return self.has_unfinished and self._idle_steps >= STALLED_AFTER_STEPS

    def never_fits(self, request: Request) -> CapacityError | None:
        """Why a request could never be finished, even alone in the pool; None if it could."""
        return self._scheduler.never_fits(request)

    def add_request(self, request: Request) -> None:
        """Queue a request.

        Raises:
            ConfigError: The request has no prompt or asks for no output, or its id is in use.
            CapacityError: It could never be finished, even alone in the pool, unless misfits are to stall; or the
                queue is full. See `RejectedError`.
        """
        try:
            misfit = self.never_fits(request)
            if misfit is not None and self.config.misfits is MisfitPolicy.REJECT:
                raise misfit
            self._scheduler.add_request(request)
        except CapacityError:
            self._stats.rejected += 1
            raise
        self._deadlines.add(request)
        if self._host_work is not None:
            self._host_work.request_added(request)
        if self._publisher is not None:
            self._publisher.request_added(request)
        self._idle_steps = 0

    def abort(self, request_id: RequestId) -> Request | None:
        """Take a request out and free its blocks, and with it the sequences that were sampled from its prompt.

        Returns:
            The request, or the first of those sequences if it has ended itself; None if there is nothing to take out.
        """
        names = [request_id, *(member.request_id for member in self._families.members(request_id))]
        aborted = [request for name in names if (request := self._scheduler.abort_request(name)) is not None]
        for request in aborted:
            self._families.remove(request)
            self._stats.request_aborted(request.request_id)
            if self._publisher is not None:
                self._publisher.request_aborted(request)
            self._idle_steps = 0
        return aborted[0] if aborted else None

    def finish(self, request_id: RequestId) -> Request | None:
        """End one sequence as stopped, for a reason that only its caller can see, such as a stop string in its text.

        Returns:
            The request; None if it is unknown or has ended.
        """
        request = self._scheduler.abort_request(request_id, reason=FinishReason.STOP)
        if request is not None:
            self._families.remove(request)
            self._stats.request_finished(request_id)
            if self._publisher is not None:
                self._publisher.request_aborted(request)
            self._idle_steps = 0
        return request

    def fork(
        self, request_id: RequestId, child_ids: Sequence[RequestId], last_token_ids: Sequence[int] | None = None
    ) -> list[Request]:
        """Let further requests go on from what a running one has computed; see `Scheduler.fork`.

        Raises:
            ConfigError: The parent does not run, an id is in use, or a token cannot be.
        """
        children = self._sharing_scheduler().fork(request_id, child_ids, last_token_ids)
        self._note_forked()
        return children

    def pin(self, request_id: RequestId) -> Transfer:
        """Keep what a running request has computed until `unpin`; see `Scheduler.pin`.

        Raises:
            ConfigError: The request does not run.
        """
        transfer = self._sharing_scheduler().pin(request_id)
        self._idle_steps = 0
        return transfer

    def unpin(self, handle: TransferHandle) -> Transfer:
        """Complete a transfer that `pin` began.

        Raises:
            TransferError: There never was such a transfer, or it has been completed already.
        """
        transfer = self._sharing_scheduler().unpin(handle)
        self._idle_steps = 0
        return transfer

    def preempt(self, request_id: RequestId) -> Request | None:
        """Preempt a running request with the next step, though nobody needs its blocks; None if it does not run.

        Raises:
            ConfigError: The scheduler preempts by its own rules only.
        """
        if not isinstance(self._scheduler, Scheduler):
            raise ConfigError("this engine's scheduler preempts by its own rules only")
        return self._scheduler.preempt(request_id)

    def step(self) -> StepResult:
        """Schedule once, compute what was scheduled, and hand the new tokens back."""
        clock, scheduler = self._clock, self._scheduler
        started_s = clock.now_s()
        expired = self._end_expired(started_s)
        output = scheduler.schedule()
        self._num_steps = output.step + 1
        pending = None
        if self._overlapping is not None and output.is_work:
            decided_s = clock.now_s()
            pending = self._overlapping.start(output)
        memory = self._stats.scheduled(output, scheduler.running, scheduler.kv_cache)
        num_used, num_running = scheduler.kv_cache.pool.num_used, len(scheduler.running)
        num_waiting = scheduler.num_waiting
        if self._host_work is not None:
            self._host_work.do()
        if pending is not None:
            scheduled_s, sampled = decided_s, pending.result()
        else:
            scheduled_s = clock.now_s()
            sampled = self._runner.execute(output) if output.is_work else {}
        executed_s = clock.now_s()
        finished, logprobs = self._take_in(output, sampled)
        forked = self._note_forked()
        self._families.add(forked)
        self._stats.sampled(output, sampled, finished)
        self._stats.timed(output, started_s, scheduled_s, executed_s, clock.now_s())
        for request in finished:
            self._families.remove(request)
        self._idle_steps = 0 if output.scheduled or output.preempted else self._idle_steps + 1
        if self._publisher is not None:
            self._publisher.publish(scheduler, output, finished, self._stats)
        if self._host_work is not None and not scheduler.has_unfinished:
            self._host_work.flush()  # no step may follow
        if self._debug:
            scheduler.check_invariants()
        return StepResult(
            step=output.step,
            num_tokens=output.num_tokens,
            finished=finished,
            expired=expired,
            sampled=sampled.keys(),
            forked=forked,
            logprobs=logprobs,
            num_preempted=len(output.preempted),
            num_used_blocks=num_used,
            num_running=num_running,
            num_waiting=num_waiting,
            memory=memory,
        )

    def poll(self) -> None:
        """Look after whoever watches, while there is nothing to do."""
        if self._publisher is not None:
            self._publisher.poll()

    def run_until_done(self) -> list[Request]:
        """Step until nothing is left, and return what finished, in that order.

        Raises:
            CapacityError: What is left can never be scheduled.
        """
        finished: list[Request] = []
        while self.has_unfinished:
            finished += self.step().finished
            self.raise_if_stalled()
        return finished

    def raise_if_stalled(self) -> None:
        """Raise when the requests that are left can never be scheduled.

        Raises:
            CapacityError: It says what the first of them needs and what there is.
        """
        if not self.is_stalled:
            return
        first = next(iter(self._scheduler.waiting))
        limits, num_blocks = self.config.scheduler, cdiv(first.num_tokens, self.config.block_size)
        raise out_of_blocks(
            f"{self._scheduler.num_waiting} requests wait and none can be scheduled: the first, {first.request_id!r},"
            f" asks for {num_blocks} blocks of {self.config.block_size} for {first.num_tokens} tokens, and a step takes"
            f" {limits.max_num_batched_tokens} tokens",
            self._scheduler.kv_cache,
            num_running=len(self._scheduler.running),
            hint="" if limits.enable_chunked_prefill else "turn chunked prefill on, or raise max_num_batched_tokens",
        )

    def _take_in(
        self, output: SchedulerOutput, sampled: Mapping[RequestId, int]
    ) -> tuple[list[Request], Mapping[RequestId, Sequence[TokenLogprobs]]]:
        """Hand the new tokens to the scheduler, and ask for the next drafts; what ended, and log-probabilities."""
        logprobs = sampled.logprobs if isinstance(sampled, StepTokens) else {}
        if self._drafter is None:
            return self._scheduler.update(output, sampled), logprobs
        accepted = sampled.accepted if isinstance(sampled, StepTokens) else {}
        before = {item.request.request_id: item.request.num_tokens for item in output.scheduled if item.num_drafts}
        num_drafts = sum(item.num_drafts for item in output.scheduled)
        scheduler = self._sharing_scheduler()
        finished = scheduler.update(output, sampled, accepted)
        drafted = [item.request for item in output.scheduled if item.request.request_id in before]
        grown = {request.request_id: request.num_tokens - before[request.request_id] for request in drafted}
        self._stats.drafted(num_drafts, accepted, grown)
        running = [item.request for item in output.scheduled if item.request.status is RequestStatus.RUNNING]
        scheduler.add_drafts(self._drafter.propose([each for each in running if each.request_id in sampled]))
        # An output that ended with a draft has fewer tokens than were judged.
        cut = {name: entries[: grown.get(name, len(entries))] for name, entries in logprobs.items()}
        return finished, cut

    def _end_expired(self, now_s: float) -> list[Request]:
        """End the requests whose deadline has come."""
        expired = self._deadlines.take_expired(now_s=now_s, step=self._num_steps)
        for request in expired:
            self._scheduler.abort_request(request.request_id, reason=FinishReason.DEADLINE)
            self._families.remove(request)
            self._stats.request_expired(request.request_id)
            if self._publisher is not None:
                self._publisher.request_aborted(request)
        return expired

    def _sharing_scheduler(self) -> Scheduler:
        if not isinstance(self._scheduler, Scheduler):
            raise ConfigError("this engine's scheduler cannot share blocks by request")
        return self._scheduler

    def _note_forked(self) -> list[Request]:
        forked = self._scheduler.take_forked() if isinstance(self._scheduler, Scheduler) else []
        for child in forked:
            self._stats.request_forked(child)
            self._deadlines.add(child)
            if self._publisher is not None:
                self._publisher.request_forked(child)
        return forked

    def close(self, reason: str = "done") -> None:
        """End the run for whoever watches it; the engine must not be stepped afterwards."""
        if self._publisher is not None:
            self._publisher.close(reason)
            self._publisher = None
