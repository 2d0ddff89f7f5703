"""Rules for groups, each on a few steps that can be followed by hand."""

from collections.abc import Mapping, Sequence

import pytest

from kvengine.config import EngineConfig, MisfitPolicy, SchedulerConfig, SchedulingPolicy
from kvengine.errors import ConfigError
from kvengine.kv_groups.kinds import (
    ChunkedLocal,
    CrossAttention,
    FullAttention,
    GroupKind,
    LatentAttention,
    LinearState,
    SlidingWindow,
    StateMode,
)
from kvengine.request import Request, RequestId
from kvengine.scheduler import Scheduler
from kvengine.scheduler_output import SchedulerOutput
from tests.builders import a_request, an_engine_config
from tests.fake_device import FakeDevice

FULL = FullAttention(block_size=4)
STATE = LinearState(block_size=4)
LETTER = ord("z")


class Run:
    """A scheduler whose every step is checked by a device."""

    def __init__(self, config: EngineConfig) -> None:
        self.scheduler = Scheduler(config)
        self.device = FakeDevice(config)

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add_request(request)

    def step(self, accepted: Mapping[RequestId, int] | None = None) -> SchedulerOutput:
        output = self.scheduler.schedule()
        self.device.execute(output, accepted)
        sampled = {item.request.request_id: LETTER for item in output.scheduled if item.samples}
        self.scheduler.update(output, sampled, accepted)
        self.scheduler.check_invariants()
        return output

    def finish(self) -> list[SchedulerOutput]:
        outputs: list[SchedulerOutput] = []
        while self.scheduler.has_unfinished:
            outputs.append(self.step())
        return outputs


def a_run(*groups: GroupKind, num_blocks: int = 30, unit: int | None = None, caching: bool = True,
          retention: int | None = 0, **limits: int) -> Run:  # fmt: skip
    return Run(
        an_engine_config(
            num_blocks=num_blocks,
            groups=groups,
            caching=caching,
            prefix_match_unit=unit,
            retention_interval=retention,
            limits=SchedulerConfig(misfits=MisfitPolicy.STALL, **{"max_model_len": 64, **limits}),
        )
    )


def planned(output: SchedulerOutput) -> list[tuple[str, int, int]]:
    return [(item.request.request_id, item.start, item.num_tokens) for item in output.scheduled]


def tables(output: SchedulerOutput) -> list[list[list[int]]]:
    return [[list(table) for table in item.tables] for item in output.group_blocks]


def test_one_group_is_handed_over_as_its_table_and_several_beside_it() -> None:
    alone = a_run(FULL)
    alone.add(a_request(prompt="abcdef"))
    output = alone.step()
    assert (list(output.scheduled[0].block_ids), list(output.group_blocks)) == ([1, 2], [])
    both = a_run(FULL, SlidingWindow(block_size=4, window=8))
    both.add(a_request(prompt="abcdef"))
    output = both.step()
    assert output.scheduled[0].block_ids == output.group_blocks[0].tables[0] == [1, 2]
    assert output.scheduled[0].new_block_ids == output.group_blocks[0].new_block_ids[0] == [1, 2]
    assert tables(output) == [[[1, 2], [3, 4]]]


def test_a_window_gives_blocks_back_while_it_runs_and_the_null_block_takes_their_place() -> None:
    # Window 5 in blocks of 4: the token at 8 looks back to 4, so block 1 comes back in the step that computes it, and
    # is handed out again in the same step.
    run = a_run(SlidingWindow(block_size=4, window=5), num_blocks=4, caching=False)
    run.add(a_request(prompt="abcdefgh", max_tokens=6))
    assert list(run.step().scheduled[0].block_ids) == [1, 2]
    (item,) = run.step().scheduled
    assert [list(item.block_ids), list(item.new_block_ids)] == [[0, 2, 1], [1]]


def test_a_chunk_gives_its_blocks_back_when_the_next_one_begins() -> None:
    run = a_run(ChunkedLocal(block_size=4, chunk=8), caching=False)
    run.add(a_request(prompt="abcdefgh", max_tokens=3))
    run.step()
    output = run.step()  # token 8 begins the second chunk; blocks 2 and 1 come back and block 2 is taken again
    assert list(output.scheduled[0].block_ids) == [0, 0, 2]


