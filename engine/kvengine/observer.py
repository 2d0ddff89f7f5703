"""The engine seen from outside: turns scheduler, pool and counters into telemetry frames.

The only file that knows both sides. An engine uses `TelemetryPublisher`:

    publisher = TelemetryPublisher.open(engine_facts(config, model="smollm2-135m"), clock=clock, recording=path)
    publisher.request_added(request)                                  after each `scheduler.add_request`
    publisher.request_forked(request)                                 for each of `scheduler.take_forked`
    publisher.request_aborted(request)                                after each `scheduler.abort_request`
    publisher.publish(scheduler, output, finished, stats)             after each `scheduler.update`
    publisher.poll()                                                  now and then, while it has nothing to do
    publisher.close("done")

While nobody listens a step costs one look at the socket. Frames are made from the pool's journal of touched blocks,
so that a step costs what it changed, not what there is.
"""

import os
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kvengine.allocators.kinds import AllocatorKind
from kvengine.allocators.protocol import EngineScheduler
from kvengine.block_content import TextOf, block_content
from kvengine.clock import Clock
from kvengine.config import EngineConfig
from kvengine.kv_groups.kinds import ChunkedLocal, FullAttention, GroupKind, SlidingWindow
from kvengine.request import Request, RequestId
from kvengine.scheduler_output import SchedulerOutput
from kvengine.stats import StatsCollector
from kvengine.step_frames import StepFrames
from kvengine.telemetry.commands import Command, TellBlock, tag_of
from kvengine.telemetry.framing import encode_frame
from kvengine.telemetry.recorder import Recorder
from kvengine.telemetry.schema import Counters, Delta, End, GroupFacts, Hello, Reply, Snapshot
from kvengine.telemetry.writer import FrameSink, ViewerServer

ANSWERS = ("block",)
"""Tags of the questions that every engine answers."""


def engine_facts(
    config: EngineConfig,
    *,
    model: str,
    label: str = "",
    simulated: bool = False,
    accepts: Sequence[str] = (),
    allocator: AllocatorKind = AllocatorKind.PAGED,
) -> Hello:
    """What a viewer is told about this engine.

    Args:
        config: What the engine is built from.
        model: Name of the model.
        label: What sets this run apart from its neighbours, such as a point of a sweep.
        simulated: No model computes, so times mean nothing.
        accepts: Tags of the commands that viewers may send; see `control`.
        allocator: Who hands out its slots.
    """
    return Hello(
        engine=f"kvengine {_version()}",
        model=model,
        label=label,
        pid=os.getpid(),
        started_unix_s=time.time(),
        simulated=simulated,
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        block_bytes=config.kv_cache.block_bytes,
        prefix_caching=config.enable_prefix_caching,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        max_model_len=config.scheduler.max_model_len,
        accepts=[*ANSWERS, *accepts],
        groups=_group_facts(config.groups),
        allocator=str(allocator),
        host_blocks=config.num_host_blocks or None,
    )


def _group_facts(groups: Sequence[GroupKind]) -> list[GroupFacts]:
    """The groups, unless there is only one that keeps everything."""
    if not groups or (len(groups) == 1 and isinstance(groups[0], FullAttention)):
        return []
    return [GroupFacts(group.name, group.block_size, _window(group)) for group in groups]


def _window(group: GroupKind) -> int:
    match group:
        case SlidingWindow():
            return group.window
        case ChunkedLocal():
            return group.chunk
        case _:
            return 0


def _version() -> str:
    try:
        return version("pagedkv")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "(unknown version)"


