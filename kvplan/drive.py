"""Steps an engine through a schedule of requests, in real time or in steps of a given length."""

import time
from dataclasses import dataclass
from math import inf
from typing import Protocol

from kvengine.allocators.memory_use import MemoryMeter
from kvengine.block_pool import BlockPool
from kvengine.clock import Clock, RealClock, VirtualClock
from kvengine.control import EngineControl
from kvengine.engine import Engine, StepResult
from kvengine.errors import RejectedError
from kvengine.request import Request, RequestId, RequestStatus
from kvplan.latency import LatencyLog
from kvplan.requests.schedule import Schedule
from kvplan.timeline import TimelineLog

QUEUE_IS_FULL = 429
"""What a server answers while its queue is full; see `RejectedError`."""
_POLL_EVERY_S = 0.1
"""Viewers that attach while nothing is to be done wait no longer than that."""


class Progress(Protocol):
    """Told how far a run has come."""

    def advanced(self, finished_requests: int) -> None:
        """So many requests have ended by now."""
        ...


class Pace(Protocol):
    """How time passes while an engine runs."""

    def now_s(self) -> float:
        """Seconds since the run began."""
        ...

    def stepped(self) -> None:
        """Another step is done."""
        ...

    def wait_until(self, time_s: float) -> None:
        """Let time pass while there is nothing to do, though perhaps not all of it."""
        ...


class RealPace:
    """Time passes by itself."""

    def __init__(self, clock: RealClock) -> None:
        self._clock = clock
        self._start_s = clock.now_s()

    def now_s(self) -> float:
        """Seconds since the run began."""
        return self._clock.now_s() - self._start_s

    def stepped(self) -> None:
        """Nothing to do: the step took its time."""

    def wait_until(self, time_s: float) -> None:
        """Sleep, for a short while at most."""
        time.sleep(min(max(time_s - self.now_s(), 0.0), _POLL_EVERY_S))


class StepPace:
    """Every step takes the same time, which is assumed.

    Args:
        clock: Moved by each step.
        step_s: Seconds of a step; 1 to count in steps.
    """

    def __init__(self, clock: VirtualClock, step_s: float) -> None:
        self._clock = clock
        self._start_s = clock.now_s()
        self._step_s = step_s

    def now_s(self) -> float:
        """Seconds since the run began."""
        return self._clock.now_s() - self._start_s

    def stepped(self) -> None:
        """Move the clock by a step."""
        self._clock.advance(self._step_s)

    def wait_until(self, time_s: float) -> None:
        """Move the clock there."""
        self._clock.advance(max(time_s - self.now_s(), 0.0))


class TimeLimit:
    """Counts down from the moment it is made.

    Args:
        seconds: How long.
        clock: By whose time; a simulation is limited by real time, not by the time that it simulates.
    """

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._clock = clock
        self._end_s = clock.now_s() + seconds

    def left_s(self) -> float:
        """Seconds that are left; 0 or less when time is up."""
        return self._end_s - self._clock.now_s()


def limit_of(seconds: float | None, clock: Clock) -> TimeLimit | None:
    """A limit that counts from now; None for none."""
    return None if seconds is None else TimeLimit(seconds, clock)


@dataclass(frozen=True, slots=True, kw_only=True)
class Driven:
    """How a run ended."""

    num_finished: int
    num_cancelled: int
    out_of_time: bool
    """Whether the time limit ended it before all requests had."""