def test_a_prompt_longer_than_the_pool_is_admitted_where_a_window_is_all_it_holds() -> None:
    # Window 5 and a budget of 4: at the gate at most ceil(8 / 4) + 1 = 3 blocks count, of 3 that there are.
    run = a_run(SlidingWindow(block_size=4, window=5), num_blocks=4, max_num_batched_tokens=4)
    request = a_request(prompt=range(40), max_tokens=2)
    assert run.scheduler.never_fits(request) is None
    run.add(request)
    assert len(run.finish()) == 11  # ten chunks of 4, the last of which samples, and one more token


def test_latent_attention_keeps_every_block() -> None:
    run = a_run(LatentAttention(block_size=4))
    run.add(a_request(prompt="abcdefghi", max_tokens=2))
    assert list(run.step().scheduled[0].block_ids) == [1, 2, 3]


def test_encoder_blocks_are_taken_once_at_admission_and_anew_after_a_preemption() -> None:
    # 7 usable blocks: a takes 2 + 2, b 2 + 1; when a needs its third, b goes.
    run = a_run(FULL, CrossAttention(block_size=4), num_blocks=8, caching=False)
    a = a_request("a", prompt="abcdefgh", max_tokens=2, num_encoder_tokens=7)
    b = a_request("b", prompt="ijklmnop", max_tokens=2, num_encoder_tokens=3)
    run.add(a, b)
    assert tables(run.step()) == [[[1, 2], [3, 4]], [[5, 6], [7]]]
    output = run.step()
    assert output.preempted == ["b"]
    assert [list(blocks) for blocks in output.group_blocks[0].new_block_ids] == [[7], []]
    assert [len(table) for table in run.step().group_blocks[0].tables] == [3, 1]


def test_a_running_state_has_one_block_from_admission_to_the_end() -> None:
    run = a_run(FULL, LinearState(block_size=64, mode=StateMode.NONE), caching=False)
    run.add(a_request(prompt="abcdefgh", max_tokens=4))
    assert [item.group_blocks[0].tables[1] for item in run.finish()] == [[3]] * 4


def test_chunks_end_where_states_are_kept_and_jumped_positions_are_null() -> None:
    run = a_run(FULL, STATE, max_num_batched_tokens=10)
    run.add(a_request(prompt="abcdefghijklmn", max_tokens=3))
    first = run.step()
    assert planned(first) == [("a", 0, 8)]  # 10 would end inside a block
    assert tables(first) == [[[1, 2], [0, 3]]]
    assert [list(blocks) for blocks in first.group_blocks[0].new_block_ids] == [[1, 2], [0, 3]]
    second = run.step()
    assert planned(second) == [("a", 8, 4)]  # the last whole block of the prompt ends at 12
    assert tables(second) == [[[1, 2, 4], [0, 3, 5]]]  # 3 is the source of this step
    # The state at 8 is not worth keeping: its block is reused at once.
    assert tables(run.step()) == [[[1, 2, 4, 3], [0, 0, 5, 6]]]


def test_equal_prompts_that_arrive_together_are_a_step_apart_where_states_are_read() -> None:
    run = a_run(FULL, STATE)
    run.add(*[a_request(name, prompt="abcdefgh!", max_tokens=2) for name in "ab"])
    assert planned(run.step()) == [("a", 0, 8)]
    assert planned(run.step()) == [("a", 8, 1)]  # the state at 8 is entered again in this step
    assert planned(run.step()) == [("a", 9, 1), ("b", 8, 1)]


def test_a_shared_beginning_hits_only_once_its_window_was_kept_at_the_junction() -> None:
    window = SlidingWindow(block_size=4, window=5)
    run = a_run(FULL, window)
    hits: list[int] = []
    for name, ending in (("a", "ABCDEFGH"), ("b", "IJKLMNOP"), ("c", "QRSTUVWX")):
        run.add(a_request(name, prompt="abcdefgh" + ending, max_tokens=1))
        hits += [admission.num_cached_tokens for output in run.finish() for admission in output.admitted]
    assert hits == [0, 0, 8]


def test_with_dense_retention_a_shared_beginning_hits_at_once() -> None:
    run = a_run(FULL, SlidingWindow(block_size=4, window=5), retention=None)
    hits: list[int] = []
    for name, ending in (("a", "ABCDEFGH"), ("b", "IJKLMNOP")):
        run.add(a_request(name, prompt="abcdefgh" + ending, max_tokens=1))
        hits += [admission.num_cached_tokens for output in run.finish() for admission in output.admitted]
    assert hits == [0, 8]


