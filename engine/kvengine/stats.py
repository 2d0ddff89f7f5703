"""What a run of the engine did, counted as it happens."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from kvengine.allocators.memory_use import MemoryUse
from kvengine.allocators.protocol import KVView
from kvengine.kv_cache_manager import KVCacheManager
from kvengine.request import Request, RequestId
from kvengine.scheduler_output import SchedulerOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counters of a run up to now.

    A figure that does not exist yet (a rate before any time has passed, a mean over no steps) is None, never 0.
    """

    steps: int
    """Scheduling steps, idle ones included."""
    scheduled_tokens: int
    """Tokens that the model was asked to compute, recomputed ones included."""
    prompt_tokens: int
    """Prompt tokens of the requests that have their first output token; prefix hits included."""
    output_tokens: int
    drafts: int
    """Guesses at tokens that were computed; 0 without a drafter."""
    accepted_drafts: int
    """Those that became output tokens."""
    preemptions: int
    prefix_hit_tokens: int
    """Tokens found in the prefix cache at admissions, resumptions after a preemption included."""
    first_prefix_hit_tokens: int
    """The same at first admissions only."""
    admitted: int
    """Requests that were admitted at least once."""
    admitted_prompt_tokens: int
    """Prompt tokens of all first admissions: what `first_prefix_hit_tokens` is a share of."""
    recomputed_tokens: int
    """Scheduled tokens at positions that their request had computed, or hit, before."""
    peak_blocks_in_use: int
    """Most usable blocks that were not free right after `schedule`."""
    peak_running: int
    """Most requests in the running list right after `schedule`."""
    finished: int
    aborted: int
    expired: int
    """Requests whose deadline came before their end."""
    rejected: int
    """Requests that were not taken in."""
    swapped_out_blocks: int | None
    """Blocks moved to the host; like the next four None where requests are not swapped."""
    swapped_out_tokens: int | None
    """Computed tokens of the requests that were swapped out, those in shared blocks that did not move included."""
    swapped_in_blocks: int | None
    swapped_in_tokens: int | None
    peak_host_blocks: int | None
    """Most host blocks in use at a time."""
    tail_waste_slots_mean: float | None
    """Unused slots in the last blocks of the running requests right after `schedule`, a shared block counted once, or
    in the extents that they hold: mean over the steps in which anything ran."""
    tail_waste_fraction: float | None
    """Those slots over all slots of the blocks in use, summed over the same steps."""
    elapsed_s: float
    """From the start of the first step to the end of the last one."""

    @property
    def prompt_tokens_per_s(self) -> float | None:
        """Prompt tokens over the elapsed time; None while no time has passed."""
        return self.prompt_tokens / self.elapsed_s if self.elapsed_s else None

    @property
    def output_tokens_per_s(self) -> float | None:
        """Output tokens over the elapsed time; None while no time has passed."""
        return self.output_tokens / self.elapsed_s if self.elapsed_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """How long the steps took that scheduled any token."""

    median_s: float
    p90_s: float
    """Nearest rank: the smallest time that at least 90 % of the steps did not exceed."""
    max_s: float
    schedule_s: float
    """Of all steps together: deciding what to compute, and counting it unless that overlaps with computing it."""
    execute_s: float
    """Of all steps together: computing it on the device, with what the host does meanwhile."""
    update_s: float
    """Of all steps together: taking in what came out. What is published to viewers is not in any of the three."""