class Driver:
    """Steps an engine until all requests of a schedule have come and ended.

    Args:
        engine: Runs them.
        schedule: What comes when.
        pace: How time passes.
        stop_token_ids: Tokens that end outputs early.
        progress: Told how many requests have ended.
        control: Obeyed before each step; None where no viewer may steer.
        deadline_s: Seconds after its arrival when a request is ended; None for no such time.
        deadline_steps: Steps after its arrival when a request is ended; None for no such number.
    """

    def __init__(
        self,
        engine: Engine,
        schedule: Schedule,
        *,
        pace: Pace,
        stop_token_ids: frozenset[int] = frozenset(),
        progress: Progress | None = None,
        control: EngineControl | None = None,
        deadline_s: float | None = None,
        deadline_steps: int | None = None,
    ) -> None:
        self._control = control
        self._num_obeyed = 0
        self._deadline_s = deadline_s
        self._deadline_steps = deadline_steps
        self._open: dict[RequestId, Request] = {}
        """Requests that have come and not ended."""
        self._num_expired = 0
        self._num_rejected = 0
        self.latencies = LatencyLog()
        self.usage = TimelineLog()
        self.memory = MemoryMeter()
        self._engine = engine
        self._schedule = schedule
        self._pace = pace
        self._stop_token_ids = stop_token_ids
        self._progress = progress
        self._impatient: dict[RequestId, tuple[Request, int]] = {}
        """Requests that will be cancelled, and after how many output tokens."""
        self._num_finished = 0
        self._num_cancelled = 0
        self._step = 0

    def run(self, *, time_limit: TimeLimit | None = None) -> Driven:
        """Run to the end, or to the time limit.

        Raises:
            CapacityError: A request can never be finished, or nothing that is left can be scheduled.
        """
        out_of_time = False
        while not self._schedule.is_empty or self._engine.has_unfinished:
            left_s = inf if time_limit is None else time_limit.left_s()
            if left_s <= 0:
                out_of_time = True
                break
            self._add_due()
            if self._control is not None:
                self._be_steered(self._control)
            if self._is_idle():
                self._pace.wait_until(min(self._schedule.next_s or 0.0, self._pace.now_s() + left_s))
                self._engine.poll()
            else:
                self._do_step()
        return Driven(num_finished=self._num_finished, num_cancelled=self._num_cancelled, out_of_time=out_of_time)

    def _add_due(self) -> None:
        now_s = self._pace.now_s()
        for due in self._schedule.take(step=self._step, now_s=now_s):
            spec = due.spec
            request = spec.build(stop_token_ids=self._stop_token_ids, history=due.history)
            arrived_s = now_s if due.time_s is None else due.time_s
            self._set_deadline(request, late_s=now_s - arrived_s)
            if not self._try_add(request):
                continue
            self.latencies.arrived(spec.request_id, arrived_s)
            if spec.cancel_after_tokens is not None:
                self._impatient[spec.request_id] = (request, spec.cancel_after_tokens)

    def _set_deadline(self, request: Request, *, late_s: float) -> None:
        if self._deadline_s is not None:
            request.deadline_s = self._engine.now_s() - late_s + self._deadline_s
        if self._deadline_steps is not None:
            request.deadline_step = self._engine.num_steps + self._deadline_steps

    def _try_add(self, request: Request) -> bool:
        """Hand a request to the engine; False if it is to come again later, which nobody does here."""
        try:
            self._engine.add_request(request)
        except RejectedError as error:
            if error.status != QUEUE_IS_FULL:
                raise
            self._num_rejected += 1
            self._end(request)
            return False
        self._open[request.request_id] = request
        return True

    def _be_steered(self, control: EngineControl) -> None:
        """Wait as viewers want, and take note of requests that they have ended."""
        control.wait_for_turn()
        if control.num_obeyed != self._num_obeyed:
            self._num_obeyed = control.num_obeyed
            for request in [*self._open.values()]:
                if request.status is RequestStatus.FINISHED:
                    self._num_cancelled += 1
                    self._drop(request)

    def _is_idle(self) -> bool:
        """Whether nothing can happen before a time; before a step, the engine makes idle steps."""
        next_s = self._schedule.next_s
        return not self._engine.has_unfinished and next_s is not None and next_s > self._pace.now_s()

    def _do_step(self) -> None:
        began_s = self._pace.now_s()
        result = self._engine.step()
        self._step += 1
        self._pace.stepped()
        if self._control is not None:
            self._control.stepped()
        self._note(result, began_s)
        for request in result.expired:
            self._num_expired += 1
            self._drop(request)
        for request in result.finished:
            self._num_finished += 1
            self.latencies.finished(request.request_id)
            self._end(request)
        for request, tokens in [*self._impatient.values()]:
            if request.num_output_tokens >= tokens:
                self._cancel(request)
        if self._schedule.next_s is None and not self._waits_for_a_viewer():
            self._engine.raise_if_stalled()
        if self._progress is not None:
            self._progress.advanced(self._num_finished + self._num_cancelled + self._num_expired + self._num_rejected)

    def _waits_for_a_viewer(self) -> bool:
        """Whether nothing moves because a viewer has made the pool smaller: it can give blocks back, or leave."""
        pool = self._engine.kv_cache.pool
        is_smaller = isinstance(pool, BlockPool) and pool.num_withheld > 0
        if self._control is None or not is_smaller or not self._engine.is_stalled:
            return False
        self._pace.wait_until(self._pace.now_s() + _POLL_EVERY_S)
        return True

    def _note(self, result: StepResult, began_s: float) -> None:
        ended_s = self._pace.now_s()
        self.latencies.tokens(result.sampled, ended_s)
        self.usage.add(
            began_s,
            used=result.num_used_blocks,
            running=result.num_running,
            waiting=result.num_waiting,
            preemptions=result.num_preempted,
        )
        if result.num_running:
            self.memory.add(result.memory, ended_s - began_s)

    def _cancel(self, request: Request) -> None:
        self._engine.abort(request.request_id)
        self._num_cancelled += 1
        self._drop(request)

    def _drop(self, request: Request) -> None:
        """Take note of a request that has ended before its time."""
        self.latencies.dropped(request.request_id)
        self._end(request)

    def _end(self, request: Request) -> None:
        self._impatient.pop(request.request_id, None)
        self._open.pop(request.request_id, None)
        self._schedule.ended(request.request_id, self._pace.now_s(), tokens=request.all_token_ids)
