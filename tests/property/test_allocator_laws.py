"""Whichever allocator: no token is attended to whose slot does not hold it, and every slot is counted where it is."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from kvengine.allocators.kinds import AllocatorKind
from kvengine.allocators.protocol import EngineScheduler
from kvengine.allocators.select import make_scheduler
from kvengine.config import SchedulerConfig
from kvengine.request import Request, RequestId
from kvengine.scheduler_output import SchedulerOutput
from tests.builders import a_request, an_engine_config

MAX_MODEL_LEN = 24


@dataclass(frozen=True)
class Arrival:
    step: int
    prompt: str
    max_tokens: int
    abort_after: int | None
    """Steps from its arrival until it is taken out; None for never."""


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        step=st.integers(0, 12),
        prompt=st.text("ab", min_size=1, max_size=16),
        max_tokens=st.integers(1, 12),
        abort_after=st.none() | st.integers(0, 8),
    ),
    min_size=1,
    max_size=10,
)


class PlainMemory:
    """What is written in every slot: the tokens of the prefix that ends there."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._content: dict[int, tuple[int, ...]] = {}

    def compute(self, output: SchedulerOutput) -> None:
        """Write what a step computes, then see that each request finds all its tokens."""
        for source, destination in output.block_copies:
            for offset in range(self._block_size):
                content = self._content.get(source * self._block_size + offset)
                if content is not None:
                    self._content[destination * self._block_size + offset] = content
        written: set[int] = set()
        for item in output.scheduled:
            for position in range(item.start, item.start + item.num_tokens):
                slot = self.slot(item.block_ids, position)
                assert slot not in written, f"two tokens of one step go to slot {slot}"
                written.add(slot)
                self._content[slot] = tuple(item.request.all_token_ids[: position + 1])
        for item in output.scheduled:
            for position in range(item.start + item.num_tokens):
                found = self._content.get(self.slot(item.block_ids, position))
                assert found == tuple(item.request.all_token_ids[: position + 1]), (
                    f"{item.request.request_id} attends to position {position} and finds {found}"
                )

    def slot(self, table: object, position: int) -> int:
        block = table[position // self._block_size]
        assert block >= 1
        return block * self._block_size + position % self._block_size


def check_use(scheduler: EngineScheduler, output: SchedulerOutput, memory: PlainMemory, total: int) -> None:
    """The parts are what a walk over all tables finds."""
    reached = {item.request.request_id: item.start + item.num_tokens for item in output.scheduled}
    tokens = [(item.request_id, reached.get(item.request_id, item.num_computed_tokens)) for item in scheduler.running]
    use = scheduler.kv_cache.memory_use(tokens)
    use.check_invariants()
    filled = {
        memory.slot(scheduler.kv_cache.block_ids(name), position) for name, count in tokens for position in range(count)
    }
    assert use.used == len(filled)
    assert use.total == total
    assert use.held == scheduler.kv_cache.pool.num_used * scheduler.kv_cache.sizes.block_sizes[0]
    assert use.total - use.held >= use.external


@given(
    arrivals=ARRIVALS,
    allocator=st.sampled_from(AllocatorKind),
    unit=st.integers(1, 4),
    num_slots=st.sampled_from([40, 64, 75]),
    budget=st.sampled_from([4, 9, 64]),
    caching=st.booleans(),
    chunked=st.booleans(),
)
@settings(max_examples=250, deadline=None)
def test_every_token_is_where_it_was_written_and_every_slot_is_counted(
    arrivals: list[Arrival],
    allocator: AllocatorKind,
    unit: int,
    num_slots: int,
    budget: int,
    caching: bool,
    chunked: bool,
) -> None:
    block_size = 1 if allocator.is_reserving else unit
    limits = SchedulerConfig(
        max_num_seqs=5,
        max_num_batched_tokens=budget if chunked else 64,
        max_model_len=MAX_MODEL_LEN,
        enable_chunked_prefill=chunked,
    )
    config = an_engine_config(
        num_blocks=num_slots // block_size + 1,
        block_size=block_size,
        caching=caching and not allocator.is_reserving,
        limits=limits,
    )
    scheduler, memory = make_scheduler(config, allocator), PlainMemory(block_size)
    requests: dict[RequestId, Request] = {}
    ended: set[str] = set()
    step = 0
    while step <= 12 or scheduler.has_unfinished:
        for number, arrival in enumerate(arrivals):
            name = RequestId(f"r{number}")
            if arrival.step == step:
                requests[name] = a_request(name, prompt=arrival.prompt, max_tokens=arrival.max_tokens)
                assert scheduler.never_fits(requests[name]) is None
                scheduler.add_request(requests[name])
            if arrival.abort_after is not None and arrival.step + arrival.abort_after == step:
                ended |= {name} if scheduler.abort_request(name) is not None else set()
        output = scheduler.schedule()
        memory.compute(output)
        check_use(scheduler, output, memory, num_slots // block_size * block_size)
        if allocator.is_reserving:
            assert not output.preempted
        sampled = {item.request.request_id: ord("ab"[step % 2]) for item in output.scheduled if item.samples}
        ended |= {request.request_id for request in scheduler.update(output, sampled)}
        scheduler.check_invariants()
        step += 1
        assert step < 500, "nothing moves any more"
    assert ended == set(requests)
    for number, arrival in enumerate(arrivals):
        request = requests[RequestId(f"r{number}")]
        if arrival.abort_after is None:
            most = min(arrival.max_tokens, MAX_MODEL_LEN - request.num_prompt_tokens)
            assert request.num_output_tokens == most
    assert scheduler.kv_cache.pool.num_used == 0