def test_a_hit_inside_a_block_is_copied_into_a_private_one_before_it_is_written() -> None:
    run = a_run(FULL, STATE, unit=2)
    run.add(a_request("a", prompt="abcdefg", max_tokens=1))
    steps = [planned(output)[0][1:] for output in run.finish()]
    assert steps == [(0, 4), (4, 2), (6, 1)]  # the prompt's end is kept at 6, inside a block
    run.add(a_request("b", prompt="abcdefgXYZ", max_tokens=1))
    output = run.step()
    assert output.admitted[0].num_cached_tokens == 6
    # a left the blocks 1 and 3 of attention, and 5, the copy of its state when it went on from 6.
    assert [source for source, _ in output.block_copies] == [3, 5]
    assert [destination for _, destination in output.block_copies] == [table[1] for table in tables(output)[0]]


def test_the_cache_keeps_a_copy_of_a_state_that_its_request_goes_on_from() -> None:
    run = a_run(FULL, STATE, unit=2)
    run.add(a_request("a", prompt="abcdefg", max_tokens=1))
    run.step()
    run.step()
    pool = run.scheduler.kv_cache.pool
    output = run.step()
    ((source, kept),) = output.block_copies
    assert (source, kept) == (4, 5)
    assert pool.is_cached(kept)  # type: ignore[arg-type]
    assert pool.free_blocks().index(kept) > 20  # behind all blocks that were never used  # type: ignore[arg-type]


def a_beginning(name: str, ending: str, *, max_tokens: int = 3) -> Request:
    return a_request(name, prompt="abcdefg" + ending, max_tokens=max_tokens)


def a_run_whose_state_outlives_its_attention() -> Run:
    """The state after 6 tokens is cached, and the attention block that ends there is not any more.

    A first request leaves block 3 (attention, 6 tokens) and block 5 (the state). A second one hits both, so that they
    are the last of the free queue, 3 before 5. Four requests of one token then take every block up to and with 3, and
    give back blocks without content.
    """
    run = a_run(FULL, STATE, unit=2, num_blocks=15)
    run.add(a_request("r", prompt="abcdefg", max_tokens=1))
    run.finish()
    run.add(a_beginning("s", "UVWXY", max_tokens=2))
    run.finish()
    run.add(*[a_request(f"f{index}", prompt=[index], max_tokens=2) for index in range(4)])
    run.finish()
    return run


def test_a_hit_inside_a_block_that_this_step_writes_waits_for_the_next() -> None:
    """The reference copies that block before it is written, and attends to what lay in it before."""
    run = a_run_whose_state_outlives_its_attention()
    run.add(a_beginning("a", "ABCDEFGHIJK"), a_beginning("b", "ABCxyz"))
    admitted: dict[str, tuple[int, int]] = {}
    copies: dict[int, Sequence[tuple[int, int]]] = {}
    first = 0
    for number, output in enumerate(run.finish()):
        copies[number] = output.block_copies
        for admission in output.admitted:
            admitted[admission.request_id] = (number, admission.num_cached_tokens)
        first = next((n for n, pairs in copies.items() if pairs), first)
    assert admitted == {"a": (0, 0), "b": (2, 6)}
    assert first == 2
    # a computes tokens 4 to 15 in step 1 and so writes the block that b copies in step 2.


def test_copies_of_one_step_can_run_all_at_once() -> None:
    output = SchedulerOutput(
        step=0, scheduled=(), admitted=(), preempted=(), block_copies=[(5, 6), (4, 7), (7, 9), (9, 10)], num_tokens=0
    )
    assert output.independent_copies == [(5, 6), (4, 7), (4, 9), (4, 10)]


def test_what_a_victim_of_the_same_step_never_wrote_leaves_every_group() -> None:
    """low is scheduled before high needs its blocks; what low would have filled is not found later."""
    limits = SchedulerConfig(policy=SchedulingPolicy.PRIORITY, max_num_batched_tokens=9, max_model_len=64)
    window = SlidingWindow(block_size=4, window=8)
    run = Run(an_engine_config(num_blocks=10, groups=[FULL, window], limits=limits, retention_interval=None))
    run.add(a_request("low", prompt="abcdefgh", max_tokens=9, priority=5))
    run.step()
    run.add(a_request("high", prompt="ABCDEFGH", max_tokens=9, priority=1))
    outputs = run.finish()
    assert any("low" in output.preempted for output in outputs)


