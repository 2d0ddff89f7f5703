import pytest

from kvengine.config import EngineConfig, MisfitPolicy, SchedulerConfig, SchedulingPolicy
from kvengine.errors import CapacityError, ConfigError
from kvengine.request import FinishReason, Request, RequestId, RequestStatus, SamplingParams
from kvengine.scheduler import Scheduler
from kvengine.scheduler_output import Admission, SchedulerOutput
from tests.builders import a_request, an_engine_config
from tests.fake_device import FakeDevice

STALLING = SchedulerConfig(misfits=MisfitPolicy.STALL)
LETTER = ord("z")


def a_scheduler(*requests: Request, config: EngineConfig | None = None) -> Scheduler:
    scheduler = Scheduler(config or an_engine_config())
    for request in requests:
        scheduler.add_request(request)
    return scheduler


def step(scheduler: Scheduler, token: int = LETTER) -> SchedulerOutput:
    """Schedule, and let every request that samples get the same token."""
    output = scheduler.schedule()
    scheduler.update(output, {item.request.request_id: token for item in output.scheduled if item.samples})
    scheduler.check_invariants()
    return output


def planned(output: SchedulerOutput) -> list[tuple[str, int, int]]:
    return [(item.request.request_id, item.start, item.num_tokens) for item in output.scheduled]


def test_a_prompt_is_computed_then_one_token_a_step_until_max_tokens() -> None:
    request = a_request(prompt="abcdef", max_tokens=3)
    scheduler = a_scheduler(request)
    steps = [planned(step(scheduler)) for _ in range(3)]
    assert steps == [[("a", 0, 6)], [("a", 6, 1)], [("a", 7, 1)]]
    assert request.status is RequestStatus.FINISHED
    assert request.finish_reason is FinishReason.LENGTH
    assert request.output_token_ids == [LETTER] * 3
    assert not scheduler.has_unfinished
    assert scheduler.kv_cache.pool.num_used == 0


def test_tokens_count_as_computed_only_after_the_update() -> None:
    request = a_request(prompt="abcdef")
    scheduler = a_scheduler(request)
    output = scheduler.schedule()
    assert request.num_computed_tokens == 0
    assert output.scheduled[0].samples
    scheduler.update(output, {request.request_id: LETTER})
    assert request.num_computed_tokens == 6


def test_a_stop_token_ends_the_output_and_belongs_to_it() -> None:
    request = a_request(max_tokens=9, stop=[LETTER])
    scheduler = a_scheduler(request)
    step(scheduler)
    assert request.finish_reason is FinishReason.STOP
    assert request.output_token_ids == [LETTER]


def test_max_model_len_ends_the_output() -> None:
    request = a_request(prompt="abcdef", max_tokens=50)
    scheduler = a_scheduler(request, config=an_engine_config(limits=SchedulerConfig(max_model_len=8)))
    step(scheduler)
    step(scheduler)
    assert request.num_tokens == 8
    assert request.finish_reason is FinishReason.LENGTH


def test_a_long_prompt_is_computed_in_chunks_and_only_its_last_chunk_samples() -> None:
    scheduler = a_scheduler(
        a_request(prompt="abcdefghij"), config=an_engine_config(limits=SchedulerConfig(max_num_batched_tokens=4))
    )
    seen: list[tuple[int, int, bool]] = []
    for _ in range(3):
        output = scheduler.schedule()
        (item,) = output.scheduled
        seen.append((item.start, item.num_tokens, item.samples))
        scheduler.update(output, {item.request.request_id: LETTER} if item.samples else {})
    assert seen == [(0, 4, False), (4, 4, False), (8, 2, True)]


def test_a_long_prefill_early_in_the_list_starves_the_decode_behind_it() -> None:
    # There is no decode-first rule: in the second step the prefill takes the whole budget of 5.
    scheduler = a_scheduler(
        a_request("long", prompt="abcdefghijklmnop"),
        a_request("short", prompt="xy"),
        config=an_engine_config(limits=SchedulerConfig(max_num_batched_tokens=5, long_prefill_token_threshold=3)),
    )
    assert planned(step(scheduler)) == [("long", 0, 3), ("short", 0, 2)]
    assert planned(step(scheduler)) == [("long", 3, 3), ("short", 2, 1)]
    scheduler = a_scheduler(
        a_request("short", prompt="xy"),
        a_request("long", prompt="abcdefghijklmnop"),
        a_request("late", prompt="uv"),
        config=an_engine_config(limits=SchedulerConfig(max_num_batched_tokens=5)),
    )
    assert planned(step(scheduler)) == [("short", 0, 2), ("long", 0, 3)]
    assert planned(step(scheduler)) == [("short", 2, 1), ("long", 3, 4)]


