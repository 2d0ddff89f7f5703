"""One point from its preparation to its result: simulate it, and run it on the live engine."""

import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import msgspec

from kvengine.errors import CapacityError
from kvengine.spec import KVDtype
from kvplan.drive import Progress
from kvplan.figures import Figures
from kvplan.live import LiveRun, run_live
from kvplan.point_engine import budget_figures
from kvplan.prepare import PreparedPoint
from kvplan.requests.spec import RequestSpec
from kvplan.results import PointResult, make_folder
from kvplan.run_model import LiveModels
from kvplan.serving.run import ServedRun, run_served
from kvplan.simulation import Simulation, simulate


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
    if prepared.is_served:
        return _run_on_server(prepared, requests, progress)
    is_live = prepared.is_live
    try:
        simulation = simulate(
            prepared,
            requests,
            recording=None if is_live else recording,
            progress=None if is_live else progress,
            debug=debug and not is_live,
        )
    except CapacityError as error:
        return _result(prepared, requests, planned=budget_figures(prepared.config), misfit=error)
    if not is_live:
        return _result(
            prepared, requests, planned=simulation.figures, out_of_time=simulation.out_of_time, recording=recording
        )
    planned = _whole(prepared, simulation)
    try:
        live = run_live(prepared, requests, models=models, recording=recording, progress=progress, debug=debug)
    except CapacityError as error:
        return _result(prepared, requests, planned=planned, misfit=error)
    weight_bytes = prepared.model.weight_bytes(KVDtype(live.environment["dtype"]))
    planned = msgspec.structs.replace(planned, weight_bytes=weight_bytes)
    return _result(prepared, requests, planned=planned, live=live, out_of_time=live.out_of_time, recording=recording)


def _run_on_server(prepared: PreparedPoint, requests: Sequence[RequestSpec], progress: Progress | None) -> PointResult:
    """Measure the server, then simulate its own pool on the same requests."""
    try:
        served = run_served(prepared, requests, progress=progress)
    except CapacityError as error:
        return _result(prepared, requests, planned=_NOTHING_PLANNED, failure=error)
    planned = _NOTHING_PLANNED
    if served.config is not None:
        try:
            planned = _whole(prepared, simulate(replace(prepared, config=served.config), requests))
        except CapacityError:
            planned = budget_figures(served.config)
    return _result(prepared, requests, planned=planned, live=served, out_of_time=served.out_of_time)


_NOTHING_PLANNED = Figures(num_blocks=None, usable_blocks=None, kv_cache_bytes=None)


def _whole(prepared: PreparedPoint, simulation: Simulation) -> Figures:
    """The plan of a live run; what a simulation that was cut short counted is no plan for the whole."""
    return budget_figures(prepared.config) if simulation.out_of_time else simulation.figures


def _result(
    prepared: PreparedPoint,
    requests: Sequence[RequestSpec],
    *,
    planned: Figures,
    misfit: CapacityError | None = None,
    failure: CapacityError | None = None,
    live: LiveRun | ServedRun | None = None,
    out_of_time: bool = False,
    recording: Path | None = None,
) -> PointResult:
    figures = live.measured if live else planned
    error = misfit or failure or (live.error if live else None)
    if out_of_time and error is None:
        error = _time_is_up(prepared, figures, len(requests))
    return PointResult(
        fingerprint=prepared.fingerprint,
        series=prepared.series,
        name=prepared.point.name,
        settings=dict(prepared.point.settings),
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


def _time_is_up(prepared: PreparedPoint, figures: Figures, num_requests: int) -> CapacityError:
    limit_s = prepared.point.profile.time_limit_s
    ended = sum(
        count or 0
        for count in (
            figures.finished_requests,
            figures.cancelled_requests,
            figures.expired_requests,
            figures.rejected_requests,
        )
    )
    return CapacityError(
        f"ended after its time limit of {limit_s:g} s: {ended} of {num_requests} requests had finished",
        hint="raise time_limit_s",
    )