class StatsCollector:
    """Adds up `EngineStats` from what each step scheduled, sampled and took.

    The counters are plain attributes under the names of `EngineStats`, to be read at any time at no cost.

    Args:
        swaps: Whether preempted requests are swapped, so that it can be counted.
    """

    def __init__(self, *, swaps: bool = False) -> None:
        nothing = 0 if swaps else None
        self.swapped_out_blocks: int | None = nothing
        self.swapped_out_tokens: int | None = nothing
        self.swapped_in_blocks: int | None = nothing
        self.swapped_in_tokens: int | None = nothing
        self.host_blocks_in_use: int | None = nothing
        self.peak_host_blocks: int | None = nothing
        self.expired = 0
        self.rejected = 0
        self._reached: dict[RequestId, int] = {}
        """Per unfinished request: tokens that were ever in the cache for it."""
        self.steps = 0
        self.scheduled_tokens = 0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.drafts = 0
        self.accepted_drafts = 0
        self.preemptions = 0
        self.prefix_hit_tokens = 0
        self.first_prefix_hit_tokens = 0
        self.admitted = 0
        self.admitted_prompt_tokens = 0
        self.recomputed_tokens = 0
        self.peak_blocks_in_use = 0
        self.peak_running = 0
        self.finished = 0
        self.aborted = 0
        self._waste_slots = 0
        self._used_slots = 0
        self._waste_steps = 0
        self._started_s: float | None = None
        self._ended_s = 0.0
        self._step_s = array("d")
        self._schedule_s = self._execute_s = self._update_s = 0.0

    def scheduled(self, output: SchedulerOutput, running: Sequence[Request], kv_cache: KVView) -> MemoryUse:
        """Count one scheduling decision, before the model runs; returns where the pool's slots are then."""
        self.steps += 1
        self.scheduled_tokens += output.num_tokens
        self.preemptions += len(output.preempted)
        if output.admitted:
            self._count_admissions(output)
        self.peak_blocks_in_use = max(self.peak_blocks_in_use, kv_cache.pool.num_used)
        self.peak_running = max(self.peak_running, len(running))
        self._count_recomputed(output)
        if self.host_blocks_in_use is not None and isinstance(kv_cache, KVCacheManager):
            self._count_swaps(output, kv_cache)
        memory = _memory_after(output, running, kv_cache)
        if running:
            self._waste_slots += memory.unfilled
            self._used_slots += memory.held
            self._waste_steps += 1
        return memory

    def sampled(self, output: SchedulerOutput, sampled: Mapping[RequestId, int], finished: Sequence[Request]) -> None:
        """Count the new tokens and the requests that ended with them, after `update`."""
        self.output_tokens += len(sampled)
        for request, start, num_tokens, _, _ in output.scheduled:
            if start + num_tokens == request.num_prompt_tokens and request.request_id in sampled:
                self.prompt_tokens += request.num_prompt_tokens
        self.finished += len(finished)
        for request in finished:
            self._reached.pop(request.request_id, None)

    def drafted(self, num_drafts: int, accepted: Mapping[RequestId, int], grown: Mapping[RequestId, int]) -> None:
        """Count the drafts of a step, after `update` and before `sampled`.

        Args:
            num_drafts: All that were computed.
            accepted: How many of each request were right.
            grown: Tokens that each request with drafts got; an output that ends with a draft gets none behind it.
        """
        self.drafts += num_drafts
        for request_id, num_accepted in accepted.items():
            num_taken = min(num_accepted, grown[request_id])
            self.accepted_drafts += num_taken
            self.output_tokens += grown[request_id] - 1
            self._reached[request_id] = self._reached.get(request_id, 0) + num_taken

    def request_forked(self, request: Request) -> None:
        """Count nothing anew: what a forked request shares was computed once, by its parent."""
        self._reached[request.request_id] = request.num_computed_tokens

    def request_finished(self, request_id: RequestId) -> None:
        """Count a request that was ended between two steps, as complete."""
        self.finished += 1
        self._reached.pop(request_id, None)

    def request_aborted(self, request_id: RequestId) -> None:
        """Count a request that was taken out before its end."""
        self.aborted += 1
        self._reached.pop(request_id, None)

    def request_expired(self, request_id: RequestId) -> None:
        """Count a request whose deadline came before its end."""
        self.expired += 1
        self._reached.pop(request_id, None)

    def timed(
        self, output: SchedulerOutput, started_s: float, scheduled_s: float, executed_s: float, ended_s: float
    ) -> None:
        """Count the time of one step: when it began, was decided, was computed, and was taken in."""
        if self._started_s is None:
            self._started_s = started_s
        self._ended_s = ended_s
        if output.num_tokens:
            self._step_s.append(ended_s - started_s)
            self._schedule_s += scheduled_s - started_s
            self._execute_s += executed_s - scheduled_s
            self._update_s += ended_s - executed_s

    def snapshot(self) -> EngineStats:
        """The counters now."""
        return EngineStats(
            steps=self.steps,
            scheduled_tokens=self.scheduled_tokens,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            drafts=self.drafts,
            accepted_drafts=self.accepted_drafts,
            preemptions=self.preemptions,
            prefix_hit_tokens=self.prefix_hit_tokens,
            first_prefix_hit_tokens=self.first_prefix_hit_tokens,
            admitted=self.admitted,
            admitted_prompt_tokens=self.admitted_prompt_tokens,
            recomputed_tokens=self.recomputed_tokens,
            peak_blocks_in_use=self.peak_blocks_in_use,
            peak_running=self.peak_running,
            finished=self.finished,
            aborted=self.aborted,
            expired=self.expired,
            rejected=self.rejected,
            swapped_out_blocks=self.swapped_out_blocks,
            swapped_out_tokens=self.swapped_out_tokens,
            swapped_in_blocks=self.swapped_in_blocks,
            swapped_in_tokens=self.swapped_in_tokens,
            peak_host_blocks=self.peak_host_blocks,
            tail_waste_slots_mean=self._waste_slots / self._waste_steps if self._waste_steps else None,
            tail_waste_fraction=self._waste_slots / self._used_slots if self._used_slots else None,
            elapsed_s=0.0 if self._started_s is None else self._ended_s - self._started_s,
        )

    def step_times(self) -> StepTimes | None:
        """How long steps took, and what they spent it on; None before the first step that scheduled a token."""
        if not self._step_s:
            return None
        return StepTimes(
            median_s=median(self._step_s),
            p90_s=_nearest_rank(self._step_s, 0.9),
            max_s=max(self._step_s),
            schedule_s=self._schedule_s,
            execute_s=self._execute_s,
            update_s=self._update_s,
        )

    def _count_admissions(self, output: SchedulerOutput) -> None:
        first: set[RequestId] = set()
        for admission in output.admitted:
            self.prefix_hit_tokens += admission.num_cached_tokens
            if not admission.resumed:
                self.first_prefix_hit_tokens += admission.num_cached_tokens
                first.add(admission.request_id)
        self.admitted += len(first)
        self.admitted_prompt_tokens += sum(
            item.request.num_prompt_tokens for item in output.scheduled if item.request.request_id in first
        )

    def _count_swaps(self, output: SchedulerOutput, kv_cache: KVCacheManager) -> None:
        space = kv_cache.swap_space
        if space is None:
            return
        self.swapped_out_blocks = (self.swapped_out_blocks or 0) + len(output.moves_out)
        self.swapped_out_tokens = (self.swapped_out_tokens or 0) + sum(swap.num_tokens for swap in output.swapped_out)
        self.swapped_in_blocks = (self.swapped_in_blocks or 0) + len(output.moves_in)
        self.swapped_in_tokens = (self.swapped_in_tokens or 0) + sum(swap.num_tokens for swap in output.swapped_in)
        self.host_blocks_in_use, self.peak_host_blocks = space.host.num_used, space.host.peak_used

    def _count_recomputed(self, output: SchedulerOutput) -> None:
        reached = self._reached
        for item in output.scheduled:
            request, start, num_tokens, _, _ = item
            end, known = start + num_tokens, reached.get(request.request_id, 0)
            if request.draft_token_ids:
                end -= item.num_drafts  # it is not known yet which are right
            if known > start:
                self.recomputed_tokens += min(known, end) - start
                end = max(known, end)
            reached[request.request_id] = end


def _memory_after(output: SchedulerOutput, running: Sequence[Request], kv_cache: KVView) -> MemoryUse:
    """Where the slots are once the step is computed, whether or not the scheduler has advanced the requests already."""
    if isinstance(kv_cache, KVCacheManager) and len(output.scheduled) == len(running):
        return kv_cache.scheduled_use(output.scheduled)
    tokens_after = {item.request.request_id: item.start + item.num_tokens for item in output.scheduled}
    return kv_cache.memory_use(
        (request.request_id, tokens_after.get(request.request_id, request.num_computed_tokens)) for request in running
    )


def _nearest_rank(values: Sequence[float], quantile: float) -> float:
    ordered = sorted(values)
    return ordered[ceil(quantile * len(ordered)) - 1]