def test_drafts_are_computed_behind_the_certain_token_and_rejected_ones_given_back() -> None:
    run = a_run(FULL, SlidingWindow(block_size=4, window=8), num_lookahead_tokens=2)
    request = a_request(prompt="abcdef", max_tokens=8)
    run.add(request)
    run.step()
    run.scheduler.add_drafts({request.request_id: [1, 2, 3]})
    output = run.scheduler.schedule()
    (item,) = output.scheduled
    # 6 computed, 1 certain and 3 drafts; with 2 slots ahead 12 slots: 3 blocks in each group.
    assert (item.start, item.num_tokens, item.num_drafts, item.samples) == (6, 4, 3, True)
    assert [len(table) for table in output.group_blocks[0].tables] == [3, 3]
    run.device.execute(output, {request.request_id: 1})
    run.scheduler.update(output, {request.request_id: LETTER}, {request.request_id: 1})
    assert request.output_token_ids == [LETTER, 1, LETTER]
    assert request.num_computed_tokens == 8
    assert list(request.draft_token_ids) == []


def test_a_stop_token_among_accepted_drafts_ends_the_output() -> None:
    run = a_run(FULL)
    request = a_request(prompt="abcdef", max_tokens=8, stop=[7])
    run.add(request)
    run.step()
    run.scheduler.add_drafts({request.request_id: [5, 7, 9]})
    run.step({request.request_id: 3})
    assert request.output_token_ids == [LETTER, 5, 7]
    assert not run.scheduler.has_unfinished


def test_drafts_never_pass_the_longest_request() -> None:
    run = a_run(FULL, max_model_len=10)
    request = a_request(prompt="abcdefg", max_tokens=3)
    run.add(request)
    run.step()
    run.scheduler.add_drafts({request.request_id: [1, 2, 3, 4]})
    # Computed 7 of at most 10; the token sampled behind the drafts needs a place too.
    assert planned(run.step()) == [("a", 7, 2)]


def test_drafts_of_a_preempted_or_ended_request_are_dropped() -> None:
    run = a_run(FULL)
    request = a_request(prompt="abcdef", max_tokens=4)
    run.add(request)
    run.step()
    run.scheduler.add_drafts({request.request_id: [1, 2], RequestId("nobody"): [1]})
    run.scheduler.abort_request(request.request_id)
    assert list(request.draft_token_ids) == []


def test_more_drafts_than_states_can_take_back_are_refused() -> None:
    run = a_run(FULL, STATE)
    request = a_request(prompt="abcdef", max_tokens=4)
    run.add(request)
    run.step()
    run.step()
    with pytest.raises(ConfigError, match="fewer than a state block of 4 tokens, got 4"):
        run.scheduler.add_drafts({request.request_id: [1, 2, 3, 4]})


def test_context_parallel_blocks_hold_the_tokens_of_all_ranks() -> None:
    config = an_engine_config(groups=[FULL], context_parallel_size=2, limits=SchedulerConfig(max_model_len=64))
    run = Run(config)
    run.add(a_request("a", prompt=range(17), max_tokens=1))
    assert list(run.step().scheduled[0].block_ids) == [1, 2, 3]  # 8 tokens a block id
    run.add(a_request("b", prompt=[*range(17), 99], max_tokens=1))
    assert run.step().admitted[0].num_cached_tokens == 16


def test_a_request_in_groups_that_cannot_fit_is_told_how_many_blocks_it_needs_at_a_time() -> None:
    # 40 tokens, 39 of them computed: 10 blocks of full attention, and 2 states.
    run = a_run(FULL, STATE, num_blocks=12)
    misfit = run.scheduler.never_fits(a_request(prompt=range(20), max_tokens=20))
    assert misfit is not None
    assert misfit.message == "request 'a' needs 12 blocks at a time for 40 tokens, and the pool has 11"
    assert a_run(FULL, STATE, num_blocks=13).scheduler.never_fits(a_request(prompt=range(20), max_tokens=20)) is None
