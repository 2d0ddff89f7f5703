"""One point from its profile to its result: plan it, simulate it, run it on the live engine."""

import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import msgspec

from kvengine.clock import RealClock, VirtualClock
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.engine import Engine
from kvengine.errors import CapacityError, ConfigError, KVError
from kvengine.observer import TelemetryPublisher, engine_facts
from kvengine.runner import SyntheticRunner
from kvengine.units import format_bytes
from kvplan.capacity import EngineKind, count_blocks
from kvplan.loading import load_yaml
from kvplan.results import Figures, PointResult, make_folder
from kvplan.run_model import LiveModels, RunModel, find_model
from kvplan.run_profile import Point, profile_path
from kvplan.workload import RequestSpec, Workload, request_specs

MAX_BLOCKS = 2**24
"""1 TiB in blocks of 64 KiB: a mistyped size must not fill the memory of this machine with records of blocks."""


class Progress(Protocol):
    """Told how far a run has come."""

    def advanced(self, finished_requests: int) -> None:
        """So many requests have finished by now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPoint:
    """A point with all it refers to read and checked; no weights are loaded yet."""

    point: Point
    workload: Workload
    model: RunModel
    config: EngineConfig
    fingerprint: str
    """Stands for everything that decides the result: settings, workload content, model, version."""
    series: str
    """The same without the keys that vary: what the points of one sweep have in common."""

    @property
    def is_live(self) -> bool:
        """Whether a model runs, and not the scheduler alone."""
        return self.point.profile.target == "engine"

    def requests(self) -> list[RequestSpec]:
        """The requests of the workload, in tokens.

        Raises:
            DeviceError: The workload is text, and the package that reads the tokenizer is not installed.
        """
        return request_specs(
            self.workload,
            seed=self.point.profile.seed,
            vocab_size=self.model.vocab_size,
            tokenize=self.model.load_tokenize() if self.workload.needs_tokenizer else None,
        )


def prepare(points: Sequence[Point]) -> list[PreparedPoint]:
    """Read the workloads and the models' geometry, each once, and plan the pools.

    Raises:
        ConfigError: A file that a profile names is missing or not valid, or a limit cannot be met.
        DeviceError: The demo model is named and not installed.
    """
    workload_of, model_of = cache(_load_workload), cache(_find_model)
    return [
        _prepare(
            point,
            workload_of(point.profile.workload or "", point.folder),
            *model_of(point.profile.model, point.folder, point.profile.target == "engine"),
        )
        for point in points
    ]


def _load_workload(name: str, folder: Path) -> Workload:
    return load_yaml(profile_path("workloads", name, folder=folder), Workload)


def _find_model(name: str, folder: Path, needs_weights: bool) -> tuple[RunModel, str]:
    model = find_model(name, folder=folder, needs_weights=needs_weights)
    return model, model.identity()


def _prepare(point: Point, workload: Workload, model: RunModel, model_identity: str) -> PreparedPoint:
    settings = point.profile.settings()
    content = {
        "name": point.name,
        "axes": point.axes,
        "version": version("pagedkv"),
        "workload": workload.content(),
        "model": model_identity,
    }
    shared = {key: value for key, value in content.items() if key not in point.axes}
    fixed = {key: value for key, value in settings.items() if key not in point.axes}
    return PreparedPoint(
        point=point,
        workload=workload,
        model=model,
        config=plan_engine(point, model),
        fingerprint=_digest({**content, "settings": settings}),
        series=_digest({**shared, "settings": fixed}),
    )


def plan_engine(point: Point, model: RunModel) -> EngineConfig:
    """Turn a profile's limits and bytes into the engine's configuration.

    Raises:
        ConfigError: `max_model_len` is more than the model allows, or the pool has too many blocks to keep book of.
    """
    profile, most = point.profile, model.geometry.max_model_len
    max_model_len = profile.max_model_len or most
    if max_model_len > most:
        message = f"expected at most the {most} tokens that {model.name} allows, got {max_model_len}"
        raise ConfigError(message, where=f"{point.where}: max_model_len")
    capacity = count_blocks(
        model.geometry.kv_cache_spec(dtype=profile.kv_cache_dtype, block_size=profile.block_size),
        EngineKind.VLLM,
        available_bytes=profile.available_kv or 0,
        max_model_len=max_model_len,
        override=profile.num_blocks,
    )
    if capacity.num_blocks > MAX_BLOCKS:
        message = (
            f"{capacity.num_blocks:,} blocks of {profile.block_size} tokens are more than the {MAX_BLOCKS:,} allowed"
        )
        raise ConfigError(message, where=f"{point.where}: available_kv")
    return EngineConfig(
        kv_cache=capacity.spec,
        num_blocks=capacity.num_blocks,
        enable_prefix_caching=profile.prefix_caching,
        scheduler=SchedulerConfig(
            max_num_seqs=profile.max_num_seqs,
            max_num_batched_tokens=profile.max_num_batched_tokens,
            max_model_len=max_model_len,
            enable_chunked_prefill=profile.chunked_prefill,
        ),
    )


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


def simulate(prepared: PreparedPoint, requests: Sequence[RequestSpec], *, recording: Path | None = None) -> Figures:
    """Run the scheduler on these requests without a model; every output has its full length.

    Blocks, preemptions and hits are those of a live run whose outputs do not end early; there are no times.

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
    with _closing(engine):
        _refuse_misfits(engine, requests)
        drive(engine, requests)
    return _figures(engine)


def _refuse_misfits(engine: Engine, requests: Sequence[RequestSpec]) -> None:
    """Before anything runs, say what the largest request needs if the pool cannot hold it."""
    longest = max(requests, key=lambda request: len(request.prompt_token_ids) + request.max_tokens)
    longest_prompt = max(requests, key=lambda request: len(request.prompt_token_ids))
    for request in (longest, longest_prompt):
        misfit = engine.never_fits(request.build())
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
    stop_token_ids = prepared.model.eos_token_ids if prepared.workload.stop_at_eos else frozenset()
    error = None
    try:
        with _closing(engine):
            drive(engine, requests, stop_token_ids=stop_token_ids, progress=progress)
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


def drive(
    engine: Engine,
    requests: Sequence[RequestSpec],
    *,
    stop_token_ids: frozenset[int] = frozenset(),
    progress: Progress | None = None,
) -> None:
    """Step an engine until all requests have arrived and finished.

    Raises:
        CapacityError: A request can never be finished, or nothing that is left can be scheduled.
    """
    coming = deque(requests)
    step = num_finished = 0
    while coming or engine.has_unfinished:
        while coming and coming[0].arrival_step <= step:
            engine.add_request(coming.popleft().build(stop_token_ids=stop_token_ids))
        num_finished += len(engine.step().finished)
        step += 1
        if not coming:
            engine.raise_if_stalled()
        if progress is not None:
            progress.advanced(num_finished)


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


def _digest(value: object) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
