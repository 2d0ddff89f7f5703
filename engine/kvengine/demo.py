"""`python -m kvengine.demo --socket PATH`: a small engine that acts out guided scenes for whoever attaches.

The real scheduler and pool with made-up tokens: what is seen of blocks is exact, and each step says in a line what just
happened. A scene is an engine of its own on the same socket; the stream of one ends with `next scene`, and the next
begins. Copy-on-write forks and transfer pins are not shown: this engine has neither.
"""

import argparse
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvengine.allocators.protocol import EngineScheduler
from kvengine.clock import RealClock
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.control import EngineControl
from kvengine.engine import Engine
from kvengine.errors import KVError
from kvengine.kv_groups.kinds import GroupKind, SlidingWindow
from kvengine.observer import TelemetryPublisher, engine_facts
from kvengine.request import Request, RequestId, SamplingParams
from kvengine.runner import SyntheticRunner
from kvengine.scheduler_output import SchedulerOutput
from kvengine.spec import KVCacheSpec, KVDtype
from kvengine.stats import StatsCollector

BLOCK_SIZE = 4
POOL_BLOCKS = 28
SLAB_TOKENS = 64
"""The longest request: what a contiguous allocator would set aside for each."""
STEPS_PER_S = 1.0
LINGER_S = 6.0
"""How long the end of a scene stays before the next begins by itself."""
NEXT_SCENE = "next scene"
"""Reason with which the stream of a scene ends when another follows on the same socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request that comes before a step."""

    step: int
    name: str
    prompt: Sequence[int]
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What happens, and what it is there to show."""

    title: str
    opening: str
    arrivals: Sequence[Arrival]
    num_blocks: int = POOL_BLOCKS
    """Blocks that can be handed out."""
    max_num_seqs: int = 6
    step_tokens: int = SLAB_TOKENS
    """Most tokens of a step; a window's pool has to hold those of one step besides the window."""
    groups: tuple[GroupKind, ...] = ()
    resizes: Mapping[int, int] = field(default_factory=dict)
    """Before a step: how many blocks may be handed out from then on."""


def _tokens(seed: int, count: int) -> list[int]:
    """A prompt that no other seed shares."""
    return [1000 * seed + position for position in range(count)]


_SHARED_PROMPT = _tokens(1, 14)

SCENES = (
    Scene(
        title="1 of 3: blocks, sharing and preemption",
        opening="six requests share 28 blocks of 4 tokens; request 2 has the same prompt as request 0",
        arrivals=(
            Arrival(step=0, name="#0", prompt=_SHARED_PROMPT, max_tokens=22),
            Arrival(step=2, name="#1", prompt=_tokens(2, 9), max_tokens=24),
            Arrival(step=4, name="#2", prompt=_SHARED_PROMPT, max_tokens=16),
            Arrival(step=6, name="#3", prompt=_tokens(4, 11), max_tokens=14),
            Arrival(step=8, name="#4", prompt=_tokens(5, 7), max_tokens=14),
            Arrival(step=10, name="#5", prompt=_tokens(6, 10), max_tokens=12),
        ),
        resizes={13: 22, 22: POOL_BLOCKS},
    ),
    Scene(
        title="2 of 3: a prefix hit",
        opening="a finished request leaves its full blocks in the cache; who begins alike finds them there",
        arrivals=(
            Arrival(step=0, name="first", prompt=_tokens(7, 21), max_tokens=3),
            Arrival(step=5, name="again", prompt=_tokens(7, 21), max_tokens=3),
            Arrival(step=10, name="half alike", prompt=[*_tokens(7, 10), *_tokens(8, 9)], max_tokens=3),
        ),
    ),
    Scene(
        title="3 of 3: a sliding window",
        opening="with a window of 8 tokens a block is given back once no token looks at it any more",
        arrivals=(Arrival(step=0, name="long", prompt=_tokens(9, 10), max_tokens=34),),
        num_blocks=8,
        step_tokens=8,
        groups=(SlidingWindow(block_size=BLOCK_SIZE, window=8),),
    ),
)


def scene_config(scene: Scene) -> EngineConfig:
    """The engine of a scene: one layer, one head, so that nothing is in the way of the blocks."""
    spec = KVCacheSpec(
        num_layers=1, num_kv_heads=1, head_dim=1, head_dim_v=1, dtype=KVDtype.FLOAT16, block_size=BLOCK_SIZE
    )
    limits = SchedulerConfig(
        max_num_seqs=scene.max_num_seqs, max_num_batched_tokens=scene.step_tokens, max_model_len=SLAB_TOKENS
    )
    config = EngineConfig(kv_cache=spec, num_blocks=scene.num_blocks + 1, scheduler=limits)
    return replace(config, groups=scene.groups)