class TelemetryPublisher:
    """Publishes every step of one engine on a private socket and, if asked, into a recording.

    Args:
        sinks: Where the frames go; each already holds the greeting.
        clock: The engine's clock; the times in the stream begin now.
        accepts: Tags of the commands that are let through to whoever steers the engine.
        text_of: Turns tokens into text for viewers that ask what is in a block.
    """

    def __init__(
        self,
        sinks: Sequence[FrameSink],
        *,
        clock: Clock,
        accepts: Sequence[str] = (),
        text_of: TextOf | None = None,
    ) -> None:
        self._sinks = list(sinks)
        self._clock = clock
        self._origin_s = clock.now_s()
        self._queued: dict[RequestId, tuple[Request, float]] | None = {}
        """Requests queued before the first step, each with when that was; None from then on."""
        self._forked_early: list[tuple[Request, float]] = []
        """Requests that were forked when the first step was taken in, likewise."""
        self._frames: StepFrames | None = None
        """Made for each period in which somebody listens."""
        self._last: tuple[EngineScheduler, StatsCollector] | None = None
        self._note = ""
        self._servers = [sink for sink in self._sinks if isinstance(sink, ViewerServer)]
        self._num_steps = 0
        self._accepts = frozenset(accepts)
        self._text_of = text_of
        self._commands: list[tuple[Command, Callable[[bytes], None]]] = []
        self._defers = False
        self._unsent: Delta | None = None
        self._was_polled = False
        """Whether there was a look since the last step."""

    @classmethod
    def open(
        cls,
        facts: Hello,
        *,
        clock: Clock,
        socket: bool | Path = True,
        recording: Path | None = None,
        text_of: TextOf | None = None,
    ) -> "TelemetryPublisher":
        """Start listening.

        Args:
            facts: What viewers are told first.
            clock: The engine's clock.
            socket: Where to listen: True for the place where kvtop looks, False for nowhere.
            recording: File to write; an older recording there is replaced.
            text_of: Turns tokens into text for viewers that ask what is in a block.

        Raises:
            TelemetryError: The socket or the recording cannot be made.
        """
        sinks: list[FrameSink] = []
        if recording is not None:
            sinks.append(Recorder.create(recording, facts))
        if socket:
            sinks.append(ViewerServer.listen(facts, path=socket if isinstance(socket, Path) else None))
        return cls(sinks, clock=clock, accepts=facts.accepts, text_of=text_of)

    def request_added(self, request: Request) -> None:
        """Note a request that the scheduler has queued."""
        if self._frames is not None:
            self._frames.add(request, self._now_s())
        elif self._queued is not None:
            self._queued[request.request_id] = request, self._now_s()

    def request_forked(self, request: Request) -> None:
        """Note a request that goes on from what another one has computed."""
        if self._frames is not None:
            self._frames.fork(request, self._now_s())
        elif self._queued is not None:
            self._forked_early.append((request, self._now_s()))

    def request_aborted(self, request: Request) -> None:
        """Note a request that was taken out before its end."""
        if self._frames is not None:
            self._frames.remove(request)
        elif self._queued is not None:
            del self._queued[request.request_id]

    def publish(
        self, scheduler: EngineScheduler, output: SchedulerOutput, finished: Sequence[Request], stats: StatsCollector
    ) -> None:
        """Show one finished step, after `scheduler.update`; never blocks.

        Args:
            scheduler: The scheduler after the step.
            output: What it had decided.
            finished: The requests that ended in the step.
            stats: The engine's counters after the step.
        """
        self._was_polled = False
        self._last = scheduler, stats
        self._num_steps = output.step + 1
        if self._poll_sinks():
            if self._frames is None and self._queued is not None:
                self._frames = StepFrames.before_first_step(scheduler, list(self._queued.values()))
                self._send_snapshot(self._frames.blank_snapshot())
                for request, time_s in self._forked_early:
                    self._frames.fork(request, time_s)
            self._show(output, finished)
        self._queued = None
        self._forked_early.clear()
        self._note = ""

    def defer(self) -> None:
        """From now on leave each delta to `flush`, or until something follows it in the stream."""
        self._defers = True

    def flush(self) -> None:
        """Encode and send the last delta if that is still to be done; never blocks."""
        if self._unsent is None:
            return
        frame, self._unsent = encode_frame(self._unsent), None
        for sink in self._sinks:
            sink.send_delta(frame)

    def poll(self) -> None:
        """Let viewers attach, and show what was queued or aborted, while no step runs; never blocks.

        A delta that was left for later goes out with the second look: at the first, the next step may be about to run.
        """
        if self._was_polled:
            self.flush()
        self._was_polled = True
        if self._poll_sinks() and self._last is not None:
            self._show(None, ())

    @property
    def is_watched(self) -> bool:
        """Whether any viewer is attached."""
        return any(server.is_listening for server in self._servers)

    def note(self, text: str) -> None:
        """Say something for people with the next step."""
        self._note = text

    def take_commands(self) -> list[tuple[Command, Callable[[bytes], None]]]:
        """What viewers have asked to be done since the last call, each with the way to answer."""
        taken, self._commands = self._commands, []
        return taken

    def tell(self, data: bytes) -> None:
        """Send a frame that is no part of the stream to all viewers, and to those that come until the next."""
        for server in self._servers:
            server.tell(data)

    def close(self, reason: str) -> None:
        """Say that the run is over: `done`, `interrupted`, or what went wrong."""
        self.flush()
        last = encode_frame(End(seq=self._frames.seq if self._frames is not None else 0, reason=reason))
        for sink in self._sinks:
            sink.close(last)
        self._sinks.clear()

    def _now_s(self) -> float:
        """Stream time."""
        return self._clock.now_s() - self._origin_s

    def _poll_sinks(self) -> bool:
        """Whether anybody listens now."""
        is_watched = False
        for sink in self._sinks:
            sink.poll()
            is_watched = sink.is_listening or is_watched
        for server in self._servers:
            if server.has_commands:
                self._answer(server)
        if not is_watched and self._frames is not None:
            self._frames.stop()
            self._frames = self._unsent = None
        return is_watched

    def _answer(self, server: ViewerServer) -> None:
        """Answer questions, and keep what is to be done for whoever steers the engine."""
        for command, answer in server.take_commands():
            if isinstance(command, TellBlock):
                scheduler = self._last[0] if self._last is not None else None
                answer(encode_frame(block_content(scheduler, command.block_id, self._text_of)))
            elif tag_of(command) in self._accepts:
                self._commands.append((command, answer))
            else:
                answer(encode_frame(Reply(is_done=False, text=f"this engine does not obey {tag_of(command)!r}")))

    def _show(self, output: SchedulerOutput | None, finished: Sequence[Request]) -> None:
        assert self._last is not None, "a step is published with its scheduler"
        scheduler, stats = self._last
        now_s = self._now_s()
        counters = _read_counters(stats)
        if self._frames is None:
            self._frames = StepFrames.after_step(scheduler, self._num_steps)
        elif output is not None or self._frames.has_news:
            self.flush()
            self._unsent = self._frames.delta(output, finished, counters, now_s, note=self._take_note())
        if not self._defers or any(sink.needs_snapshot for sink in self._sinks):
            self.flush()
        if any(sink.needs_snapshot for sink in self._sinks):
            self._send_snapshot(self._frames.snapshot(counters, now_s))

    def _take_note(self) -> str:
        note, self._note = self._note, ""
        return note

    def _send_snapshot(self, snapshot: Snapshot) -> None:
        frame = encode_frame(snapshot)
        for sink in self._sinks:
            sink.send_snapshot(frame)


def _read_counters(stats: StatsCollector) -> Counters:
    return Counters(
        steps=stats.steps,
        scheduled_tokens=stats.scheduled_tokens,
        prompt_tokens=stats.prompt_tokens,
        output_tokens=stats.output_tokens,
        preemptions=stats.preemptions,
        prefix_hit_tokens=stats.prefix_hit_tokens,
        first_prefix_hit_tokens=stats.first_prefix_hit_tokens,
        admitted_prompt_tokens=stats.admitted_prompt_tokens,
        recomputed_tokens=stats.recomputed_tokens,
        peak_blocks_in_use=stats.peak_blocks_in_use,
        finished=stats.finished,
        aborted=stats.aborted,
        expired=stats.expired,
        rejected=stats.rejected,
        swapped_out_blocks=stats.swapped_out_blocks,
        swapped_out_tokens=stats.swapped_out_tokens,
        swapped_in_blocks=stats.swapped_in_blocks,
        swapped_in_tokens=stats.swapped_in_tokens,
        host_blocks_in_use=stats.host_blocks_in_use,
    )
