"""A point on the scheduler alone: what happens in its blocks, without a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvengine.clock import RealClock, VirtualClock
from kvengine.config import MisfitPolicy
from kvengine.engine import Engine
from kvengine.errors import CapacityError
from kvengine.observer import TelemetryPublisher, engine_facts
from kvengine.runner import SyntheticRunner
from kvengine.units import format_bytes
from kvplan.drive import Driver, Progress, StepPace, limit_of
from kvplan.figures import Figures, count_good
from kvplan.memory_figures import memory_figures
from kvplan.point_engine import closing, engine_figures, schedule_of, scheduler_of
from kvplan.prepare import PreparedPoint
from kvplan.requests.spec import RequestSpec

_NEVER_SAMPLED = frozenset({-1})
"""Outputs run to their full length, but a scheduler that cares is told that they might end before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What a simulation came to."""

    figures: Figures
    out_of_time: bool
    """Whether it was ended by the point's time limit; its figures are those up to then."""


def simulate(
    prepared: PreparedPoint,
    requests: Sequence[RequestSpec],
    *,
    recording: Path | None = None,
    progress: Progress | None = None,
    debug: bool = False,
) -> Simulation:
    """Run the scheduler on these requests without a model; every output has its full length.

    Blocks, preemptions and hits are those of a live run whose outputs do not end early. Latencies are counted in steps;
    where requests come by time, every step is taken to last `step_s`.

    Raises:
        CapacityError: A request can never be finished in this pool.
    """
    config, profile = prepared.config, prepared.point.profile
    _refuse_no_pool(prepared)
    clock, publisher = VirtualClock(), None
    if recording is not None:
        facts = engine_facts(
            config,
            model=prepared.model.name,
            label=prepared.point.title,
            simulated=True,
            allocator=profile.allocator,
        )
        publisher = TelemetryPublisher.open(facts, clock=clock, socket=False, recording=recording)
    engine = Engine(
        config,
        SyntheticRunner(),
        clock=clock,
        publisher=publisher,
        debug=debug,
        scheduler=scheduler_of(prepared),
    )
    is_timed = prepared.workload.is_timed
    pace = StepPace(clock, profile.step_s if is_timed else 1.0)
    workload = prepared.workload
    driver = Driver(
        engine,
        schedule_of(prepared, requests),
        pace=pace,
        stop_token_ids=_NEVER_SAMPLED if prepared.workload.stop_at_eos else frozenset(),
        progress=progress,
        # Where steps are counted, nobody knows how many seconds they would take.
        deadline_s=workload.deadline_s if is_timed else None,
        deadline_steps=workload.deadline_steps,
    )
    with closing(engine):
        _refuse_misfits(engine, requests)
        driven = driver.run(time_limit=limit_of(profile.time_limit_s, RealClock()))
    figures = msgspec.structs.replace(
        engine_figures(engine),
        latencies=driver.latencies.summary("s" if is_timed else "steps"),
        timeline=driver.usage.timeline(),
        memory=memory_figures(driver.memory, engine, profile.allocator),
        good_requests=count_good(driver.latencies.ended, profile.slo) if is_timed else None,
    )
    return Simulation(figures=figures, out_of_time=driven.out_of_time)


def _refuse_no_pool(prepared: PreparedPoint) -> None:
    config = prepared.config
    if config.num_blocks < 2:
        size = format_bytes(config.kv_cache.block_bytes)
        raise CapacityError(
            f"the pool has room for {config.num_blocks} blocks of {config.block_size} tokens ({size} each)"
            " and needs at least 2, as one is the null block",
            hint=f"set available_kv to {format_bytes(2 * config.kv_cache.block_bytes)} or more",
        )


def _refuse_misfits(engine: Engine, requests: Sequence[RequestSpec]) -> None:
    """Before anything runs, say what the largest request needs if the pool cannot hold it; unless it is to stall."""
    if engine.config.misfits is MisfitPolicy.STALL:
        return
    longest = max(requests, key=lambda request: request.num_tokens)
    longest_prompt = max(requests, key=lambda request: request.num_prompt_tokens)
    for request in (longest, longest_prompt):
        misfit = engine.never_fits(request.build_longest())
        if misfit is not None:
            raise misfit
