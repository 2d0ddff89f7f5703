from dataclasses import replace

import pytest

from kvengine.errors import CapacityError, ConfigError
from kvengine.radix.config import RadixConfig
from kvengine.radix.scheduler import RadixScheduler
from kvengine.request import FinishReason, Request, RequestStatus
from kvengine.scheduler_output import SchedulerOutput
from tests.builders import a_request
from tests.radix_builders import cached_texts, named

SMALL = RadixConfig(num_tokens=64, max_num_seqs=8, max_model_len=48, chunk_tokens=None)
ANY_TOKEN = ord("o")


def a_scheduler(*requests: Request, config: RadixConfig = SMALL) -> RadixScheduler:
    scheduler = RadixScheduler(config)
    for request in requests:
        scheduler.add_request(request)
    return scheduler


def step(scheduler: RadixScheduler, *, token: int = ANY_TOKEN) -> tuple[SchedulerOutput, list[Request]]:
    """One step in which every request that is due a token gets this one."""
    output = scheduler.schedule()
    sampled = {item.request.request_id: token for item in output.scheduled if item.samples}
    finished = scheduler.update(output, sampled)
    scheduler.check_invariants()
    return output, finished


def parts(output: SchedulerOutput) -> list[tuple[str, int, int]]:
    return [(item.request.request_id, item.start, item.num_tokens) for item in output.scheduled]


def test_a_prefill_goes_before_a_decode_and_never_with_it() -> None:
    scheduler = a_scheduler(a_request("a", prompt="abc"))
    assert parts(step(scheduler)[0]) == [("a", 0, 3)]
    scheduler.add_request(a_request("b", prompt="xy"))
    assert parts(step(scheduler)[0]) == [("b", 0, 2)]
    assert parts(step(scheduler)[0]) == [("a", 3, 1), ("b", 2, 1)]


def test_a_request_ends_at_its_length_and_stays_cached_without_its_last_token() -> None:
    scheduler = a_scheduler(a_request("a", prompt="abc", max_tokens=2))
    step(scheduler, token=ord("x"))
    _, finished = step(scheduler, token=ord("y"))
    assert [request.finish_reason for request in finished] == [FinishReason.LENGTH]
    assert not scheduler.has_unfinished
    assert cached_texts(scheduler.cache.tree) == ["abc", "x"]


def test_a_request_ends_at_its_stop_token() -> None:
    scheduler = a_scheduler(a_request("a", prompt="abc", max_tokens=9, stop=[ord("!")]))
    step(scheduler)
    _, finished = step(scheduler, token=ord("!"))
    assert [request.finish_reason for request in finished] == [FinishReason.STOP]


def test_block_ids_are_pages_and_new_ones_are_named() -> None:
    config = RadixConfig(num_tokens=64, page_size=4, max_num_seqs=8, max_model_len=48)
    scheduler = a_scheduler(a_request("a", prompt="abcdefg", max_tokens=9), config=config)
    output, _ = step(scheduler)
    assert [(list(item.block_ids), list(item.new_block_ids)) for item in output.scheduled] == [([1, 2], [1, 2])]
    output, _ = step(scheduler)
    assert [(list(item.block_ids), list(item.new_block_ids)) for item in output.scheduled] == [([1, 2], [])]
    output, _ = step(scheduler)
    assert [(list(item.block_ids), list(item.new_block_ids)) for item in output.scheduled] == [([1, 2, 3], [3])]


def test_the_second_of_two_equal_prompts_turns_to_the_slots_of_the_first() -> None:
    scheduler = a_scheduler(a_request("a", prompt="abc"), a_request("b", prompt="abc"))
    output = scheduler.schedule()
    assert [list(item.block_ids) for item in output.scheduled] == [[1, 2, 3], [4, 5, 6]]
    scheduler.update(output, {request.request_id: ANY_TOKEN for request in scheduler.running})
    output, _ = step(scheduler)
    assert [list(item.block_ids)[:3] for item in output.scheduled] == [[1, 2, 3], [1, 2, 3]]
    assert {"a", "b"} <= set(output.rewritten)


def test_a_long_prompt_is_computed_in_chunks_and_others_wait_behind_it() -> None:
    config = RadixConfig(num_tokens=64, max_num_seqs=8, max_model_len=48, chunk_tokens=5)
    scheduler = a_scheduler(a_request("a", prompt="abcdefgh"), a_request("b", prompt="xyz"), config=config)
    output, _ = step(scheduler)
    assert parts(output) == [("a", 0, 5)]
    assert not output.scheduled[0].samples
    output, _ = step(scheduler)
    # Five tokens: three to the end of a, and two of b.
    assert parts(output) == [("a", 5, 3), ("b", 0, 2)]
    assert parts(step(scheduler)[0]) == [("b", 2, 1)]