def test_equal_prompts_that_arrive_together_share_in_the_same_step() -> None:
    scheduler = a_scheduler(a_request("first", prompt="abcdefghij"), a_request("second", prompt="abcdefghij"))
    output = step(scheduler)
    assert planned(output) == [("first", 0, 10), ("second", 8, 2)]
    assert output.admitted == [Admission("first", 0, False), Admission("second", 8, False)]  # type: ignore[arg-type]


def test_the_head_of_the_queue_is_not_passed_by_a_smaller_request() -> None:
    scheduler = a_scheduler(
        a_request("first", prompt="abcdefghijklmnopqrst"),  # 5 of 8 blocks
        a_request("big", prompt="ABCDEFGHIJKLMNOPQRST"),  # 5 blocks, 3 are left
        a_request("small", prompt="xy"),
    )
    assert planned(step(scheduler)) == [("first", 0, 20)]
    assert [request.request_id for request in scheduler.waiting] == ["big", "small"]
    assert scheduler.num_waiting == 2


def test_the_last_of_the_running_list_is_preempted_and_waits_in_front() -> None:
    # 4 usable blocks of 4: a and b hold two each; when a needs its third, b goes.
    a, b = a_request("a", prompt="abcdefgh", max_tokens=9), a_request("b", prompt="ABCDEFGH", max_tokens=9)
    scheduler = a_scheduler(a, b, a_request("c", prompt="xy"), config=an_engine_config(num_blocks=5))
    step(scheduler)
    output = step(scheduler)
    assert output.preempted == ["b"]
    assert planned(output) == [("a", 8, 1)]
    assert (b.status, b.num_computed_tokens, b.num_preemptions) == (RequestStatus.PREEMPTED, 0, 1)
    assert b.output_token_ids == [LETTER]
    assert [request.request_id for request in scheduler.waiting] == ["b", "c"]


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    scheduler = a_scheduler(
        a_request("a", prompt="abcdefgh", max_tokens=9),
        a_request("b", prompt="ABCDEFGH", max_tokens=9),
        a_request("c", prompt="x"),  # its one block is free once b is gone
        config=an_engine_config(num_blocks=5),
    )
    step(scheduler)
    output = step(scheduler)
    assert output.preempted == ["b"]
    assert scheduler.kv_cache.pool.num_free == 1
    assert output.admitted == []


def test_a_resumed_request_hits_what_is_left_of_its_blocks_and_counts_as_resumed() -> None:
    a, b = a_request("a", prompt="abcdefgh", max_tokens=2), a_request("b", prompt="ABCDEFGH", max_tokens=9)
    scheduler = a_scheduler(a, b, config=an_engine_config(num_blocks=5))
    step(scheduler)
    step(scheduler)  # a takes block 4, the end of b's chain, and finishes; block 3 is still cached
    output = step(scheduler)
    assert output.admitted == [Admission("b", 4, True)]  # type: ignore[arg-type]
    assert planned(output) == [("b", 4, 5)]
    assert b.num_cached_tokens == 4


def test_a_lone_request_that_outgrows_the_pool_preempts_itself() -> None:
    request = a_request(prompt="abcdefgh", max_tokens=9)
    scheduler = a_scheduler(request, config=an_engine_config(num_blocks=3, limits=STALLING))
    assert scheduler.never_fits(request) is not None
    step(scheduler)
    output = step(scheduler)
    assert (output.preempted, output.scheduled) == (["a"], [])


def test_the_least_urgent_of_all_is_preempted_even_if_this_step_had_scheduled_it() -> None:
    low = a_request("low", prompt="abcdefgh", max_tokens=9, priority=5)
    high = a_request("high", prompt="ABCDEFGH", max_tokens=9, priority=1)
    limits = SchedulerConfig(policy=SchedulingPolicy.PRIORITY, max_num_batched_tokens=9)
    scheduler = a_scheduler(low, config=an_engine_config(num_blocks=6, limits=limits))
    step(scheduler)  # low: blocks 1, 2
    scheduler.add_request(high)
    step(scheduler)  # low takes 3; high 4, 5, all 8 tokens with the rest of the budget
    output = step(scheduler)  # low is planned first; then high needs a third block
    assert output.preempted == ["low"]
    assert planned(output) == [("high", 8, 1)]
    assert output.num_tokens == 1  # what was planned for low went back to the budget


