"""An engine that viewers may steer: paused, stepped, slowed down, given fewer blocks.

Whoever drives the engine asks before each step:

    control = EngineControl(clock=clock)
    facts = engine_facts(config, model=name, accepts=control.accepts)
    publisher = TelemetryPublisher.open(facts, clock=clock)
    engine = Engine(config, runner, clock=clock, publisher=publisher)
    control.steer(engine, publisher)
    while control.wait_for_turn():
        engine.step()
        control.stepped()

Blocks that the pool is to lose are withheld as they become free, and the scheduler preempts by its own rules where
requests do not fit any more; or it is told to preempt at once.
"""

import time
from collections.abc import Callable
from typing import Protocol

from kvengine.allocators.protocol import EngineScheduler
from kvengine.block_pool import BlockPool
from kvengine.clock import Clock
from kvengine.errors import ConfigError
from kvengine.request import Request, RequestId
from kvengine.scheduler import Scheduler
from kvengine.telemetry.commands import (
    AbortRequest,
    Command,
    NextScene,
    Pause,
    PreemptRequest,
    ResizePool,
    Resume,
    SetSpeed,
    TakeSteps,
)
from kvengine.telemetry.framing import encode_frame
from kvengine.telemetry.schema import ControlState, Reply
from kvengine.units import cdiv

LOOK_EVERY_S = 0.02
"""How often commands are looked for while the engine waits."""
MAX_STEPS_PER_S = 1000.0
MAX_STEPS_AT_ONCE = 10_000
ACCEPTS = ("pause", "resume", "steps", "speed", "resize", "abort", "preempt")


class Steered(Protocol):
    """What is steered of an engine."""

    @property
    def scheduler(self) -> EngineScheduler:
        """What decides its steps."""
        ...

    def abort(self, request_id: RequestId) -> Request | None:
        """Take a request out."""
        ...

    def preempt(self, request_id: RequestId) -> Request | None:
        """Preempt a running request with the next step."""
        ...


class Commanded(Protocol):
    """Where commands come from, and where the answers go."""

    def poll(self) -> None:
        """Let viewers attach, and read what they send."""
        ...

    def take_commands(self) -> list[tuple[Command, Callable[[bytes], None]]]:
        """What viewers have asked for."""
        ...

    def tell(self, data: bytes) -> None:
        """Send a frame to all viewers."""
        ...

    @property
    def is_watched(self) -> bool:
        """Whether any viewer is attached."""
        ...


