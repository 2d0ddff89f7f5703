import pytest

from kvengine.allocators.buddy import BuddyPool
from kvengine.allocators.extents import SlabPool
from kvengine.allocators.memory_use import MemoryUse
from kvengine.allocators.reserving import ReservingManager
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.errors import ConfigError
from kvengine.kv_groups.kinds import SlidingWindow
from kvengine.request import Request, RequestId
from kvengine.scheduler import Scheduler
from tests.builders import a_request, an_engine_config

TOKEN = 7


def a_config(num_slots: int, *, max_model_len: int = 32, budget: int = 8192, watermark: float = 0.0) -> EngineConfig:
    limits = SchedulerConfig(max_model_len=max_model_len, max_num_batched_tokens=budget, watermark=watermark)
    return an_engine_config(num_blocks=num_slots + 1, block_size=1, caching=False, limits=limits)


def contiguous(config: EngineConfig) -> Scheduler:
    pool = SlabPool(config.num_blocks - 1, config.scheduler.max_model_len)
    return Scheduler(config, memory=ReservingManager(config, pool))


def buddy(config: EngineConfig) -> Scheduler:
    return Scheduler(config, memory=ReservingManager(config, BuddyPool(config.num_blocks - 1)))


def step(scheduler: Scheduler) -> list[str]:
    """One step; returns who was admitted."""
    output = scheduler.schedule()
    scheduler.check_invariants()
    scheduler.update(output, {item.request.request_id: TOKEN for item in output.scheduled if item.samples})
    scheduler.check_invariants()
    assert not output.preempted
    assert not output.block_copies
    return [admission.request_id for admission in output.admitted]


def use(scheduler: Scheduler) -> MemoryUse:
    found = scheduler.kv_cache.memory_use((item.request_id, item.num_computed_tokens) for item in scheduler.running)
    found.check_invariants()
    return found


def test_a_chat_turn_in_a_reservation_of_32768_leaves_98_percent_of_it_empty() -> None:
    # 512 prompt and 100 output tokens; the last one is sampled and never stored.
    config = a_config(428_560, max_model_len=32_768, budget=2**16)
    scheduler = contiguous(config)
    for number in range(20):
        scheduler.add_request(a_request(f"r{number}", prompt=[1] * 512, max_tokens=100))

    assert len(step(scheduler)) == 13
    for _ in range(98):
        assert step(scheduler) == []
    held = use(scheduler)
    assert (held.used, held.pending) == (13 * 610, 13 * 2)
    assert held.reserved == 13 * (32_768 - 612)
    assert (held.internal, held.external) == (0, 2576)
    assert held.reserved / held.held == pytest.approx(0.9813, abs=5e-5)
    assert held.unfilled / held.held == pytest.approx(1 - 610 / 32_768)
    assert held.index_bytes == 13 * 4


def test_a_buddy_reservation_is_what_the_request_may_need_rounded_up() -> None:
    scheduler = buddy(a_config(64))
    scheduler.add_request(a_request("a", prompt="abcde", max_tokens=6))
    step(scheduler)

    # 11 tokens at most in 16 slots.
    assert use(scheduler) == MemoryUse(total=64, used=5, pending=6, reserved=0, internal=5, external=0, index_bytes=4)
    step(scheduler)
    assert use(scheduler).used == 6
    assert use(scheduler).pending == 5


def test_slots_of_a_request_follow_each_other_and_stay() -> None:
    scheduler = buddy(a_config(64))
    scheduler.add_request(a_request("a", prompt="abcde", max_tokens=6))
    scheduler.add_request(a_request("b", prompt="abcde", max_tokens=6))
    step(scheduler)
    assert list(scheduler.kv_cache.block_ids(RequestId("a"))) == list(range(1, 12))
    assert list(scheduler.kv_cache.block_ids(RequestId("b"))) == list(range(17, 28))


def test_a_request_waits_while_the_free_slots_lie_apart_and_the_wait_is_counted() -> None:
    config = a_config(16)
    memory = ReservingManager(config, BuddyPool(16))
    scheduler = Scheduler(config, memory=memory)
    # Four reservations of 4; the first and the third end after two steps.
    for number, max_tokens in enumerate((2, 3, 2, 3)):
        scheduler.add_request(a_request(f"r{number}", prompt="a" if max_tokens == 3 else "ab", max_tokens=max_tokens))
    scheduler.add_request(a_request("large", prompt="abcd", max_tokens=4))

    assert step(scheduler) == ["r0", "r1", "r2", "r3"]
    assert step(scheduler) == []
    assert memory.num_fragmented_steps == 0
    assert memory.pool.num_free == 8
    # Eight slots are free and eight are wanted, in two pieces of four.
    scheduler.schedule()
    assert memory.num_fragmented_steps == 1
    assert use(scheduler).external == 8