def test_no_token_reads_what_a_victim_of_the_same_step_never_wrote() -> None:
    """The reference leaves such blocks in its prefix cache, and the victim resumes from them."""
    low = a_request("low", prompt="abcdefghijkl", max_tokens=1, priority=5)
    high = a_request("high", prompt="xyz", max_tokens=2, priority=0)
    limits = SchedulerConfig(policy=SchedulingPolicy.PRIORITY, max_num_batched_tokens=5, long_prefill_token_threshold=3)
    config = an_engine_config(num_blocks=8, block_size=2, limits=limits)
    scheduler, device = a_scheduler(low, config=config), FakeDevice(config)
    admissions: list[Admission] = []
    while scheduler.has_unfinished:
        output = scheduler.schedule()
        device.execute(output)
        scheduler.update(output, {item.request.request_id: LETTER for item in output.scheduled if item.samples})
        admissions += output.admitted
        if output.step == 0:
            scheduler.add_request(high)
    # In its last step before the preemption tokens 8..10 of low were planned and filled a fifth block.
    assert admissions[-1] == Admission("low", 8, True)  # type: ignore[arg-type]


def test_an_aborted_running_request_frees_its_blocks_at_once() -> None:
    request = a_request(max_tokens=9)
    scheduler = a_scheduler(request)
    step(scheduler)
    assert scheduler.abort_request(request.request_id) is request
    assert (request.status, request.finish_reason) == (RequestStatus.FINISHED, FinishReason.ABORT)
    assert scheduler.kv_cache.pool.num_used == 0
    assert not scheduler.has_unfinished
    scheduler.check_invariants()


def test_an_aborted_waiting_request_is_never_admitted() -> None:
    first, second = a_request("first"), a_request("second")
    scheduler = a_scheduler(first, second)
    scheduler.abort_request(first.request_id)
    assert scheduler.num_waiting == 1
    assert planned(step(scheduler)) == [("second", 0, 6)]


def test_a_request_aborted_while_its_step_ran_gets_no_token() -> None:
    first, second = a_request("first"), a_request("second", prompt="uvwxyz")
    scheduler = a_scheduler(first, second)
    output = scheduler.schedule()
    scheduler.abort_request(first.request_id)
    scheduler.update(output, {first.request_id: LETTER, second.request_id: LETTER})
    assert (first.num_output_tokens, second.num_output_tokens) == (0, 1)
    scheduler.check_invariants()


def test_blocks_of_a_request_aborted_while_its_step_ran_are_not_hit_later() -> None:
    first = a_request("first", prompt="abcdefgh")
    scheduler = a_scheduler(first)
    scheduler.schedule()
    scheduler.abort_request(first.request_id)
    scheduler.add_request(a_request("second", prompt="abcdefgh"))
    assert scheduler.schedule().admitted[0].num_cached_tokens == 0


def test_aborting_an_unknown_or_ended_request_is_none() -> None:
    request = a_request(max_tokens=1)
    scheduler = a_scheduler(request)
    step(scheduler)
    assert scheduler.abort_request(request.request_id) is None
    assert scheduler.abort_request(RequestId("nobody")) is None


def test_an_id_can_be_used_again_once_its_request_has_ended() -> None:
    scheduler = a_scheduler(a_request("a", prompt="abcdefgh", max_tokens=1))
    step(scheduler)
    scheduler.add_request(a_request("a", prompt="ABCDEFGH", max_tokens=1))
    assert step(scheduler).admitted[0].num_cached_tokens == 0


def test_an_id_that_is_in_use_is_refused() -> None:
    with pytest.raises(ConfigError, match="request id 'a' is already in use"):
        a_scheduler(a_request("a"), a_request("a"))


def test_a_request_that_has_ended_is_not_taken_in_again() -> None:
    request = a_request(prompt="ab", max_tokens=1)
    scheduler = a_scheduler(request)
    step(scheduler)
    with pytest.raises(ConfigError, match="request 'a' is finished and cannot be added again"):
        scheduler.add_request(request)
    assert not scheduler.has_unfinished


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_that_cannot_be_an_id_is_refused_when_it_arrives(token: int) -> None:
    request = Request(RequestId("a"), [1, token, 2], SamplingParams(max_tokens=1))
    with pytest.raises(ConfigError, match=f"expected token ids from 0 to 4294967295, got {token}"):
        a_scheduler(request)


@pytest.mark.parametrize(("prompt", "max_tokens"), [("", 1), ("a", 0), ("a", -3)])
def test_a_request_without_prompt_or_output_is_refused(prompt: str, max_tokens: int) -> None:
    with pytest.raises(ConfigError, match="at least 1 prompt token and max_tokens >= 1"):
        a_scheduler(a_request(prompt=prompt, max_tokens=max_tokens))