class Narrator:
    """Publishes each step with a line that says what just happened in it.

    Args:
        publisher: Where the steps go.
        opening: Said with the first step.
    """

    def __init__(self, publisher: TelemetryPublisher, opening: str) -> None:
        self._publisher = publisher
        self._pending = [opening]
        self._num_given_back: dict[RequestId, int] = {}

    def say(self, text: str) -> None:
        """Say something with the next step."""
        self._pending.append(text)

    def request_added(self, request: Request) -> None:
        """See `Publisher`."""
        self._publisher.request_added(request)

    def request_forked(self, request: Request) -> None:
        """See `Publisher`."""
        self._publisher.request_forked(request)

    def request_aborted(self, request: Request) -> None:
        """See `Publisher`."""
        self._publisher.request_aborted(request)

    def publish(
        self, scheduler: EngineScheduler, output: SchedulerOutput, finished: Sequence[Request], stats: StatsCollector
    ) -> None:
        """See `Publisher`; the step's line goes with it."""
        lines = [*self._pending, *self._lines(scheduler, output, finished)]
        self._pending = []
        if lines:
            self._publisher.note("; ".join(lines))
        self._publisher.publish(scheduler, output, finished, stats)

    def poll(self) -> None:
        """See `Publisher`."""
        self._publisher.poll()

    def close(self, reason: str) -> None:
        """See `Publisher`."""
        self._publisher.close(reason)

    def _lines(self, scheduler: EngineScheduler, output: SchedulerOutput, finished: Sequence[Request]) -> list[str]:
        lines = [
            f"no block was free, so {victim} is preempted: its blocks go back, and it is computed again later"
            for victim in output.preempted
        ]
        for name, num_cached, resumed in output.admitted:
            verb = "comes back" if resumed else "is admitted"
            blocks = num_cached // BLOCK_SIZE
            found = f"{num_cached} of its tokens, in {blocks} of its blocks, were" if blocks else "nothing of it was"
            lines.append(f"{name} {verb}: {found} in the cache")
        for request in scheduler.running:
            lines += self._given_back(scheduler, request)
        lines += [f"{request.request_id} has finished; its full blocks can still be hit" for request in finished]
        return lines

    def _given_back(self, scheduler: EngineScheduler, request: Request) -> list[str]:
        """Blocks that a window has left behind."""
        table = scheduler.kv_cache.block_ids(request.request_id)
        num_gone = table.count(0)
        before, self._num_given_back[request.request_id] = self._num_given_back.get(request.request_id, 0), num_gone
        if num_gone <= before:
            return []
        return [f"the window of {request.request_id} moved on: {num_gone} of its {len(table)} blocks are given back"]


class Stage:
    """One scene being acted out."""

    def __init__(self, scene: Scene, publisher: TelemetryPublisher, control: EngineControl, clock: RealClock) -> None:
        self._scene = scene
        self._control = control
        self.narrator = Narrator(publisher, scene.opening)
        self.engine = Engine(scene_config(scene), SyntheticRunner(), clock=clock, publisher=self.narrator)
        self._coming = list(scene.arrivals)
        self._num_steps = 0
        control.steer(self.engine, publisher)
        control.set_scene(scene.title)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to come or to compute."""
        return not self._coming and not self.engine.has_unfinished

    def step(self) -> None:
        """Let in what arrives now, resize the pool where the scene says so, and take a step."""
        while self._coming and self._coming[0].step <= self._num_steps:
            arrival = self._coming.pop(0)
            sampling = SamplingParams(max_tokens=arrival.max_tokens)
            self.engine.add_request(Request(RequestId(arrival.name), arrival.prompt, sampling))
        usable = self._scene.resizes.get(self._num_steps)
        if usable is not None:
            self._resize(usable)
        self.engine.step()
        self._control.stepped()
        self._num_steps += 1

    def _resize(self, usable: int) -> None:
        refusal = self._control.resize(usable)
        if not refusal:
            direction = "shrinks" if usable < self._scene.num_blocks else "grows back"
            self.narrator.say(f"the pool {direction} to {usable} blocks")


def act(scene: Scene, control: EngineControl, socket: Path) -> None:
    """Act a scene out, and leave its end standing until the next is wanted or some time has passed."""
    clock = RealClock()
    facts = engine_facts(
        scene_config(scene), model="guided scenes", label=scene.title, simulated=True, accepts=control.accepts
    )
    publisher = TelemetryPublisher.open(facts, clock=clock, socket=socket)
    stage = Stage(scene, publisher, control, clock)
    stage.step()  # so that there is something to see, even if the engine was stopped in the scene before
    over_s: float | None = None
    while over_s is None or time.monotonic() - over_s < LINGER_S:
        if control.wait_for_turn(is_idle=stage.is_over):
            stage.step()
        elif control.wants_next_scene:
            break
        if stage.is_over:
            over_s = time.monotonic() if over_s is None else over_s
            time.sleep(0.05)
    stage.engine.close(NEXT_SCENE)


def main(arguments: Sequence[str]) -> int:
    """Act all scenes out, over and over."""
    parser = argparse.ArgumentParser(prog="python -m kvengine.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--socket", type=Path, required=True, help="where viewers attach; its folder must be private")
    parser.add_argument("--steps-per-s", type=float, default=STEPS_PER_S, help="how fast the scenes go at first")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    control = EngineControl(clock=RealClock(), steps_per_s=options.steps_per_s, has_scenes=True)
    try:
        while True:
            for scene in SCENES:
                act(scene, control, options.socket)
    except KVError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
