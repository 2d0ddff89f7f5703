"""Where the slots are, by the worked numbers of lectures on paged memory."""

import pytest

from kvengine.allocators.kinds import AllocatorKind
from kvengine.allocators.memory_use import MemoryUse
from kvengine.allocators.protocol import EngineScheduler
from kvengine.allocators.select import make_scheduler
from kvengine.config import SchedulerConfig
from kvengine.request import RequestId
from kvengine.scheduler import Scheduler
from tests.builders import a_request, an_engine_config


def started(
    kind: AllocatorKind, *lengths: int, num_slots: int, block_size: int = 1, caching: bool = False
) -> tuple[EngineScheduler, MemoryUse]:
    """The first step of requests that are all prompt but for one token, and where the slots are then."""
    limits = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=256, max_model_len=64)
    config = an_engine_config(
        num_blocks=num_slots // block_size + 1, block_size=block_size, caching=caching, limits=limits
    )
    scheduler = make_scheduler(config, kind)
    for number, length in enumerate(lengths):
        scheduler.add_request(a_request(f"r{number}", prompt=[number] * length, max_tokens=1))
    step = scheduler.schedule()
    reached = [(item.request.request_id, item.start + item.num_tokens) for item in step.scheduled]
    return scheduler, scheduler.kv_cache.memory_use(reached)


def test_four_unaligned_requests_fill_128_slots_and_leave_15_of_them_empty() -> None:
    # 17, 31, 32 and 33 tokens in blocks of 8: 24 + 32 + 32 + 40 slots.
    scheduler, use = started(AllocatorKind.PAGED, 17, 31, 32, 33, num_slots=128, block_size=8)

    assert len(scheduler.running) == 4
    assert (use.held, use.used, use.internal, use.pending, use.reserved) == (128, 113, 15, 0, 0)
    # 3 + 4 + 4 + 5 entries of four bytes.
    assert use.index_bytes == 16 * 4


@pytest.mark.parametrize(("block_size", "running", "internal"), [(4, 3, 4), (8, 2, 6)])
def test_three_requests_fit_into_32_slots_in_blocks_of_4_and_not_of_8(
    block_size: int, running: int, internal: int
) -> None:
    # 7, 11 and 10 tokens: 8 + 12 + 12 slots with 1 + 1 + 2 empty; or 8 + 16, with 1 + 5 empty, and the third waits.
    scheduler, use = started(AllocatorKind.PAGED, 7, 11, 10, num_slots=32, block_size=block_size)
    assert (len(scheduler.running), use.internal) == (running, internal)


@pytest.mark.parametrize("kind", [AllocatorKind.PAGED, AllocatorKind.TOKEN_LEVEL])
def test_the_tails_of_1_15_16_and_17_tokens_in_pages_of_16(kind: AllocatorKind) -> None:
    # 15 + 1 + 0 + 15.
    _, use = started(kind, 1, 15, 16, 17, num_slots=160, block_size=16)
    assert (use.held, use.used, use.internal) == (80, 49, 31)


def test_single_tokens_waste_nothing() -> None:
    scheduler, use = started(AllocatorKind.TOKEN_LEVEL, 7, 11, 10, num_slots=40)
    assert len(scheduler.running) == 3
    assert (use.held, use.used, use.unfilled, use.external) == (28, 28, 0, 0)
    assert use.index_bytes == 28 * 4


def test_a_power_of_two_each_holds_two_of_the_three() -> None:
    # With their last token 8, 12 and 11: 8 + 16 slots, and the third would need 16 of the 8 that are left.
    scheduler, use = started(AllocatorKind.BUDDY, 7, 11, 10, num_slots=32)
    assert len(scheduler.running) == 2
    assert (use.held, use.used, use.pending, use.internal, use.external) == (24, 18, 2, 4, 0)


def test_a_shared_block_counts_once_and_cached_ones_have_their_entries() -> None:
    limits = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=256, max_model_len=64)
    scheduler = make_scheduler(an_engine_config(num_blocks=33, block_size=4, limits=limits), AllocatorKind.PAGED)
    for name, end in (("a", "x"), ("b", "y")):
        scheduler.add_request(a_request(name, prompt="aaaabbbb" + end, max_tokens=4))
    step = scheduler.schedule()
    use = scheduler.kv_cache.memory_use([(item.request.request_id, 9) for item in step.scheduled])

    # Two blocks are shared and each has one of its own with a token in it: 16 slots, 10 of them used.
    assert (use.held, use.used, use.internal) == (16, 10, 6)
    # Two tables of three entries, and two cached blocks: a digest of 32 bytes and an id.
    assert use.index_bytes == 2 * 3 * 4 + 2 * 36


def test_a_step_that_brings_every_running_request_is_counted_as_if_each_were_asked() -> None:
    limits = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64)
    scheduler = Scheduler(an_engine_config(num_blocks=40, block_size=4, limits=limits))
    for name, length in (("a", 5), ("b", 13)):
        scheduler.add_request(a_request(name, prompt=[7] * length, max_tokens=9))
    for number in range(8):
        output = scheduler.schedule()
        tokens = [(item.request.request_id, item.start + item.num_tokens) for item in output.scheduled]
        tables = [tuple(item.block_ids) for item in output.scheduled]
        asked = scheduler.kv_cache.memory_use(tokens)
        assert len(scheduler.running) == len(output.scheduled) > 0
        assert scheduler.kv_cache.scheduled_use(output.scheduled) == asked
        # Each block that somebody holds counts once, and is filled as far as the longest of its holders goes.
        filled: dict[int, int] = {}
        for table, (_, reached) in zip(tables, tokens, strict=True):
            for place, block in enumerate(table):
                filled[block] = max(filled.get(block, 0), min(reached - 4 * place, 4))
        assert (asked.used, asked.internal) == (sum(filled.values()), 4 * len(filled) - sum(filled.values()))
        scheduler.update(output, {item.request.request_id: 1 for item in output.scheduled})
        if number == 2:
            transfer = scheduler.pin(RequestId("a"))
            scheduler.fork(RequestId("a"), [RequestId("c")])
            assert scheduler.kv_cache.scheduled_use(()).internal > 0  # the transfer alone
            scheduler.unpin(transfer.handle)
