"""Any workload runs to its end, and no token ever attends to a slot that was not written for its content."""

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from kvengine.radix.config import RadixConfig
from kvengine.radix.eviction import EvictionPolicy
from kvengine.radix.queue_order import QueueOrder
from kvengine.radix.scheduler import RadixScheduler
from kvengine.request import FinishReason, Request, RequestId, RequestStatus
from kvengine.scheduler_output import ScheduledRequest, SchedulerOutput
from tests.builders import a_request
from tests.radix_builders import CheckedMemory

MAX_MODEL_LEN = 40
STOP_TOKEN = 9


@st.composite
def configs(draw: st.DrawFn) -> RadixConfig:
    """Small pools and tight limits, in which every request fits alone."""
    page_size = draw(st.sampled_from([1, 1, 2, 4, 8]))
    fits_one = MAX_MODEL_LEN + 2 * page_size
    chunked = draw(st.booleans())
    return RadixConfig(
        num_tokens=draw(st.integers(fits_one, fits_one * 2)),
        page_size=page_size,
        max_num_seqs=draw(st.integers(1, 8)),
        max_model_len=MAX_MODEL_LEN,
        order=draw(st.sampled_from(QueueOrder)),
        eviction=draw(st.sampled_from([EvictionPolicy.LRU, *EvictionPolicy])),
        chunk_tokens=draw(st.integers(page_size, 30)) if chunked else None,
        max_prefill_tokens=draw(st.sampled_from([16384, 24])),
        conservativeness=draw(st.sampled_from([0.1, 0.1, 0.3, 1.0, 2.0])),
    )


@dataclass
class Workload:
    """A scheduler, a model that samples by chance, and a memory that knows what it computed."""

    config: RadixConfig
    chance: random.Random
    memory: CheckedMemory = field(default_factory=CheckedMemory)
    requests: dict[RequestId, Request] = field(default_factory=dict)
    num_preemptions: int = 0

    def __post_init__(self) -> None:
        self.scheduler = RadixScheduler(self.config)

    def add(self) -> None:
        chance = self.chance
        prompt = [7] * chance.choice([0, 0, 3, 8, 9, 16, 20]) + chance.choices([0, 1], k=chance.randint(1, 16))
        request = a_request(
            f"r{len(self.requests)}",
            prompt=prompt[: MAX_MODEL_LEN - 1],
            max_tokens=chance.choice([1, 4, 15, 39, 39]),
            priority=chance.randint(0, 2),
            salt=chance.choice(["", "", "s"]),
            stop=chance.choice([[], [STOP_TOKEN], [STOP_TOKEN]]),
        )
        assert self.scheduler.never_fits(request) is None
        self.requests[request.request_id] = request
        self.scheduler.add_request(request)

    def abort(self) -> None:
        name = self.chance.choice(list(self.requests))
        ended = self.requests[name].status is RequestStatus.FINISHED
        assert (self.scheduler.abort_request(name) is None) == ended

    def step(self) -> SchedulerOutput:
        output = self.scheduler.schedule()
        for item in output.scheduled:
            self.compute(item)
        if self.chance.random() < 0.05:
            self.abort()
        self.num_preemptions += len(output.preempted)
        sampled = {item.request.request_id: self.next_token() for item in output.scheduled if item.samples}
        for request in self.scheduler.update(output, sampled):
            assert request.status is RequestStatus.FINISHED
            if request.finish_reason is FinishReason.LENGTH:
                assert request.num_tokens == request.max_num_tokens
        self.scheduler.check_invariants()
        return output

    def compute(self, item: ScheduledRequest) -> None:
        """Read all earlier tokens' slots, write those of the new tokens."""
        page_size, request = self.config.page_size, item.request
        end = item.start + item.num_tokens
        slots = [item.block_ids[at // page_size] * page_size + at % page_size for at in range(end)]
        self.memory.write(request.cache_salt, request.all_token_ids, slots, item.start)

    def next_token(self) -> int:
        return STOP_TOKEN if self.chance.random() < 0.03 else self.chance.choice([0, 1])

    def run_to_the_end(self) -> None:
        idle = 0
        while self.scheduler.has_unfinished:
            output = self.step()
            idle = 0 if output.scheduled or output.preempted else idle + 1
            assert idle < 3, "requests wait, and nothing moves any more"
        pool, tree = self.scheduler.cache.pool, self.scheduler.cache.tree
        assert tree.num_protected == 0, "somebody kept a lock"
        assert pool.num_free + tree.num_evictable == pool.num_slots, "somebody kept slots"


@given(config=configs(), seed=st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_a_busy_workload_runs_to_its_end_on_what_was_written_for_it(config: RadixConfig, seed: int) -> None:
    workload = Workload(config, random.Random(seed))
    for _ in range(20):
        for _ in range(workload.chance.randint(0, 3)):
            workload.add()
        for _ in range(workload.chance.randint(1, 3)):
            if workload.requests:
                workload.step()
    workload.run_to_the_end()


def test_such_workloads_do_retract_hit_and_chunk() -> None:
    # What the test above relies on: its workloads really reach these states.
    preemptions = hits = chunks = 0
    for seed in range(12):
        config = RadixConfig(
            num_tokens=80, max_model_len=MAX_MODEL_LEN, chunk_tokens=8, conservativeness=0.1, order=QueueOrder.LPM
        )
        workload = Workload(config, random.Random(seed))
        for _ in range(12):
            workload.add()
        while workload.scheduler.has_unfinished:
            output = workload.step()
            hits += sum(admission.num_cached_tokens for admission in output.admitted)
            chunks += sum(not item.samples for item in output.scheduled)
        preemptions += workload.num_preemptions
    assert preemptions > 0
    assert hits > 0
    assert chunks > 0
