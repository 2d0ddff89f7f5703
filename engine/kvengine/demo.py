"""`python -m kvengine.demo --socket PATH`: a small engine that acts out guided scenes for whoever attaches.

The real scheduler and pool with made-up tokens: what is seen of blocks is exact, and each step says in a line what just
happened. A scene is an engine of its own on the same socket; the stream of one ends with `next scene`, and the next
begins.
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from kvengine.clock import RealClock
from kvengine.control import EngineControl
from kvengine.demo_narrator import Narrator
from kvengine.demo_scenes import SCENES, Fork, Scene, scene_config
from kvengine.engine import Engine
from kvengine.errors import KVError
from kvengine.observer import TelemetryPublisher, engine_facts
from kvengine.request import Request, RequestId, SamplingParams
from kvengine.runner import SyntheticRunner
from kvengine.transfer_pins import TransferHandle

STEPS_PER_S = 1.0
LINGER_S = 6.0
"""How long the end of a scene stays before the next begins by itself."""
NEXT_SCENE = "next scene"
"""Reason with which the stream of a scene ends when another follows on the same socket."""


class Stage:
    """One scene being acted out."""

    def __init__(self, scene: Scene, publisher: TelemetryPublisher, control: EngineControl, clock: RealClock) -> None:
        self._scene = scene
        self._control = control
        self.narrator = Narrator(publisher, scene.opening)
        self.engine = Engine(scene_config(scene), SyntheticRunner(), clock=clock, publisher=self.narrator)
        self._coming = list(scene.arrivals)
        self._num_steps = 0
        self._transfers: dict[str, TransferHandle] = {}
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
        self._happen()
        self.engine.step()
        self._control.stepped()
        self._num_steps += 1

    def _happen(self) -> None:
        """What the scene has happen before this step."""
        scene, step = self._scene, self._num_steps
        if step in scene.resizes:
            self._resize(scene.resizes[step])
        if step in scene.forks:
            self._fork(scene.forks[step])
        if step in scene.pins:
            name = scene.pins[step]
            transfer = self.engine.pin(RequestId(name))
            self._transfers[name] = transfer.handle
            self.narrator.pinned(name, sum(map(len, transfer.blocks)))
        if step in scene.unpins:
            name = scene.unpins[step]
            self.engine.unpin(self._transfers.pop(name))
            self.narrator.unpinned(name)

    def _fork(self, fork: Fork) -> None:
        children = [RequestId(name) for name in fork.children]
        # Each goes on with a token of its own, so that what they write differs.
        self.engine.fork(RequestId(fork.parent), children, list(range(1, len(children) + 1)))
        num_blocks = len(self.engine.kv_cache.block_ids(RequestId(fork.parent)))
        self.narrator.forked(fork.parent, fork.children, num_blocks)

    def _resize(self, usable: int) -> None:
        refusal = self._control.resize(usable, preempt=True)
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
