"""What is planned without a model happens with one: counts do not depend on the tokens that come out."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kvengine.clock import VirtualClock
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.engine import Engine
from kvengine.errors import CapacityError
from kvengine.runner import SyntheticRunner
from kvengine.stats import EngineStats
from kvplan.drive import Driver, StepPace
from kvplan.requests.build import request_specs
from kvplan.requests.schedule import Schedule
from kvplan.requests.spec import RequestSpec
from kvplan.workload import Synthetic, Workload
from tests.builders import an_engine_config

VOCAB_SIZE = 50_000


@st.composite
def workloads(draw: st.DrawFn) -> list[RequestSpec]:
    """Random prompts behind one shared prefix: requests meet in their prompts and never in their outputs."""
    workload = Workload(
        about="",
        synthetic=Synthetic(
            requests=draw(st.integers(1, 12)),
            shared_prefix_tokens=draw(st.integers(0, 12)),
            prompt_tokens=draw(st.integers(1, 12)),
        ),
        max_tokens=draw(st.integers(1, 10)),
        arrival_gap_steps=draw(st.integers(0, 3)),
    )
    return request_specs(workload, seed=draw(st.integers(0, 1000)), vocab_size=VOCAB_SIZE)


@st.composite
def configs(draw: st.DrawFn) -> EngineConfig:
    limits = SchedulerConfig(
        max_num_seqs=draw(st.integers(1, 8)), max_num_batched_tokens=draw(st.integers(1, 40)), max_model_len=64
    )
    return an_engine_config(
        num_blocks=draw(st.integers(2, 30)),
        block_size=draw(st.sampled_from([1, 2, 3, 4, 8])),
        caching=draw(st.booleans()),
        limits=limits,
    )


def stats_with(runner: SyntheticRunner, config: EngineConfig, requests: list[RequestSpec]) -> EngineStats | str:
    clock = VirtualClock()
    engine = Engine(config, runner, clock=clock, debug=True)
    try:
        Driver(engine, Schedule(requests), pace=StepPace(clock, 0.0)).run()
    except CapacityError as error:
        return error.message
    return engine.stats


@settings(deadline=None)
@given(config=configs(), requests=workloads())
def test_counts_are_the_same_whatever_tokens_come_out(config: EngineConfig, requests: list[RequestSpec]) -> None:
    planned = stats_with(SyntheticRunner(vocab_size=VOCAB_SIZE, seed=1), config, requests)
    measured = stats_with(SyntheticRunner(vocab_size=VOCAB_SIZE, seed=2), config, requests)

    assert planned == measured


@settings(deadline=None)
@given(config=configs(), requests=workloads())
def test_every_request_gets_its_whole_output_and_tokens_add_up(
    config: EngineConfig, requests: list[RequestSpec]
) -> None:
    stats = stats_with(SyntheticRunner(vocab_size=VOCAB_SIZE), config, requests)

    if isinstance(stats, str):  # one of them can never fit
        return
    assert stats.finished == len(requests)
    assert stats.output_tokens == sum(request.max_tokens for request in requests)
    # Every token but a request's last gets into the cache: by being computed for the first time, or by a hit.
    needed = sum(len(request.prompt_token_ids) + request.max_tokens - 1 for request in requests)
    computed_once = stats.scheduled_tokens - stats.recomputed_tokens
    assert computed_once + stats.first_prefix_hit_tokens <= needed <= computed_once + stats.prefix_hit_tokens
    assert stats.peak_blocks_in_use <= config.num_blocks - 1
    assert stats.tail_waste_slots_mean is not None
    assert 0 <= stats.tail_waste_slots_mean <= stats.peak_running * (config.block_size - 1)