class EngineControl:
    """What viewers have asked for, and whether a step may be taken now.

    Args:
        clock: Paces the steps.
        steps_per_s: Most steps a second at first; 0 for as many as there is time for.
        has_scenes: Whether there are scenes to go on to.
        lets_go: When the last viewer leaves, go on at full speed with the whole pool: nobody is left to ask for that.

    Attributes:
        num_obeyed: Commands that were carried out.
    """

    def __init__(
        self, *, clock: Clock, steps_per_s: float = 0.0, has_scenes: bool = False, lets_go: bool = False
    ) -> None:
        self._clock = clock
        self._lets_go = lets_go
        self.num_obeyed = 0
        self._is_steered = False
        """Whether a viewer that is attached has changed anything."""
        self._steps_per_s = steps_per_s
        self._has_scenes = has_scenes
        self._is_paused = False
        self._steps_left: int | None = None
        """Steps to take before stopping; None for no end."""
        self._scene = ""
        self._wants_next_scene = False
        self._engine: Steered | None = None
        self._publisher: Commanded | None = None
        self._told: ControlState | None = None
        self._last_step_s: float | None = None

    @property
    def accepts(self) -> list[str]:
        """Tags of the commands that are obeyed."""
        return [*ACCEPTS, "scene"] if self._has_scenes else list(ACCEPTS)

    @property
    def wants_next_scene(self) -> bool:
        """Whether somebody wants to go on to the next scene; asked once."""
        wanted, self._wants_next_scene = self._wants_next_scene, False
        return wanted

    def steer(self, engine: Steered, publisher: Commanded) -> None:
        """Take over an engine, and everything that was kept from one before."""
        self._engine, self._publisher = engine, publisher
        self._told = None

    def set_scene(self, scene: str) -> None:
        """Say what is shown now."""
        self._scene = scene

    def resize(self, usable_blocks: int, *, preempt: bool = False) -> str:
        """Let only so many blocks be handed out; an empty text, or why that cannot be.

        Args:
            usable_blocks: How many.
            preempt: Preempt requests with the next step until the blocks are there.
        """
        scheduler = self._scheduler
        if not isinstance(scheduler, Scheduler) or not isinstance(scheduler.kv_cache.pool, BlockPool):
            return "only a pool of blocks can be made smaller, and this engine hands out memory in another way"
        most, least = scheduler.kv_cache.pool.num_blocks - 1, _blocks_of_largest(scheduler)
        if not least <= usable_blocks <= most:
            return f"expected {least} (what the largest request needs) to {most} blocks, got {usable_blocks}"
        scheduler.resize_pool(usable_blocks, preempt=preempt)
        return ""

    def wait_for_turn(self, *, is_idle: bool = False) -> bool:
        """Do what is asked for until a step may be taken.

        Args:
            is_idle: There is nothing to compute: return after a look, so that the caller can go on.

        Returns:
            Whether to take the step; False when there is nothing to do or the next scene is wanted.
        """
        while True:
            self._obey()
            if self._wants_next_scene:
                return False
            if not self._is_paused and self._is_time():
                return not is_idle
            if is_idle and not self._is_paused:
                return False
            time.sleep(LOOK_EVERY_S)

    def stepped(self) -> None:
        """A step was taken."""
        self._last_step_s = self._clock.now_s()
        if self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left <= 0:
                self._steps_left, self._is_paused = None, True

    def _is_time(self) -> bool:
        if not self._steps_per_s or self._last_step_s is None:
            return True
        return self._clock.now_s() - self._last_step_s >= 1 / self._steps_per_s

    def _obey(self) -> None:
        publisher = self._publisher
        assert publisher is not None, "an engine is steered before it is driven"
        publisher.poll()
        if self._lets_go and self._is_steered and not publisher.is_watched:
            self._let_go()
        for command, answer in publisher.take_commands():
            refusal = self._carry_out(command)
            if not refusal:
                self.num_obeyed += 1
                self._is_steered = True
            answer(encode_frame(Reply(is_done=not refusal, text=refusal)))
        state = self._state()
        if state != self._told:
            self._told = state
            publisher.tell(encode_frame(state))

    def _let_go(self) -> None:
        self._is_steered = self._is_paused = False
        self._steps_left, self._steps_per_s = None, 0.0
        scheduler = self._scheduler
        if isinstance(scheduler, Scheduler) and isinstance(scheduler.kv_cache.pool, BlockPool):
            scheduler.resize_pool(scheduler.kv_cache.pool.num_blocks - 1)

    def _carry_out(self, command: Command) -> str:
        """Do one thing; an empty text, or why it cannot be done."""
        match command:
            case Pause():
                self._is_paused, self._steps_left = True, None
            case Resume():
                self._is_paused, self._steps_left = False, None
            case TakeSteps(count):
                if not 1 <= count <= MAX_STEPS_AT_ONCE:
                    return f"expected 1 to {MAX_STEPS_AT_ONCE:,} steps, got {count}"
                self._is_paused, self._steps_left = False, count
            case SetSpeed(steps_per_s):
                if not 0 <= steps_per_s <= MAX_STEPS_PER_S:
                    return f"expected 0 to {MAX_STEPS_PER_S:g} steps a second, got {steps_per_s:g}"
                self._steps_per_s = steps_per_s
            case ResizePool(usable_blocks, preempt):
                return self.resize(usable_blocks, preempt=preempt)
            case AbortRequest(request_id):
                return self._abort(RequestId(request_id))
            case PreemptRequest(request_id):
                return self._preempt(RequestId(request_id))
            case NextScene():
                self._wants_next_scene = True
        return ""

    @property
    def _steered(self) -> Steered:
        assert self._engine is not None, "an engine is steered before it is driven"
        return self._engine

    @property
    def _scheduler(self) -> EngineScheduler:
        return self._steered.scheduler

    def _abort(self, request_id: RequestId) -> str:
        return "" if self._steered.abort(request_id) is not None else f"no unfinished request {request_id!r}"

    def _preempt(self, request_id: RequestId) -> str:
        try:
            preempted = self._steered.preempt(request_id)
        except ConfigError as error:
            return error.message
        return "" if preempted is not None else f"no running request {request_id!r}"

    def _state(self) -> ControlState:
        pool = self._scheduler.kv_cache.pool
        num_withheld = num_wanted = 0
        if isinstance(pool, BlockPool):
            num_withheld, num_wanted = pool.num_withheld, pool.num_to_withhold
        return ControlState(
            is_paused=self._is_paused,
            steps_per_s=self._steps_per_s,
            usable_blocks=pool.num_usable - num_wanted,
            withheld_blocks=num_withheld,
            scene=self._scene,
        )


def _blocks_of_largest(scheduler: EngineScheduler) -> int:
    """Blocks that the largest unfinished request holds when it ends: its last token is never computed."""
    block_size = min(scheduler.kv_cache.sizes.block_sizes)
    num_groups = len(scheduler.kv_cache.sizes.groups)
    ends = [request.max_num_tokens - 1 for request in (*scheduler.running, *scheduler.waiting)]
    return max((cdiv(end, block_size) * num_groups for end in ends), default=1)
