"""What `kvplan budget` says of four designs, against the same designs at work on the same requests.

The budget counts requests that are there together at their full length. Where an allocator takes all of it at once, a
run must come to the same; where it takes slots as tokens come, only if a prompt takes as many blocks as all its tokens.
"""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvengine.allocators.kinds import AllocatorKind, index_table_bytes
from kvengine.allocators.memory_use import MemoryUse
from kvengine.allocators.protocol import EngineScheduler
from kvengine.allocators.select import make_scheduler
from kvengine.config import EngineConfig, SchedulerConfig
from kvplan.baselines import Baseline, Design, compare_designs
from kvplan.capacity import EngineKind, count_blocks
from kvplan.demand import uniform_demand
from tests.builders import a_kv_cache_spec, a_request, an_engine_config

MAX_NUM_SEQS = 64
LENGTHS = {
    "num_slots": st.integers(30, 400),
    "longest": st.integers(8, 60),
    "prompt": st.integers(1, 40),
    "output": st.integers(1, 20),
}


def planned(design: Design, *, num_slots: int, longest: int, prompt: int, output: int, block_size: int = 1) -> Baseline:
    spec = a_kv_cache_spec(block_size=block_size)
    capacity = count_blocks(spec, EngineKind.PAGED, available_bytes=num_slots * spec.token_bytes, max_model_len=longest)
    demand = uniform_demand(prompt_tokens=prompt, output_tokens=output)
    return compare_designs(capacity, demand, table_requests=MAX_NUM_SEQS, prefix_caching=False)[design]


def a_config(*, num_slots: int, longest: int, block_size: int = 1) -> EngineConfig:
    limits = SchedulerConfig(max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=10_000, max_model_len=longest)
    num_blocks = num_slots // block_size + 1
    return an_engine_config(num_blocks=num_blocks, block_size=block_size, caching=False, limits=limits)


def start(kind: AllocatorKind, config: EngineConfig, *, prompt: int, output: int) -> EngineScheduler:
    """More equal requests than can be there at once."""
    scheduler = make_scheduler(config, kind)
    for number in range(MAX_NUM_SEQS):
        scheduler.add_request(a_request(f"r{number}", prompt=[number] * prompt, max_tokens=output))
    return scheduler


def at_full_length(scheduler: EngineScheduler, *, output: int) -> tuple[int, MemoryUse]:
    """Step to where the first requests compute their last token but one; the last is sampled and never stored."""
    for number in range(output):
        step = scheduler.schedule()
        assert not step.preempted
        if number == output - 1:
            reached = [(item.request.request_id, item.start + item.num_tokens) for item in step.scheduled]
            return len(reached), scheduler.kv_cache.memory_use(reached)
        scheduler.update(step, {item.request.request_id: 7 for item in step.scheduled})
    raise AssertionError("no output was asked for")


@given(kind=st.sampled_from([AllocatorKind.CONTIGUOUS, AllocatorKind.BUDDY]), **LENGTHS)
@settings(max_examples=150, deadline=None)
def test_reserving_designs_hold_what_the_budget_says(
    kind: AllocatorKind, num_slots: int, longest: int, prompt: int, output: int
) -> None:
    assume(prompt + output <= longest)
    plan = planned(Design(kind), num_slots=num_slots, longest=longest, prompt=prompt, output=output)
    assume(0 < plan.requests < MAX_NUM_SEQS)
    config = a_config(num_slots=num_slots, longest=longest)

    count, use = at_full_length(start(kind, config, prompt=prompt, output=output), output=output)

    assert count == plan.requests
    assert use.held == plan.slots_allocated
    assert (use.reserved, use.internal) == (plan.reserved_waste_slots, plan.internal_waste_slots)
    # The budget counts each request's last token, for which a slot is held and never filled.
    assert (use.used, use.pending) == (plan.slots_used - count, count)
    assert index_table_bytes(kind, config) == plan.index_bytes
    # The budget knows of no holes; a rest that is shorter than a slab is lost in a run.
    rest = num_slots % longest if kind is AllocatorKind.CONTIGUOUS else 0
    assert plan.external_waste_slots == 0
    assert use.external == rest


@given(block_size=st.integers(1, 16), **LENGTHS)
@settings(max_examples=150, deadline=None)
def test_blocks_hold_what_the_budget_says_where_outputs_fit_into_the_prompts_last_block(
    block_size: int, num_slots: int, longest: int, prompt: int, output: int
) -> None:
    assume(prompt + output <= longest)
    plan = planned(
        Design.PAGED, num_slots=num_slots, longest=longest, prompt=prompt, output=output, block_size=block_size
    )
    assume(0 < plan.requests < MAX_NUM_SEQS)
    config = a_config(num_slots=num_slots, longest=longest, block_size=block_size)
    scheduler = start(AllocatorKind.PAGED, config, prompt=prompt, output=output)
    assert index_table_bytes(AllocatorKind.PAGED, config) == plan.index_bytes
    if -(-prompt // block_size) < -(-(prompt + output) // block_size):
        # Admitted by their prompts: as many as the budget counts, or more, some of which are preempted later.
        assert len(scheduler.schedule().admitted) >= plan.requests
        return

    count, use = at_full_length(scheduler, output=output)

    assert count == plan.requests
    assert use.held == plan.slots_allocated
    assert use.internal == plan.internal_waste_slots + count
    assert use.used == plan.slots_used - count


@given(**LENGTHS)
@settings(max_examples=150, deadline=None)
def test_single_tokens_are_admitted_more_carefully_than_the_budget_counts(
    num_slots: int, longest: int, prompt: int, output: int
) -> None:
    assume(prompt + output <= longest)
    plan = planned(Design.TOKEN_LEVEL, num_slots=num_slots, longest=longest, prompt=prompt, output=output)
    assume(0 < plan.requests < MAX_NUM_SEQS)
    config = a_config(num_slots=num_slots, longest=longest)
    scheduler = start(AllocatorKind.TOKEN_LEVEL, config, prompt=prompt, output=output)
    assert index_table_bytes(AllocatorKind.TOKEN_LEVEL, config) == plan.index_bytes

    admitted = len(scheduler.schedule().admitted)

    # SGLang sets a page aside for each request, and must have more than it needs.
    assert admitted == (num_slots - 1) // (prompt + output + 1)
    assert admitted <= plan.requests
