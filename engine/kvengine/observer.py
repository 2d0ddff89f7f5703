"""The engine seen from outside: turns scheduler, pool and counters into telemetry frames.

The only file that knows both sides. An engine uses `TelemetryPublisher`:

    publisher = TelemetryPublisher.open(engine_facts(config, model="smollm2-135m"), clock=clock, recording=path)
    publisher.request_added(request)                                  after each `scheduler.add_request`
    publisher.request_aborted(request)                                after each `scheduler.abort_request`
    publisher.publish(scheduler, output, finished, stats)             after each `scheduler.update`
    publisher.poll()                                                  now and then, while it has nothing to do
    publisher.close("done")
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from kvengine.clock import Clock
from kvengine.config import EngineConfig
from kvengine.request import Request
from kvengine.scheduler import Scheduler
from kvengine.scheduler_output import SchedulerOutput
from kvengine.telemetry.schema import Hello


class StepCounters(Protocol):
    """Counters since the engine started; read in the steps that somebody watches, and only there.

    They should be plain attributes or cheap properties: no medians over the whole run.
    """

    steps: int
    scheduled_tokens: int
    prompt_tokens: int
    output_tokens: int
    preemptions: int
    prefix_hit_tokens: int
    first_prefix_hit_tokens: int
    recomputed_tokens: int
    finished: int
    aborted: int


def engine_facts(config: EngineConfig, *, model: str, label: str = "", simulated: bool = False) -> Hello:
    """What a viewer is told about this engine.

    Args:
        config: What the engine is built from.
        model: Name of the model.
        label: What sets this run apart from its neighbours, such as a point of a sweep.
        simulated: No model computes, so times mean nothing.
    """
    raise NotImplementedError


class TelemetryPublisher:
    """Publishes every step of one engine on a private socket and, if asked, into a recording."""

    @classmethod
    def open(
        cls, facts: Hello, *, clock: Clock, socket: bool | Path = True, recording: Path | None = None
    ) -> "TelemetryPublisher":
        """Start listening.

        Args:
            facts: What viewers are told first.
            clock: The engine's clock.
            socket: Where to listen: True for the place where kvtop looks, False for nowhere.
            recording: File to write; it must not exist.

        Raises:
            TelemetryError: The socket or the recording cannot be made.
        """
        raise NotImplementedError

    def request_added(self, request: Request) -> None:
        """Note a request that the scheduler has queued."""

    def request_aborted(self, request: Request) -> None:
        """Note a request that was taken out before its end."""

    def publish(
        self, scheduler: Scheduler, output: SchedulerOutput, finished: Sequence[Request], stats: StepCounters
    ) -> None:
        """Show one finished step, after `scheduler.update`; never blocks."""

    def poll(self) -> None:
        """Let viewers attach while no step runs; never blocks."""

    def close(self, reason: str) -> None:
        """Say that the run is over: `done`, `interrupted`, or what went wrong."""
