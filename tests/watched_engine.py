"""An engine under watch: the real scheduler with synthetic tokens, and what its stream said."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from kvengine.allocators.kinds import AllocatorKind
from kvengine.allocators.protocol import EngineScheduler
from kvengine.allocators.select import make_scheduler
from kvengine.clock import VirtualClock
from kvengine.config import SchedulerConfig
from kvengine.engine import Engine
from kvengine.kv_groups.kinds import GroupKind
from kvengine.observer import TelemetryPublisher, engine_facts
from kvengine.runner import SyntheticRunner
from kvengine.telemetry.framing import LENGTH, decode_payload
from kvengine.telemetry.schema import Delta, Frame, Hello, Snapshot
from kvengine.telemetry.writer import FrameSink
from tests.builders import a_request, an_engine_config

STEP_S = 0.5
"""Stream seconds that `run_steps` lets pass for each step."""


class FrameList:
    """A sink that keeps the frames, as they went through their encoding."""

    def __init__(self, *, is_listening: bool = True) -> None:
        self.frames: list[Frame] = []
        self.num_delta_bytes: list[int] = []
        self.is_listening = is_listening
        self.wants_snapshot = True

    @property
    def needs_snapshot(self) -> bool:
        return self.is_listening and self.wants_snapshot

    def poll(self) -> None:
        pass

    def send_delta(self, data: bytes) -> None:
        if self.is_listening and not self.wants_snapshot:
            self.num_delta_bytes.append(len(data))
            self._keep(data)

    def send_snapshot(self, data: bytes) -> None:
        if self.needs_snapshot:
            self.wants_snapshot = False
            self._keep(data)

    def close(self, last: bytes) -> None:
        if self.is_listening:
            self._keep(last)

    def _keep(self, data: bytes) -> None:
        frame = decode_payload(data[LENGTH.size :], where="test")
        assert frame is not None
        self.frames.append(frame)


class WatchedEngine:
    """A small engine whose steps are published, on a clock that each step moves by `STEP_S`."""

    def __init__(
        self,
        *sinks: FrameSink,
        num_blocks: int = 9,
        block_size: int = 4,
        limits: SchedulerConfig | None = None,
        groups: tuple[GroupKind, ...] = (),
        num_host_blocks: int = 0,
        allocator: AllocatorKind = AllocatorKind.PAGED,
        publisher: Callable[[Hello, VirtualClock], TelemetryPublisher] | None = None,
    ) -> None:
        config = an_engine_config(
            num_blocks=num_blocks, block_size=block_size, limits=limits, num_host_blocks=num_host_blocks
        )
        config = replace(config, groups=groups)
        self.clock = VirtualClock()
        self.facts = engine_facts(config, model="tiny", simulated=True, allocator=allocator)
        self.publisher = publisher(self.facts, self.clock) if publisher else TelemetryPublisher(sinks, clock=self.clock)
        self.engine = Engine(
            config,
            SyntheticRunner(),
            clock=self.clock,
            publisher=self.publisher,
            debug=True,
            scheduler=make_scheduler(config, allocator),
        )

    @property
    def scheduler(self) -> EngineScheduler:
        """The engine's own books, to compare with what the stream says."""
        return self.engine._scheduler

    def add(
        self, *names: str, prompt: str | Sequence[int] = "abcdef", max_tokens: int = 4, priority: int = 0, n: int = 1
    ) -> None:
        for name in names:
            self.engine.add_request(a_request(name, prompt=prompt, max_tokens=max_tokens, priority=priority, n=n))

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.engine.step()
            self.clock.advance(STEP_S)


def record_a_run(path: Path, *, closes: bool = True) -> None:
    """Record a small busy run: shared prefixes, a preemption, evictions, an abort.

    Eight usable blocks of four tokens. Each request needs 2 blocks for its 6 prompt tokens and 4 for its end at
    6 + 9 tokens, of which the last is never computed: three of them do not fit together to the end.
    """
    watched = WatchedEngine(
        publisher=lambda facts, clock: TelemetryPublisher.open(facts, clock=clock, socket=False, recording=path)
    )
    watched.add("a", "b", prompt="abcdef", max_tokens=9)
    watched.step(2)
    watched.add("c", prompt="abcdxy", max_tokens=9)
    watched.add("d", prompt="uvwxyz", max_tokens=9)
    watched.step(5)
    watched.engine.abort(a_request("d").request_id)
    while watched.engine.has_unfinished:
        watched.step()
    if closes:
        watched.engine.close("done")


def frames_of_a_run(steps: int = 6) -> tuple[Hello, list[Snapshot | Delta]]:
    """What the stream says of two requests with equal prompts, a snapshot first."""
    sink = FrameList()
    watched = WatchedEngine(sink)
    watched.add("a", "b", max_tokens=9)
    watched.step(steps)
    return watched.facts, [frame for frame in sink.frames if isinstance(frame, Snapshot | Delta)]
