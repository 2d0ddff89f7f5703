"""Swapping to the host and back, block by block, on cases that can be followed by hand."""

import pytest

from kvengine.clock import VirtualClock
from kvengine.config import EngineConfig, PreemptionMode, SchedulerConfig, SchedulingPolicy
from kvengine.engine import Engine
from kvengine.errors import ConfigError
from kvengine.host_pool import HostPool
from kvengine.request import Request, RequestId
from kvengine.runner import SyntheticRunner
from kvengine.scheduler import Scheduler
from kvengine.scheduler_output import SchedulerOutput
from tests.builders import a_request, an_engine_config
from tests.fake_device import FakeDevice

LETTER = ord("z")


class Run:
    """A scheduler whose every step is checked by a device."""

    def __init__(self, config: EngineConfig, *requests: Request) -> None:
        self.scheduler = Scheduler(config)
        self.device = FakeDevice(config)
        for request in requests:
            self.scheduler.add_request(request)

    def step(self) -> SchedulerOutput:
        output = self.scheduler.schedule()
        self.device.execute(output)
        self.scheduler.update(output, {item.request.request_id: LETTER for item in output.scheduled if item.samples})
        self.scheduler.check_invariants()
        return output

    @property
    def host(self) -> HostPool:
        space = self.scheduler.kv_cache.swap_space
        assert space is not None
        return space.host


def two_requests() -> tuple[Request, Request]:
    """Four prompt tokens each; the first one's second block makes the other go."""
    return a_request("a", prompt="abcd", max_tokens=4), a_request("b", prompt="wxyz", max_tokens=4)


def test_a_victim_moves_to_the_host_and_goes_on_where_it_was() -> None:
    a, b = two_requests()
    run = Run(an_engine_config(num_blocks=4, caching=False, num_host_blocks=5), a, b)
    run.step()  # a: block 1, b: block 2
    output = run.step()  # a takes block 3, and b finds none
    assert output.preempted == ["b"]
    (swap,) = output.swapped_out
    assert (swap.request_id, swap.num_tokens, output.moves_out) == ("b", 4, [(2, 0)])
    assert (run.host.num_used, b.num_computed_tokens) == (1, 0)
    run.step()
    run.step()  # a ends
    output = run.step()
    # Block 3 was freed last, so what moves back goes there; the fifth token goes into another.
    assert output.moves_in == [(0, 3)]
    assert [(item.start, item.num_tokens) for item in output.scheduled] == [(4, 1)]
    assert list(output.scheduled[0].block_ids) == [3, 1] == list(output.scheduled[0].new_block_ids)
    assert (run.host.num_used, run.host.peak_used) == (0, 1)


def test_without_room_on_the_host_the_victim_is_computed_again() -> None:
    a = a_request("a", prompt="abcdefgh", max_tokens=4)
    b = a_request("b", prompt="stuvwxyz", max_tokens=4)
    run = Run(an_engine_config(num_blocks=6, caching=False, num_host_blocks=1), a, b)
    run.step()  # two blocks each
    output = run.step()  # a takes the fifth
    assert output.preempted == ["b"]
    assert not output.swapped_out
    assert run.host.num_used == 0
    run.step()
    run.step()
    output = run.step()
    assert [(item.start, item.num_tokens) for item in output.scheduled] == [(0, 9)]


def test_a_block_that_is_shared_stays_where_it_is_and_stays_owned() -> None:
    a, b = a_request("a", prompt="sharedAA", max_tokens=3), a_request("b", prompt="sharedBB", max_tokens=3)
    run = Run(an_engine_config(num_blocks=5, num_host_blocks=5), a, b)
    run.step()  # a: blocks 1 and 2; b shares 1 and has 3
    pool = run.scheduler.kv_cache.pool
    output = run.step()  # a takes block 4, b finds none
    assert output.preempted == ["b"]
    assert output.moves_out == [(3, 0)]
    assert pool.ref_count(1) == 2  # a, and what b keeps
    run.step()  # a ends
    assert pool.ref_count(1) == 1
    assert b.num_preemptions == 1