def test_retracted_requests_wait_at_the_back_and_hit_their_own_prompt_later() -> None:
    # 24 slots; both may stop early, so that of their output little is set aside.
    config = RadixConfig(num_tokens=24, max_num_seqs=8, max_model_len=24, chunk_tokens=None, conservativeness=0.1)
    first = a_request("a", prompt="aaaa", max_tokens=16, stop=[0])
    scheduler = a_scheduler(first, config=config)
    step(scheduler)
    second = a_request("b", prompt="bbbb", max_tokens=12, stop=[0])
    scheduler.add_request(second)
    third = a_request("c", prompt="cccc", max_tokens=12, stop=[0])
    step(scheduler)
    scheduler.add_request(third)
    retracted: list[SchedulerOutput] = []
    while not retracted:
        output, _ = step(scheduler)
        retracted += [output] if output.preempted else []
    assert list(retracted[0].preempted) == ["b"]
    assert [request.request_id for request in scheduler.waiting] == ["c", "b"]
    assert (second.status, second.num_computed_tokens, second.num_preemptions) == (RequestStatus.PREEMPTED, 0, 1)
    assert scheduler.new_token_ratio > 0.07
    ended: list[Request] = []
    while scheduler.has_unfinished:
        ended += step(scheduler)[1]
    assert {request.request_id: request.num_output_tokens for request in ended} == {"a": 16, "b": 12, "c": 12}


def test_a_request_that_outgrows_the_pool_alone_is_aborted() -> None:
    # More than 4,096 output tokens are not set aside, so it is admitted and then does not fit.
    config = RadixConfig(num_tokens=4200, max_num_seqs=8, max_model_len=9000)
    scheduler = a_scheduler(a_request("a", prompt="abc", max_tokens=8000), config=config)
    finished: list[Request] = []
    while scheduler.has_unfinished:
        output = scheduler.schedule()
        finished += scheduler.update(output, {item.request.request_id: ANY_TOKEN for item in output.scheduled})
    assert [request.finish_reason for request in finished] == [FinishReason.ABORT]
    # 4,200 slots hold the prompt and 4,197 outputs; one more was sampled.
    assert finished[0].num_output_tokens == 4198


def test_nobody_is_admitted_beyond_the_most_requests() -> None:
    config = replace(SMALL, max_num_seqs=1)
    scheduler = a_scheduler(a_request("a", prompt="ab"), a_request("b", prompt="xy"), config=config)
    assert parts(step(scheduler)[0]) == [("a", 0, 2)]
    assert parts(step(scheduler)[0]) == [("a", 2, 1)]
    assert scheduler.num_waiting == 1


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_an_aborted_request_leaves_nothing_behind(steps: int) -> None:
    scheduler = a_scheduler(a_request("a", prompt="abc"), a_request("b", prompt="xyz"))
    for _ in range(steps):
        step(scheduler)
    aborted = scheduler.abort_request(named("a"))
    assert aborted is not None
    assert aborted.finish_reason is FinishReason.ABORT
    scheduler.check_invariants()
    assert scheduler.abort_request(named("a")) is None
    while scheduler.has_unfinished:
        step(scheduler)


def test_an_abort_while_the_step_runs_drops_what_it_computed() -> None:
    scheduler = a_scheduler(a_request("a", prompt="abc"), a_request("b", prompt="xyz"))
    output = scheduler.schedule()
    scheduler.abort_request(named("a"))
    assert scheduler.update(output, {named("a"): 1, named("b"): 2}) == []
    scheduler.check_invariants()
    assert [request.request_id for request in scheduler.running] == ["b"]


def test_a_request_that_could_never_be_admitted_is_named() -> None:
    scheduler = a_scheduler(config=replace(SMALL, num_tokens=20))
    misfit = scheduler.never_fits(a_request("a", prompt="a" * 9, max_tokens=10))
    # 9 + 10 + a page of 1 must be less than what is there.
    assert misfit is not None
    assert "is admitted when 21 slots are free" in misfit.message
    assert scheduler.never_fits(a_request("a", prompt="a" * 9, max_tokens=9)) is None


def test_bad_requests_are_refused() -> None:
    scheduler = a_scheduler(a_request("a"))
    with pytest.raises(ConfigError, match="already in use"):
        scheduler.add_request(a_request("a"))
    with pytest.raises(ConfigError, match="at least 1 prompt token"):
        scheduler.add_request(a_request("b", prompt=""))
    with pytest.raises(CapacityError, match="leaves no room for output"):
        scheduler.add_request(a_request("c", prompt="c" * 48))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"page_size": 0}, "page_size: expected at least 1, got 0"),
        ({"max_num_seqs": 0}, "max_num_seqs: expected at least 1, got 0"),
        ({"max_model_len": 1}, "max_model_len: expected at least 2"),
        ({"num_tokens": 3, "page_size": 4}, "num_tokens: expected at least one page of 4 slots, got 3"),
        ({"num_tokens": 2**31}, "num_tokens: expected less than 2"),
        ({"chunk_tokens": 3, "page_size": 4}, "chunk_tokens: expected at least one page of 4 tokens, got 3"),
        ({"conservativeness": 0.0}, "conservativeness: expected more than 0, got 0"),
    ],
)
def test_impossible_limits_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RadixScheduler(replace(SMALL, **changes))
