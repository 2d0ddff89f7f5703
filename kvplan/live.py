"""A point on the live engine, with a real model, watched through telemetry."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from kvengine.clock import RealClock
from kvengine.control import EngineControl
from kvengine.engine import Engine
from kvengine.errors import CapacityError, TelemetryError
from kvengine.observer import TelemetryPublisher, engine_facts
from kvengine.runner import ModelRunner
from kvengine.telemetry.runtime_dir import make_private_dir, runtime_dir
from kvplan.drive import Driver, Progress, RealPace, limit_of
from kvplan.figures import Figures, count_good
from kvplan.gpu_log import GpuLog
from kvplan.memory_figures import memory_figures
from kvplan.point_engine import closing, engine_figures, schedule_of, scheduler_of
from kvplan.prepare import PreparedPoint
from kvplan.quality import measure_quality
from kvplan.requests.schedule import Schedule
from kvplan.requests.spec import RequestSpec
from kvplan.run_model import LiveModels

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """What a run of the live engine came to."""

    measured: Figures
    environment: dict[str, str]
    out_of_time: bool
    """Whether the point's time limit ended it; its figures are those up to then."""
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
    """Run the requests on the model.

    Args:
        prepared: The point.
        requests: Its requests.
        models: Loads its model.
        recording: File for the telemetry of the run; an older one is replaced.
        progress: Told how many requests have finished.
        debug: Check all invariants after every step.

    Raises:
        CapacityError: The pool does not fit on the device.
        ConfigError: The engine cannot run this model or KV type.
        DeviceError: What runs the model is not there.
        TelemetryError: The recording cannot be made.
    """
    profile = prepared.point.profile
    prepared = replace(prepared, config=models.sized(prepared))
    runner = models.runner(prepared.model, prepared.config, profile.device, profile.compute_dtype)
    _warm_up(prepared, requests, runner)
    clock = RealClock()
    control = EngineControl(clock=clock, lets_go=True)
    facts = engine_facts(
        prepared.config,
        model=prepared.model.name,
        label=prepared.point.title,
        allocator=profile.allocator,
        accepts=control.accepts,
    )
    publisher = TelemetryPublisher.open(
        facts,
        clock=clock,
        socket=_has_place_for_a_socket(),
        recording=recording,
        text_of=prepared.model.text_of(),
    )
    engine = Engine(
        prepared.config,
        runner,
        clock=clock,
        publisher=publisher,
        debug=debug,
        scheduler=scheduler_of(prepared),
    )
    control.steer(engine, publisher)
    driver = Driver(
        engine,
        schedule_of(prepared, requests),
        pace=RealPace(clock),
        control=control,
        deadline_s=prepared.workload.deadline_s,
        deadline_steps=prepared.workload.deadline_steps,
        stop_token_ids=prepared.model.eos_token_ids if prepared.workload.stop_at_eos else frozenset(),
        progress=progress,
    )
    error, out_of_time, gpus = None, False, GpuLog(pid=os.getpid())
    try:
        with closing(engine), gpus:
            out_of_time = driver.run(time_limit=limit_of(profile.time_limit_s, clock)).out_of_time
    except CapacityError as caught:
        error = caught
    measured = msgspec.structs.replace(
        _measured(prepared, engine, driver),
        kv_cache_bytes=runner.cache_bytes,
        weight_bytes=runner.weight_bytes,
        host_cache_bytes=runner.host_cache_bytes,
        gpus=gpus.figures(),
        quality=None if error or out_of_time else measure_quality(prepared, requests, models),
    )
    environment = models.environment()
    if control.num_obeyed:
        environment = {**environment, "steered": f"a viewer gave {control.num_obeyed} commands while it ran"}
    return LiveRun(measured=measured, environment=environment, out_of_time=out_of_time, error=error)


def _has_place_for_a_socket() -> bool:
    """Whether kvtop will be able to attach; a run does not need it, and goes on without."""
    try:
        make_private_dir(runtime_dir())
    except TelemetryError as error:
        logger.warning("note: kvtop cannot attach to this run: %s", error)
        return False
    return True


def _warm_up(prepared: PreparedPoint, requests: Sequence[RequestSpec], runner: ModelRunner) -> None:
    """Run some requests first, so that what is loaded and compiled at the first steps is not measured."""
    chosen = [
        replace(spec, arrival_s=0.0, arrival_step=0, after=None, history_tokens=0, cancel_after_tokens=None)
        for spec in requests[: prepared.point.profile.warmup_requests]
    ]
    clock = RealClock()
    engine = Engine(prepared.config, runner, clock=clock, scheduler=scheduler_of(prepared))
    Driver(engine, Schedule(chosen), pace=RealPace(clock)).run()


def _measured(prepared: PreparedPoint, engine: Engine, driver: Driver) -> Figures:
    stats, times = engine.stats, engine.step_times
    return msgspec.structs.replace(
        engine_figures(engine),
        elapsed_s=stats.elapsed_s,
        prompt_tokens_per_s=stats.prompt_tokens_per_s,
        output_tokens_per_s=stats.output_tokens_per_s,
        step_s_median=times.median_s if times else None,
        step_s_p90=times.p90_s if times else None,
        step_s_max=times.max_s if times else None,
        schedule_s=times.schedule_s if times else None,
        execute_s=times.execute_s if times else None,
        update_s=times.update_s if times else None,
        latencies=driver.latencies.summary("s"),
        timeline=driver.usage.timeline(),
        memory=memory_figures(driver.memory, engine, prepared.point.profile.allocator),
        good_requests=count_good(driver.latencies.ended, prepared.point.profile.slo),
    )
