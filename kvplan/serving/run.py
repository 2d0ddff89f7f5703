"""A point on a server: found or started, put under load, watched, and stopped."""

import asyncio
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from kvengine.config import EngineConfig
from kvengine.errors import CapacityError, ConfigError
from kvengine.telemetry.scraper import MetricsEndpoint
from kvplan.drive import Progress
from kvplan.figures import Figures, count_good
from kvplan.gpu_log import GpuLog
from kvplan.point_engine import schedule_of
from kvplan.prepare import PreparedPoint
from kvplan.requests.schedule import Schedule
from kvplan.requests.spec import RequestSpec
from kvplan.run_profile import ServerTarget
from kvplan.serving.client import CompletionClient
from kvplan.serving.command import fill_command, free_port, log_facts, started
from kvplan.serving.launch import launch_words, weights_of
from kvplan.serving.load import LoadDriver, LoadResult
from kvplan.serving.watch import ServerWatch

_FAILURES_SHOWN = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRun:
    """What a run on a server came to."""

    measured: Figures
    config: EngineConfig | None
    """The point's configuration with the server's own pool, to be simulated beside it; None if it does not say."""
    environment: dict[str, str]
    out_of_time: bool
    error: CapacityError | None
    """Why requests were left, if any were."""


def run_served(
    prepared: PreparedPoint,
    requests: Sequence[RequestSpec],
    *,
    progress: Progress | None = None,
    log: Path | None = None,
) -> ServedRun:
    """Run the requests on the point's server.

    Args:
        prepared: The point.
        requests: Its requests.
        progress: Told how many requests have ended.
        log: File for what a server prints that is started here; a temporary one if not given.

    Raises:
        ConfigError: The server's address or command makes no sense.
        CapacityError: A server that was to be started did not become ready.
        DeviceError: No server answers, or httpx is not installed.
    """
    target = prepared.point.profile.server or ServerTarget()
    with tempfile.TemporaryDirectory() as folder:
        log = log or Path(folder) / "server.log"
        with _server(target, prepared, log) as url:
            endpoint = MetricsEndpoint(url, token=_api_key(target) or None)
            watch = ServerWatch(endpoint)
            gpus = GpuLog(pid=None)
            with gpus if _is_here(url) else nullcontext():
                result = asyncio.run(_load(prepared, requests, target, url, watch, progress))
        facts = log_facts(log) if log.exists() else {}
    run = _served_run(prepared, result, watch, {"url": url, **facts}, len(requests))
    return replace(run, measured=msgspec.structs.replace(run.measured, gpus=gpus.figures()))


def _is_here(url: str) -> bool:
    """Whether a server is on this machine, so that the GPUs here are those that it may use."""
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


@contextmanager
def _server(target: ServerTarget, prepared: PreparedPoint, log: Path) -> Iterator[str]:
    """The address of a server that runs, or is started for the point."""
    profile = prepared.point.profile
    if profile.target == "openai" and not target.command:
        yield target.url.rstrip("/")
        return
    port = free_port()
    url = target.url.rstrip("/") or f"http://127.0.0.1:{port}"
    if target.command:
        values = {**prepared.point.settings, "port": port}
        command = fill_command(target.command, values, where=f"{prepared.point.where}: server.command")
    else:
        command = launch_words(profile, weights=weights_of(prepared.point, prepared.model), port=port)
    with started(command, url, log=log, ready_s=target.ready_s):
        yield url


def _api_key(target: ServerTarget) -> str:
    if not target.api_key_env:
        return ""
    key = os.environ.get(target.api_key_env)
    if not key:
        raise ConfigError(f"the environment variable {target.api_key_env} is not set", where="server.api_key_env")
    return key


async def _load(
    prepared: PreparedPoint,
    requests: Sequence[RequestSpec],
    target: ServerTarget,
    url: str,
    watch: ServerWatch,
    progress: Progress | None,
) -> LoadResult:
    client = CompletionClient(url, api_key=_api_key(target))
    profile = prepared.point.profile
    try:
        model = target.model or await client.first_model()

        def driver(schedule: Schedule, told: Progress | None) -> LoadDriver:
            return LoadDriver(
                client,
                schedule,
                model=model,
                vocab_size=prepared.model.vocab_size,
                ignore_eos=not prepared.workload.stop_at_eos,
                progress=told,
            )

        first = [
            replace(spec, arrival_s=0.0, after=None, history_tokens=0) for spec in requests[: profile.warmup_requests]
        ]
        await driver(Schedule(first), None).run()
        with watch:
            return await driver(schedule_of(prepared, requests), progress).run(limit_s=profile.time_limit_s)
    finally:
        await client.close()


def _served_run(
    prepared: PreparedPoint, result: LoadResult, watch: ServerWatch, environment: dict[str, str], num_requests: int
) -> ServedRun:
    config = _config_of(prepared, watch)
    error = None
    if result.failures:
        request_id, reason = min(result.failures.items())
        error = CapacityError(
            f"{len(result.failures)} of {num_requests} requests failed, first {request_id!r}: {reason}"
        )
    reading = watch.last
    if reading is not None and reading.server is not None:
        environment = {"server": reading.server, **environment}
    return ServedRun(
        measured=_figures(prepared, result, watch, config),
        config=config,
        environment=environment,
        out_of_time=result.out_of_time,
        error=error,
    )


def _config_of(prepared: PreparedPoint, watch: ServerWatch) -> EngineConfig | None:
    total = watch.last.total if watch.last is not None else None
    if total is None or total.gauges.num_blocks is None or total.gauges.block_size is None:
        return None
    spec = replace(prepared.config.kv_cache, block_size=total.gauges.block_size)
    return replace(prepared.config, kv_cache=spec, num_blocks=total.gauges.num_blocks)


def _figures(prepared: PreparedPoint, result: LoadResult, watch: ServerWatch, config: EngineConfig | None) -> Figures:
    elapsed_s, window = result.elapsed_s, watch.window
    figures = Figures(
        num_blocks=config.num_blocks if config else None,
        usable_blocks=config.num_blocks - 1 if config else None,
        block_size=config.block_size if config else None,
        kv_cache_bytes=None,
        peak_blocks_in_use=watch.peak_used_blocks,
        peak_running=watch.peak_running,
        prompt_tokens=result.prompt_tokens,
        output_tokens=result.output_tokens,
        finished_requests=result.num_finished,
        cancelled_requests=result.num_cancelled,
        elapsed_s=elapsed_s,
        prompt_tokens_per_s=result.prompt_tokens / elapsed_s if elapsed_s else None,
        output_tokens_per_s=result.output_tokens / elapsed_s if elapsed_s else None,
        latencies=result.latencies.summary("s"),
        timeline=watch.timeline(),
        good_requests=count_good(result.latencies.ended, prepared.point.profile.slo),
    )
    if window is None:
        return figures
    unit = 1 if watch.prefix_unit == "tokens" else figures.block_size if watch.prefix_unit == "blocks" else None
    hits, queries = window.prefix_hits, window.prefix_queries
    return msgspec.structs.replace(
        figures,
        preemptions=window.preemptions,
        # What preempted requests find again is not in a server's count.
        first_prefix_hit_tokens=None if hits is None or unit is None else hits * unit,
        admitted_prompt_tokens=None if queries is None or unit is None else queries * unit,
    )
