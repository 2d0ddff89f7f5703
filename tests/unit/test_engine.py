"""The engine loop and its counters, on small cases worked out by hand and on the totals of a real scheduler."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kvengine.clock import VirtualClock
from kvengine.config import MisfitPolicy, SchedulerConfig
from kvengine.engine import Engine
from kvengine.errors import CapacityError, ConfigError
from kvengine.request import FinishReason, Request, RequestId
from kvengine.runner import ModelRunner, SyntheticRunner
from kvengine.scheduler_output import ScheduledRequest, SchedulerOutput
from kvengine.step_tokens import StepTokens
from tests.builders import a_request, an_engine_config
from tests.oracle.scheduler_case import Case, load_case
from tests.support import SHARED, shared_path


def an_engine(*, runner: ModelRunner | None = None, clock: VirtualClock | None = None, **config: object) -> Engine:
    """An engine of eight usable blocks of four tokens that checks itself after each step."""
    return Engine(
        an_engine_config(**config),  # type: ignore[arg-type]
        runner or SyntheticRunner(),
        clock=clock or VirtualClock(),
        debug=True,
    )


def test_a_lone_request_is_counted_step_by_step() -> None:
    engine = an_engine()
    engine.add_request(a_request(prompt="abcdef", max_tokens=4))

    finished = engine.run_until_done()

    # Tokens in the cache after each step: 6 in 2 blocks, 7 in 2, 8 in 2, 9 in 3; the fourth output is never computed.
    stats = engine.stats
    assert [request.finish_reason for request in finished] == [FinishReason.LENGTH]
    assert (stats.steps, stats.scheduled_tokens, stats.prompt_tokens, stats.output_tokens) == (4, 9, 6, 4)
    assert (stats.peak_blocks_in_use, stats.peak_running, stats.finished) == (3, 1, 1)
    assert stats.tail_waste_slots_mean == (2 + 1 + 0 + 3) / 4
    assert stats.tail_waste_fraction == 6 / (8 + 8 + 8 + 12)
    assert (stats.preemptions, stats.recomputed_tokens, stats.prefix_hit_tokens) == (0, 0, 0)


def test_a_preempted_request_computes_its_tokens_again() -> None:
    engine = an_engine(num_blocks=4, caching=False)
    engine.add_request(a_request("a", prompt="abcd", max_tokens=4))
    engine.add_request(a_request("b", prompt="wxyz", max_tokens=4))

    engine.run_until_done()

    # Step 0: 4 + 4 tokens in 2 of 3 blocks. Step 1: a takes the third, b finds none and gives its own back, so that 2
    # are in use after schedule. Steps 2, 3: a ends. Step 4: b computes its 4 old tokens and 1 new one. It ends in 6.
    stats = engine.stats
    assert (stats.steps, stats.preemptions, stats.recomputed_tokens) == (7, 1, 4)
    assert stats.scheduled_tokens == 8 + 1 + 1 + 1 + 5 + 1 + 1
    assert (stats.output_tokens, stats.prompt_tokens, stats.peak_blocks_in_use, stats.peak_running) == (8, 8, 2, 2)


def test_hits_at_resumption_are_counted_apart_from_those_at_first_admission() -> None:
    engine = an_engine(num_blocks=5)
    engine.add_request(a_request("a", prompt="sharedAA", max_tokens=3))
    engine.add_request(a_request("b", prompt="sharedBB", max_tokens=3))

    engine.run_until_done()

    # Both prompts are 2 blocks, of which the first ("shar") is shared: 3 of 4 blocks. Step 1: a takes the fourth, b is
    # preempted; its second block is full, so its whole prompt is still cached when it comes back with 9 tokens.
    stats = engine.stats
    assert stats.preemptions == 1
    assert stats.first_prefix_hit_tokens == 4
    assert stats.prefix_hit_tokens == 4 + 8
    assert stats.recomputed_tokens == 0
    assert stats.admitted_prompt_tokens == 16


def test_a_block_that_two_requests_share_wastes_nothing_twice() -> None:
    engine = an_engine()
    engine.add_request(a_request("a", prompt="abcdef", max_tokens=1))
    engine.add_request(a_request("b", prompt="abcdxy", max_tokens=1))

    engine.run_until_done()

    # One step: "abcd" once, and a second block each with 2 of 4 slots unused.
    assert engine.stats.peak_blocks_in_use == 3
    assert engine.stats.tail_waste_slots_mean == 4
    assert engine.stats.tail_waste_fraction == 4 / 12


def test_an_aborted_request_is_counted_and_its_id_is_free_again() -> None:
    engine = an_engine()
    engine.add_request(a_request("a", prompt="abcdef", max_tokens=4))
    engine.step()

    assert engine.abort(RequestId("a")) is not None
    assert engine.abort(RequestId("a")) is None
    engine.add_request(a_request("a", prompt="abcdef", max_tokens=1))
    engine.run_until_done()

    # The second request hits its first block, and recomputes nothing: it is another request.
    assert (engine.stats.aborted, engine.stats.finished, engine.stats.recomputed_tokens) == (1, 1, 0)
    assert engine.stats.prefix_hit_tokens == 4


def test_output_that_meets_a_stop_token_ends_there() -> None:
    class Counting:
        """Gives token 7, 8, 9 and so on."""

        def execute(self, output: SchedulerOutput) -> Mapping[RequestId, int]:
            return {item.request.request_id: 7 + item.request.num_output_tokens for item in output.scheduled}

    engine = an_engine(runner=Counting())
    engine.add_request(a_request(prompt="abcdef", max_tokens=9, stop=[9]))

    (request,) = engine.run_until_done()

    assert request.output_token_ids == [7, 8, 9]
    assert request.finish_reason is FinishReason.STOP


def test_step_times_and_rates_come_from_the_clock() -> None:
    clock = VirtualClock()

    class Slow(SyntheticRunner):
        """Each step takes as many seconds as it has tokens."""

        def execute(self, output: SchedulerOutput) -> Mapping[RequestId, int]:
            clock.advance(output.num_tokens)
            return super().execute(output)

    engine = an_engine(runner=Slow(), clock=clock)
    assert engine.step_times is None
    assert engine.stats.output_tokens_per_s is None
    engine.add_request(a_request(prompt="abcdef", max_tokens=4))
    engine.run_until_done()

    # Steps of 6, 1, 1 and 1 s: 9 s for 6 prompt and 4 output tokens. Nearest rank of 90 % of 4: the fourth.
    times = engine.step_times
    assert times is not None
    assert (times.median_s, times.p90_s) == (1.0, 6.0)
    assert engine.stats.elapsed_s == 9
    assert engine.stats.prompt_tokens_per_s == 6 / 9
    assert engine.stats.output_tokens_per_s == 4 / 9


def test_a_request_that_can_never_fit_is_refused_with_its_numbers() -> None:
    engine = an_engine(num_blocks=4)

    # 6 + 7 tokens, of which the last is never computed: 12 slots, 3 blocks, which are there. One more needs a fourth.
    engine.add_request(a_request("fits", prompt="abcdef", max_tokens=7))
    with pytest.raises(CapacityError, match=r"needs 4 blocks of 4 for 14 tokens, and the pool has 3"):
        engine.add_request(a_request("too-long", prompt="abcdef", max_tokens=8))

    assert [request.request_id for request in engine.run_until_done()] == ["fits"]


def test_requests_that_nothing_can_move_end_the_run_instead_of_looping() -> None:
    limits = SchedulerConfig(max_num_batched_tokens=5, enable_chunked_prefill=False)
    engine = an_engine(num_blocks=5, caching=False, limits=limits)
    engine.add_request(a_request("a", prompt="abcd", max_tokens=8))
    engine.add_request(a_request("b", prompt="wxyz", max_tokens=8))

    # Both prompts fit into a step of 5 tokens. a needs its third block in step 5 and takes it from b, which has 4
    # prompt and 4 output tokens by then; no step takes these 8 at once, and in parts they may not be computed.
    with pytest.raises(CapacityError, match=r"1 requests wait and none can be scheduled: the first, 'b'"):
        engine.run_until_done()
    assert engine.is_stalled
    assert engine.stats.finished == 1


def test_an_id_in_use_and_an_empty_prompt_are_bad_input() -> None:
    engine = an_engine()
    engine.add_request(a_request("a"))

    with pytest.raises(ConfigError, match="'a' is already in use"):
        engine.add_request(a_request("a"))
    with pytest.raises(ConfigError, match="at least 1 prompt token"):
        engine.add_request(a_request("b", prompt=""))


def test_debug_finds_a_runner_that_changes_a_block_table() -> None:
    class Meddling(SyntheticRunner):
        """Puts the first block of a request into its table again."""

        def execute(self, output: SchedulerOutput) -> Mapping[RequestId, int]:
            table = output.scheduled[0].block_ids
            assert isinstance(table, list)
            table.append(table[0])
            return super().execute(output)

    engine = an_engine(runner=Meddling())
    engine.add_request(a_request())

    with pytest.raises(AssertionError, match="holds a block twice"):
        engine.step()


def oracle_files() -> list[Path]:
    return sorted((SHARED / "oracle" / "vllm").glob("*.json"))


@pytest.mark.parametrize("path", oracle_files() or [Path("oracle/vllm")], ids=lambda path: path.stem)
def test_totals_equal_those_of_a_real_scheduler(path: Path) -> None:
    shared_path("oracle/vllm")
    case = load_case(path)
    config = case.scenario.engine_config()
    config = replace(config, scheduler=replace(config.scheduler, misfits=MisfitPolicy.REJECT))
    given = GivenOutputs(case)
    engine = Engine(config, given, clock=VirtualClock(), drafter=given if case.scenario.spec else None)
    if case.golden.status == "stalled":
        with pytest.raises(CapacityError):  # refused up front, where the real one waits for ever
            replay(engine, case)
        return

    replay(engine, case)

    stats, totals = engine.stats, case.golden.totals
    assert {
        "steps": stats.steps,
        "scheduled_tokens": stats.scheduled_tokens,
        "preemptions": stats.preemptions,
        "hit_tokens": stats.prefix_hit_tokens,
        "hit_tokens_first_admission": stats.first_prefix_hit_tokens,
        "recomputed_tokens": stats.recomputed_tokens,
        "peak_blocks_in_use": stats.peak_blocks_in_use,
        "peak_running": stats.peak_running,
        "finished": stats.finished,
        "aborted": stats.aborted,
    } == {key: value for key, value in totals.items() if key != "victim_blocks_hashed_but_not_computed"}


class GivenOutputs:
    """Emits the outputs that a case lists, and drafts, of which as many are right as it says."""

    def __init__(self, case: Case) -> None:
        self._outputs = {RequestId(item.id): item.outputs() for item in case.scenario.requests}
        self._drafts = case.scenario.spec
        self._num_draft_steps = dict.fromkeys(self._outputs, 0)

    def execute(self, output: SchedulerOutput) -> Mapping[RequestId, int]:
        accepted = {item.request.request_id: self._num_right(item) for item in output.scheduled if item.num_drafts}
        return StepTokens(
            {
                item.request.request_id: self._token(item.request, accepted.get(item.request.request_id, 0))
                for item in output.scheduled
                if item.samples
            },
            accepted=accepted,
        )

    def propose(self, requests: Sequence[Request]) -> Mapping[RequestId, Sequence[int]]:
        assert self._drafts is not None
        ahead = range(self._drafts.k)
        return {request.request_id: [self._token(request, index) for index in ahead] for request in requests}

    def _token(self, request: Request, num_ahead: int) -> int:
        outputs = self._outputs[request.request_id]
        return outputs[min(request.num_output_tokens + num_ahead, len(outputs) - 1)]

    def _num_right(self, item: ScheduledRequest) -> int:
        assert self._drafts is not None
        name, rates = item.request.request_id, self._drafts.accept
        self._num_draft_steps[name] += 1
        return min(rates[(self._num_draft_steps[name] - 1) % len(rates)], item.num_drafts)


def replay(engine: Engine, case: Case) -> None:
    """Let requests arrive and be aborted when the case says, and step until all is done."""
    arriving = sorted(case.scenario.requests, key=lambda item: item.arrival_step)
    aborting = sorted((item.abort_step, item.id) for item in arriving if item.abort_step is not None)
    step = 0
    while arriving or engine.has_unfinished:
        while arriving and arriving[0].arrival_step <= step:
            item = arriving.pop(0)
            engine.add_request(item.build(item.prompt(), len(item.outputs())))
        while aborting and aborting[0][0] <= step:
            engine.abort(RequestId(aborting.pop(0)[1]))
        if arriving or engine.has_unfinished:
            engine.step()
            step += 1