def test_who_is_aborted_while_swapped_out_gives_back_everything() -> None:
    a, b = two_requests()
    run = Run(an_engine_config(num_blocks=4, caching=False, num_host_blocks=5), a, b)
    run.step()
    run.step()
    run.scheduler.abort_request(RequestId("b"))
    run.scheduler.check_invariants()
    assert run.host.num_used == 0


def test_a_chosen_victim_that_nobody_needs_to_go_is_swapped_too() -> None:
    a, b = two_requests()
    run = Run(an_engine_config(num_host_blocks=5), a, b)
    run.step()
    run.scheduler.preempt(RequestId("a"))
    assert run.step().moves_out == [(1, 0)]
    # Its block is still in the prefix cache, but a hit leaves out the last known token only: 4 of 5 tokens, as many as
    # it keeps, so nothing needs to move back.
    output = run.step()
    assert output.moves_in == []
    assert [(item.request.request_id, item.start) for item in output.scheduled] == [("b", 5), ("a", 4)]
    assert run.host.num_used == 0


def test_a_swapped_out_request_that_keeps_shared_blocks_gives_way_when_nobody_else_could_go_on() -> None:
    a = a_request("a", prompt="abcdefghAAA", max_tokens=2)
    b = a_request("b", prompt="abcdefghBBB", max_tokens=9)
    limits = SchedulerConfig(policy=SchedulingPolicy.PRIORITY)
    run = Run(an_engine_config(num_blocks=6, num_host_blocks=5, limits=limits), a, b)
    run.step()  # they share two blocks of five, and have one each of their own
    run.scheduler.preempt(RequestId("b"))
    output = run.step()  # a ends
    assert (output.preempted, len(output.moves_out)) == (["b"], 1)
    space = run.scheduler.kv_cache.swap_space
    assert space is not None
    assert len(space.kept[RequestId("b")].held_blocks) == 2
    # c goes first and needs all five; nobody runs who would free the two that b keeps.
    c = a_request("c", prompt=range(20), max_tokens=1, priority=-1)
    run.scheduler.add_request(c)
    output = run.step()
    assert [admission.request_id for admission in output.admitted] == ["c"]
    assert (dict(space.kept), run.host.num_used) == ({}, 0)
    while run.scheduler.has_unfinished:
        run.step()
    assert b.num_output_tokens == 9


def test_the_engine_counts_what_moves_and_leaves_out_what_there_is_not() -> None:
    swapping = Engine(
        an_engine_config(num_blocks=4, caching=False, num_host_blocks=5),
        SyntheticRunner(),
        clock=VirtualClock(),
        debug=True,
    )
    for request in two_requests():
        swapping.add_request(request)
    swapping.run_until_done()
    stats = swapping.stats
    assert (stats.swapped_out_blocks, stats.swapped_out_tokens) == (1, 4)
    assert (stats.swapped_in_blocks, stats.swapped_in_tokens) == (1, 4)
    assert (stats.peak_host_blocks, stats.recomputed_tokens) == (1, 0)

    plain = Engine(an_engine_config(), SyntheticRunner(), clock=VirtualClock())
    plain.add_request(a_request())
    plain.run_until_done()
    assert plain.stats.swapped_out_blocks is None
    assert plain.stats.peak_host_blocks is None


@pytest.mark.parametrize(("mode", "num_blocks"), [(PreemptionMode.SWAP, 0), (PreemptionMode.RECOMPUTE, 4)])
def test_swap_and_a_host_pool_go_together(mode: PreemptionMode, num_blocks: int) -> None:
    config = EngineConfig(
        kv_cache=an_engine_config().kv_cache, num_blocks=9, preemption=mode, num_host_blocks=num_blocks
    )
    with pytest.raises(ConfigError, match="num_host_blocks: expected"):
        Scheduler(config)


def test_host_blocks_are_taken_whole_or_not_at_all_and_the_last_freed_first() -> None:
    pool = HostPool(3)
    assert pool.try_allocate(2) == [0, 1]
    assert pool.try_allocate(2) is None
    assert (pool.num_free, pool.num_used, pool.peak_used) == (1, 2, 2)
    pool.free([0, 1])  # type: ignore[list-item]
    assert pool.free_blocks() == [0, 1, 2]
    pool.check_invariants()
    pool.free([1])  # type: ignore[list-item]
    with pytest.raises(AssertionError, match="free twice"):
        pool.check_invariants()