def test_a_request_that_waits_is_admitted_when_its_run_is_whole_again() -> None:
    scheduler = buddy(a_config(16))
    for name in ("a", "b"):
        scheduler.add_request(a_request(name, prompt="abcdef", max_tokens=2))
    scheduler.add_request(a_request("c", prompt="abcdefghi", max_tokens=2))

    assert step(scheduler) == ["a", "b"]
    assert step(scheduler) == []
    assert step(scheduler) == ["c"]
    step(scheduler)
    assert not scheduler.has_unfinished
    assert scheduler.kv_cache.pool.num_free == 16


def test_the_watermark_leaves_free_slots_beside_a_running_request() -> None:
    scheduler = buddy(a_config(64, watermark=0.5))
    for name in ("a", "b", "c"):
        scheduler.add_request(a_request(name, prompt="abcdefgh", max_tokens=8))
    # int(0.5 * 65) = 32 slots stay free: two of 16 are admitted, the third would leave 16.
    assert step(scheduler) == ["a", "b"]


@pytest.mark.parametrize(
    ("scheduler", "request_", "message"),
    [
        (
            contiguous(a_config(20, max_model_len=32)),
            a_request("a", prompt="abc", max_tokens=2),
            "request 'a' is given 32 consecutive slots for its 5 tokens, and the largest run that the pool of 20 hands"
            " out is 0",
        ),
        (
            buddy(a_config(39, max_model_len=64)),
            a_request("a", prompt="a" * 30, max_tokens=3),
            "request 'a' is given 64 consecutive slots for its 33 tokens, and the largest run that the pool of 39 hands"
            " out is 32",
        ),
    ],
)
def test_a_request_that_no_empty_pool_could_hold_is_named(
    scheduler: Scheduler, request_: Request, message: str
) -> None:
    misfit = scheduler.never_fits(request_)
    assert misfit is not None
    assert misfit.message == message


def test_an_abort_gives_the_whole_reservation_back() -> None:
    scheduler = contiguous(a_config(64))
    scheduler.add_request(a_request("a"))
    step(scheduler)
    assert scheduler.kv_cache.pool.num_used == 32
    scheduler.abort_request(RequestId("a"))
    scheduler.check_invariants()
    assert scheduler.kv_cache.pool.num_used == 0


@pytest.mark.parametrize(
    "config",
    [an_engine_config(block_size=4), an_engine_config(block_size=1, groups=[SlidingWindow(block_size=1, window=4)])],
)
def test_other_layers_and_larger_blocks_are_refused(config: EngineConfig) -> None:
    with pytest.raises(ConfigError, match="one group of full attention in blocks of one token"):
        ReservingManager(config, BuddyPool(8))


def test_a_request_that_is_preempted_by_hand_reserves_anew_and_ends_as_it_would_have() -> None:
    scheduler = buddy(a_config(32))
    request = a_request("a", prompt="abcde", max_tokens=6)
    scheduler.add_request(request)
    step(scheduler)
    step(scheduler)
    scheduler.preempt(RequestId("a"))
    output = scheduler.schedule()
    assert output.preempted == ["a"]
    scheduler.update(output, {})
    assert scheduler.kv_cache.pool.num_used == 0
    while scheduler.has_unfinished:
        step(scheduler)
    assert request.num_output_tokens == 6
    assert scheduler.kv_cache.pool.num_used == 0


def test_further_sequences_of_a_prompt_have_reservations_of_their_own() -> None:
    scheduler = buddy(a_config(64))
    scheduler.add_request(a_request("a", prompt="abcde", max_tokens=6, n=3))
    most = 0
    while scheduler.has_unfinished:
        output = scheduler.schedule()
        scheduler.check_invariants()
        most = max(most, scheduler.kv_cache.pool.num_used)
        scheduler.update(output, {name: TOKEN for item in output.scheduled for name in item.sampled_ids})
        scheduler.check_invariants()
    # 11 tokens at most in 16 slots each.
    assert most == 3 * 16
    assert scheduler.kv_cache.pool.num_used == 0


def test_a_fork_and_a_pin_are_refused_by_name() -> None:
    scheduler = buddy(a_config(64))
    scheduler.add_request(a_request("a"))
    step(scheduler)
    with pytest.raises(ConfigError, match="fork"):
        scheduler.fork(RequestId("a"), [RequestId("b")])
    with pytest.raises(ConfigError, match="pin"):
        scheduler.pin(RequestId("a"))
    assert list(scheduler.kv_cache.cache_entries()) == []
