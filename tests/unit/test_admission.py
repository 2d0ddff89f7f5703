"""Who is admitted, who is refused, and what is said where there is no room: rules 11 to 14, each by hand."""

import pytest

from kvengine.config import MisfitPolicy, SchedulerConfig
from kvengine.errors import CapacityError, RejectedError
from kvengine.out_of_blocks import blocks_in_words, out_of_blocks
from kvengine.scheduler import Scheduler
from kvengine.scheduler_output import SchedulerOutput
from tests.builders import a_request, an_engine_config


def step(scheduler: Scheduler) -> SchedulerOutput:
    output = scheduler.schedule()
    scheduler.update(output, {item.request.request_id: ord("z") for item in output.scheduled if item.samples})
    scheduler.check_invariants()
    return output


def admitted(output: SchedulerOutput) -> list[str]:
    return [admission.request_id for admission in output.admitted]


def a_scheduler(*, num_blocks: int = 9, caching: bool = True, **limits: object) -> Scheduler:
    return Scheduler(an_engine_config(num_blocks=num_blocks, caching=caching, limits=SchedulerConfig(**limits)))  # type: ignore[arg-type]


@pytest.mark.parametrize(("reserves", "names"), [(True, ["a"]), (False, ["a", "b"])])
def test_the_gate_asks_for_the_whole_prompt_although_only_a_chunk_is_scheduled(
    reserves: bool, names: list[str]
) -> None:
    # a takes 3 of 8 blocks; of b's 24 tokens, 6 blocks, a chunk of 4 would fit into the step.
    scheduler = a_scheduler(max_num_batched_tokens=16, reserve_full_isl=reserves)
    scheduler.add_request(a_request("a", prompt=range(12), max_tokens=2))
    scheduler.add_request(a_request("b", prompt=range(100, 124), max_tokens=2))
    assert admitted(step(scheduler)) == names


def test_what_the_gate_counted_is_not_set_aside() -> None:
    # Both prompts pass the gate in turn: 5 of 8 blocks at first, and 4 of what the first chunk left.
    scheduler = a_scheduler(max_num_batched_tokens=16)
    scheduler.add_request(a_request("a", prompt=range(20), max_tokens=2))
    scheduler.add_request(a_request("b", prompt=range(100, 116), max_tokens=2))
    assert admitted(step(scheduler)) == ["a"]
    assert scheduler.kv_cache.pool.num_free == 4
    # a takes its fifth block, and b, whose 4 blocks do not all fit any more, waits.
    assert admitted(step(scheduler)) == []


@pytest.mark.parametrize(
    # 0.25 of 9 blocks are 2 in whole blocks: of the 5 that a leaves free, 3 may be taken.
    ("prompt_blocks", "names"),
    [(3, ["b"]), (4, [])],
)
def test_the_watermark_stays_free_while_something_runs(prompt_blocks: int, names: list[str]) -> None:
    scheduler = a_scheduler(watermark=0.25)
    scheduler.add_request(a_request("a", prompt=range(10), max_tokens=3))
    assert admitted(step(scheduler)) == ["a"]
    scheduler.add_request(a_request("b", prompt=range(100, 100 + 4 * prompt_blocks), max_tokens=1))
    assert admitted(step(scheduler)) == names


def test_the_watermark_does_not_count_for_who_comes_into_an_idle_engine() -> None:
    scheduler = a_scheduler(watermark=0.9)
    scheduler.add_request(a_request("a", prompt=range(32), max_tokens=1))
    assert admitted(step(scheduler)) == ["a"]


def test_the_threshold_cuts_long_prompts_but_not_a_lone_one() -> None:
    scheduler = a_scheduler(long_prefill_token_threshold=4)
    scheduler.add_request(a_request("a", prompt=range(10), max_tokens=1))
    assert step(scheduler).num_tokens == 10
    scheduler = a_scheduler(long_prefill_token_threshold=4)
    scheduler.add_request(a_request("a", prompt=range(10), max_tokens=1))
    scheduler.add_request(a_request("b", prompt=range(100, 103), max_tokens=1))
    assert [item.num_tokens for item in step(scheduler).scheduled] == [4, 3]


def test_a_request_that_never_fits_is_refused_as_a_server_would() -> None:
    scheduler = a_scheduler(max_model_len=64)
    with pytest.raises(RejectedError, match="needs 9 blocks of 4 for 34 tokens, and the pool has 8") as caught:
        scheduler.add_request(a_request(prompt=range(20), max_tokens=14))
    assert caught.value.status == 503
    with pytest.raises(RejectedError, match="max_model_len 64") as caught:
        scheduler.add_request(a_request(prompt=range(64), max_tokens=1))
    assert caught.value.status == 400
    assert not scheduler.has_unfinished


def test_a_misfit_that_is_let_in_blocks_the_queue_for_ever_as_in_vllm() -> None:
    scheduler = a_scheduler(misfits=MisfitPolicy.STALL)
    scheduler.add_request(a_request("huge", prompt=range(40), max_tokens=1))
    scheduler.add_request(a_request("small", prompt="abc", max_tokens=1))
    assert [admitted(step(scheduler)) for _ in range(5)] == [[]] * 5


def test_a_full_queue_says_come_again() -> None:
    scheduler = a_scheduler(max_waiting=2, max_num_seqs=1)
    scheduler.add_request(a_request("a"))
    scheduler.add_request(a_request("b"))
    with pytest.raises(RejectedError, match="'c': 2 requests wait, and max_waiting is 2") as caught:
        scheduler.add_request(a_request("c"))
    assert caught.value.status == 429
    step(scheduler)  # a runs, so that one waits
    scheduler.add_request(a_request("c"))
    assert scheduler.num_waiting == 2


def test_where_the_blocks_are_is_said_in_the_same_words_everywhere() -> None:
    scheduler = a_scheduler()
    scheduler.add_request(a_request("done", prompt=range(8), max_tokens=1))
    step(scheduler)
    scheduler.add_request(a_request("runs", prompt=range(100, 110), max_tokens=3))
    step(scheduler)
    scheduler.resize_pool(7)
    # done left two full blocks that can be hit, runs holds three; of the three unused ones one is withheld.
    words = "4 of 7 usable blocks are free, 2 of them evictable, 1 more are withheld, and 3 are held by 1 request"
    assert blocks_in_words(scheduler.kv_cache, num_running=1) == words
    error = out_of_blocks("request 'x' needs 9 blocks of 4", scheduler.kv_cache, num_running=1)
    assert isinstance(error, CapacityError)
    assert error.message == f"request 'x' needs 9 blocks of 4; {words}"
