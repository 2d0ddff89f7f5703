"""One point from its preparation to its result: simulate it, and run it on the live engine."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import msgspec

from kvengine.clock import RealClock, VirtualClock
from kvengine.config import EngineConfig
from kvengine.engine import Engine
from kvengine.errors import CapacityError, KVError
from kvengine.observer import TelemetryPublisher, engine_facts
from kvengine.runner import SyntheticRunner
from kvengine.units import format_bytes
from kvplan.drive import Driver, Progress, RealPace, StepPace
from kvplan.prepare import PreparedPoint
from kvplan.requests.schedule import Schedule
from kvplan.requests.spec import RequestSpec
from kvplan.results import Figures, PointResult, make_folder
from kvplan.run_model import LiveModels


def run_point(
    prepared: PreparedPoint,
    requests: Sequence[RequestSpec],
    *,
    models: LiveModels,
    recording: Path | None = None,
    progress: Progress | None = None,
    debug: bool = False,
) -> PointResult:
    """Simulate one point and, if its target is the engine, run it there.

    Args:
        prepared: The point.
        requests: Its requests, from `prepared.requests()`.
        models: Loads the model of a live point.
        recording: File for the telemetry of the run; an older one is replaced.
        progress: Told how many requests have finished.
        debug: Check all invariants after every step.

    Raises:
        ConfigError: The engine cannot run this model or KV type, or the recording's folder cannot be made.
        DeviceError: What runs the model is not there.
        TelemetryError: The recording cannot be made.
    """
    if recording is not None:
        make_folder(recording)
    try:
        planned = simulate(prepared, requests, recording=None if prepared.is_live else recording)
    except CapacityError as error:
        return _result(prepared, requests, planned=budget_figures(prepared.config), misfit=error)
    live = None
    if prepared.is_live:
        live = run_live(prepared, requests, models=models, recording=recording, progress=progress, debug=debug)
    return _result(prepared, requests, planned=planned, live=live, recording=recording)


def budget_figures(config: EngineConfig) -> Figures:
    """What the budget alone says of a pool."""
    return Figures(
        num_blocks=config.num_blocks,
        usable_blocks=max(config.num_blocks - 1, 0),
        kv_cache_bytes=config.num_blocks * config.kv_cache.block_bytes,
    )


def schedule_of(prepared: PreparedPoint, requests: Sequence[RequestSpec]) -> Schedule:
    """When the requests of a point come."""
    workload = prepared.workload
    return Schedule(requests, users=workload.users, think_s=workload.think_s or 0.0)


def simulate(prepared: PreparedPoint, requests: Sequence[RequestSpec], *, recording: Path | None = None) -> Figures:
    """Run the scheduler on these requests without a model; every output has its full length.

    Blocks, preemptions and hits are those of a live run whose outputs do not end early. Times do not come out; where
    requests come by time, every step is taken to last `step_s`.

    Raises:
        CapacityError: A request can never be finished in this pool.
    """
    config = prepared.config
    if config.num_blocks < 2:
        size = format_bytes(config.kv_cache.block_bytes)
        raise CapacityError(
            f"the pool has room for {config.num_blocks} blocks of {config.block_size} tokens ({size} each)"
            " and needs at least 2, as one is the null block",
            hint=f"set available_kv to {format_bytes(2 * config.kv_cache.block_bytes)} or more",
        )
    clock, publisher = VirtualClock(), None
    if recording is not None:
        facts = engine_facts(config, model=prepared.model.name, label=prepared.point.title, simulated=True)
        publisher = TelemetryPublisher.open(facts, clock=clock, socket=False, recording=recording)
    engine = Engine(config, SyntheticRunner(), clock=clock, publisher=publisher)
    pace = StepPace(clock, prepared.point.profile.step_s if prepared.workload.is_timed else 0.0)
    with _closing(engine):
        _refuse_misfits(engine, requests)
        Driver(engine, schedule_of(prepared, requests), pace=pace).run()
    return _figures(engine)


def _refuse_misfits(engine: Engine, requests: Sequence[RequestSpec]) -> None:
    """Before anything runs, say what the largest request needs if the pool cannot hold it."""
    longest = max(requests, key=lambda request: request.num_tokens)
    longest_prompt = max(requests, key=lambda request: request.num_prompt_tokens)
    for request in (longest, longest_prompt):
        misfit = engine.never_fits(request.build_longest())
        if misfit is not None:
            raise misfit


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """What a run of the live engine came to."""

    measured: Figures
    environment: dict[str, str]
    error: CapacityError | None
    """Why requests were left, if any were."""


def run_live(
    prepared: PreparedPoint,
    requests: Sequence[RequestSpec],
    *,
    models: LiveModels,
    recording: Path | None = None,
    progress: Progress | None = None,
    debug: bool = False,
) -> LiveRun:
    """Run the requests on the model, watched through telemetry; see `run_point`."""
    runner = models.runner(prepared.model, prepared.config, prepared.point.profile.device)
    clock = RealClock()
    facts = engine_facts(prepared.config, model=prepared.model.name, label=prepared.point.title)
    publisher = TelemetryPublisher.open(facts, clock=clock, recording=recording)
    engine = Engine(prepared.config, runner, clock=clock, publisher=publisher, debug=debug)
    driver = Driver(
        engine,
        schedule_of(prepared, requests),
        pace=RealPace(clock),
        stop_token_ids=prepared.model.eos_token_ids if prepared.workload.stop_at_eos else frozenset(),
        progress=progress,
    )
    error = None
    try:
        with _closing(engine):
            driver.run()
    except CapacityError as caught:
        error = caught
    stats, times = engine.stats, engine.step_times
    measured = msgspec.structs.replace(
        _figures(engine),
        kv_cache_bytes=runner.cache_bytes,
        elapsed_s=stats.elapsed_s,
        prompt_tokens_per_s=stats.prompt_tokens_per_s,
        output_tokens_per_s=stats.output_tokens_per_s,
        step_s_median=times.median_s if times else None,
        step_s_p90=times.p90_s if times else None,
    )
    return LiveRun(measured=measured, environment=models.environment(), error=error)


def _figures(engine: Engine) -> Figures:
    """The counters of an engine that has run; times are left out."""
    stats, config = engine.stats, engine.config
    return msgspec.structs.replace(
        budget_figures(config),
        peak_blocks_in_use=stats.peak_blocks_in_use,
        peak_running=stats.peak_running,
        preemptions=stats.preemptions,
        prefix_hit_tokens=stats.prefix_hit_tokens,
        first_prefix_hit_tokens=stats.first_prefix_hit_tokens,
        recomputed_tokens=stats.recomputed_tokens,
        tail_waste_slots_mean=stats.tail_waste_slots_mean,
        tail_waste_fraction=stats.tail_waste_fraction,
        steps=stats.steps,
        scheduled_tokens=stats.scheduled_tokens,
        prompt_tokens=stats.prompt_tokens,
        output_tokens=stats.output_tokens,
        finished_requests=stats.finished,
    )


def _result(
    prepared: PreparedPoint,
    requests: Sequence[RequestSpec],
    *,
    planned: Figures,
    misfit: CapacityError | None = None,
    live: LiveRun | None = None,
    recording: Path | None = None,
) -> PointResult:
    error = misfit or (live.error if live else None)
    return PointResult(
        fingerprint=prepared.fingerprint,
        series=prepared.series,
        name=prepared.point.name,
        settings=prepared.point.profile.settings(),
        axes=prepared.point.axes,
        outcome="does_not_fit" if misfit else "unfinished" if error else "finished",
        message=error.message if error else "",
        hint=error.hint if error else "",
        num_requests=len(requests),
        planned=planned,
        measured=live.measured if live else None,
        environment={"pagedkv": version("pagedkv"), **(live.environment if live else {})},
        recording=str(recording) if recording else "",
        finished_unix_s=time.time(),
    )


@contextmanager
def _closing(engine: Engine) -> Iterator[None]:
    """Tell whoever watches the engine how its run ended."""
    reason = "interrupted"
    try:
        yield
        reason = "done"
    except KVError as error:
        reason = error.message
        raise
    finally:
        engine.close(reason)