def test_a_prompt_that_leaves_no_room_for_output_is_refused_with_the_numbers() -> None:
    config = an_engine_config(limits=SchedulerConfig(max_model_len=6))
    with pytest.raises(CapacityError, match=r"prompt of 6 tokens .* max_model_len 6") as caught:
        a_scheduler(a_request(prompt="abcdef"), config=config)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    # 8 usable blocks of 4 hold 32 tokens; the last token is sampled, never computed, so 33 in all still fit.
    ("num_prompt", "max_tokens", "fits"),
    [(32, 1, True), (33, 1, False), (1, 32, True), (1, 33, False), (20, 13, True), (20, 14, False)],
)
def test_a_request_fits_alone_if_all_but_its_last_token_have_slots(
    num_prompt: int, max_tokens: int, fits: bool
) -> None:
    request = a_request(prompt=range(num_prompt), max_tokens=max_tokens)
    scheduler = a_scheduler(request, config=an_engine_config(limits=STALLING))
    assert (scheduler.never_fits(request) is None) == fits
    for _ in range(40):
        step(scheduler)
    assert (request.status is RequestStatus.FINISHED) == fits


def test_a_request_that_never_fits_is_told_what_it_needs_and_what_there_is() -> None:
    misfit = a_scheduler().never_fits(a_request(prompt=range(20), max_tokens=14))
    assert misfit is not None
    # 34 tokens, 33 of them computed: 9 blocks of 4; with the null block 10.
    assert misfit.message == "request 'a' needs 9 blocks of 4 for 34 tokens, and the pool has 8"
    assert misfit.hint == "give it at least 10 blocks, or lower max_tokens or max_model_len"


def test_max_model_len_caps_what_a_request_needs() -> None:
    scheduler = a_scheduler(config=an_engine_config(limits=SchedulerConfig(max_model_len=33)))
    assert scheduler.never_fits(a_request(prompt="abc", max_tokens=1000)) is None


def test_without_chunks_a_prompt_longer_than_a_step_never_fits() -> None:
    limits = SchedulerConfig(enable_chunked_prefill=False, max_num_batched_tokens=5)
    scheduler = a_scheduler(config=an_engine_config(limits=limits))
    misfit = scheduler.never_fits(a_request(prompt="abcdef"))
    assert misfit is not None
    assert "a prompt of 6 tokens, a step takes 5, and chunked prefill is off" in misfit.message
    assert scheduler.never_fits(a_request(prompt="abcde")) is None


@pytest.mark.parametrize("usable_blocks", [0, 9, -1])
def test_a_pool_is_not_resized_to_what_there_is_not(usable_blocks: int) -> None:
    with pytest.raises(ConfigError, match=f"usable_blocks: expected 1 to 8, got {usable_blocks}"):
        a_scheduler().resize_pool(usable_blocks)


def test_blocks_in_use_are_kept_back_when_they_are_freed() -> None:
    scheduler = a_scheduler(a_request(prompt=range(12), max_tokens=1))
    scheduler.schedule()
    scheduler.resize_pool(2)
    pool = scheduler.kv_cache.pool
    # Three of eight blocks are in use; of the six to go five are free.
    assert (pool.num_used, pool.num_free, pool.num_usable) == (3, 0, 3)
    scheduler.abort_request(RequestId("a"))
    assert (pool.num_used, pool.num_free, pool.num_usable) == (0, 2, 2)
    scheduler.check_invariants()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (an_engine_config(num_blocks=1), "num_blocks: expected at least 2, got 1"),
        (an_engine_config(block_size=0), "block_size: expected at least 1, got 0"),
        (an_engine_config(limits=SchedulerConfig(max_num_seqs=0)), "max_num_seqs: expected at least 1, got 0"),
        (an_engine_config(limits=SchedulerConfig(max_num_batched_tokens=0)), "max_num_batched_tokens: expected"),
        (an_engine_config(limits=SchedulerConfig(max_model_len=1)), "max_model_len: expected at least 2, got 1"),
        (an_engine_config(limits=SchedulerConfig(long_prefill_token_threshold=-1)), "long_prefill_token_threshold"),
        (an_engine_config(limits=SchedulerConfig(watermark=1.0)), "watermark: expected a fraction"),
        (an_engine_config(limits=SchedulerConfig(watermark=-0.1)), "watermark: expected a fraction"),
    ],
)
def test_an_impossible_limit_is_refused_by_name(config: EngineConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Scheduler(config)
