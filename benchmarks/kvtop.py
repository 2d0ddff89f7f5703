"""`python -m benchmarks.kvtop [--json]`: what a frame of the view costs, and what telemetry costs the engine.

CPU time of the process, medians. Frames are drawn by Textual's headless driver at 200x60, up to the escape codes that
a terminal would get; the terminal's own work comes on top. The baseline of the map is the same picture through a
`Static` with a rich `Text`, the usual way to draw in Textual.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult
from textual.widgets import Static

from benchmarks.measure import Figure, machine, report
from kvengine.clock import VirtualClock
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.observer import TelemetryPublisher, engine_facts
from kvengine.request import Request, RequestId, SamplingParams
from kvengine.runner import SyntheticRunner
from kvengine.scheduler import Scheduler
from kvengine.spec import KVCacheSpec, KVDtype
from kvengine.stats import StatsCollector
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.recording import Recording
from kvengine.telemetry.schema import Counters, Hello, Totals
from kvengine.telemetry.state import BlockCodes, StepSnapshot, block_states
from kvtop.app import KvtopApp
from kvtop.map_layout import Look, MapLayout, lay_out
from kvtop.palette import DARK, DARK_VARIABLES
from kvtop.source import RecordingSource
from kvtop.view_model import ViewModel
from kvtop.widgets.pool_map import GLYPHS, PoolMap

SIZE = (200, 60)
FRAMES = 30
RUN_LENGTH = 8
"""Neighbours in a pool tend to be of one kind; so do about this many blocks here."""
NUM_REQUESTS = 256
CODES = np.array([0, 1, 16, 17, 33], dtype=np.uint32)
"""Free, cached, used, used and cached, shared."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = [
        *asyncio.run(map_figures(27_432)),
        *asyncio.run(map_figures(262_144)),
        asyncio.run(dashboard_figure()),
        *publisher_figures(),
    ]
    report("kvtop", figures, machine(("textual", "msgspec", "numpy")), as_json=options.json)


class MapOnly(App[None]):
    """The whole screen is the map."""

    CSS = "PoolMap { height: 1fr; } Static { height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self.model = ViewModel(source_name="benchmark", is_recording=False)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """The map's colours."""
        return DARK_VARIABLES

    def compose(self) -> ComposeResult:
        """Nothing else."""
        yield PoolMap(self.model)

    def on_mount(self) -> None:
        """Colours as in kvtop."""
        self.register_theme(DARK)
        self.theme = DARK.name


class TextOnly(App[None]):
    """The same picture as text in a `Static`."""

    CSS = "Static { height: 1fr; }"

    def compose(self) -> ComposeResult:
        """Nothing else."""
        yield Static()


def random_codes(num_blocks: int, rng: np.random.Generator) -> BlockCodes:
    """Every block one of five kinds, in runs."""
    num_runs = num_blocks // RUN_LENGTH + 1
    return np.repeat(rng.choice(CODES, num_runs), RUN_LENGTH)[:num_blocks].astype(np.uint32)


def changed_codes(codes: BlockCodes, share: float, rng: np.random.Generator) -> BlockCodes:
    """The same with about this share of the blocks changed, in runs."""
    changed = codes.copy()
    for _ in range(max(round(len(codes) * share / RUN_LENGTH), 1)):
        start = int(rng.integers(len(codes)))
        changed[start : start + RUN_LENGTH] = rng.choice(CODES)
    return changed


def a_snapshot(codes: BlockCodes, step: int) -> StepSnapshot:
    """A state in which only the map's blocks matter."""
    return StepSnapshot(
        facts=facts(len(codes)),
        seq=step,
        step=step,
        time_s=step / 10,
        totals=Totals(len(codes) // 4, len(codes) // 4, len(codes) // 4, len(codes) // 4, 0, 0),
        counters=Counters(step, step * 256, step, step * 200, step // 10, step, step, step * 2, 0, 0, 0, 0),
        block_codes=codes,
        requests=(),
    )


def facts(num_blocks: int) -> Hello:
    """An 8B model's pool."""
    return engine_facts(config(num_blocks), model="llama-3.1-8b", simulated=True)


def config(num_blocks: int) -> EngineConfig:
    """Blocks of 16 of an 8B model, 256 requests at once."""
    spec = KVCacheSpec(
        num_layers=32, num_kv_heads=8, head_dim=128, head_dim_v=128, dtype=KVDtype.BFLOAT16, block_size=16
    )
    return EngineConfig(kv_cache=spec, num_blocks=num_blocks, scheduler=SchedulerConfig(max_num_seqs=NUM_REQUESTS))


async def frame_ms(app: App[None], update: Callable[[], object]) -> float:
    """CPU milliseconds from a change to the end of the frame that shows it."""
    drawn = asyncio.Event()
    start = time.process_time()
    update()
    app.call_after_refresh(drawn.set)
    await drawn.wait()
    await asyncio.sleep(0)
    return (time.process_time() - start) * 1000


async def median_frame_ms(app: App[None], updates: list[Callable[[], object]]) -> float:
    """The median over several frames."""
    times = []
    for update in updates:
        times.append(await frame_ms(app, update))
        await asyncio.sleep(0.02)
    return statistics.median(times)


async def map_figures(num_blocks: int) -> list[Figure]:
    """A frame of the map with every block new, and with 1 % of them."""
    rng = np.random.default_rng(1)
    everything = [random_codes(num_blocks, rng) for _ in range(FRAMES)]
    few = [everything[0]]
    for _ in range(FRAMES - 1):
        few.append(changed_codes(few[-1], 0.01, rng))
    app = MapOnly()
    async with app.run_test(size=SIZE):
        pool_map = app.query_one(PoolMap)

        def show(codes: BlockCodes) -> None:
            app.model.take_snapshot(a_snapshot(codes, 1), now_s=0.0)
            pool_map.update_view()

        all_ms = await median_frame_ms(app, [partial(show, codes) for codes in everything])
        few_ms = await median_frame_ms(app, [partial(show, codes) for codes in few])
        grid = lay_out(num_blocks, pool_map.size.width, pool_map.size.height)
    assert grid is not None, "200x60 has room for a map"
    text_ms = await text_frame_ms(everything, grid)
    name = f"map of {num_blocks:,} blocks, {{}} changing"
    return [
        Figure(name=name.format("all"), value=all_ms, unit="ms", baseline=text_ms, baseline_name="Static with Text"),
        Figure(name=name.format("1 %"), value=few_ms, unit="ms", baseline=text_ms, baseline_name="Static with Text"),
    ]


async def text_frame_ms(pictures: list[BlockCodes], grid: MapLayout) -> float:
    """The baseline: one `Text` with a span a run."""
    names = ("white", "purple", "grey50", "cyan", "blue", "blue", "blue", "yellow", "yellow", "yellow")
    styles = [Style.parse(name) for name in names]
    app = TextOnly()
    async with app.run_test(size=SIZE):
        static = app.query_one(Static)

        def show(codes: BlockCodes) -> None:
            text = Text()
            for row in grid.cells(block_states(codes)):
                borders = [0, *(np.flatnonzero(row[1:] != row[:-1]) + 1).tolist(), len(row)]
                for start, end in pairwise(borders):
                    look = int(row[start])
                    text.append(GLYPHS[Look(look)] * (end - start), styles[look])
                text.append("\n")
            static.update(text)

        return await median_frame_ms(app, [partial(show, codes) for codes in pictures[:10]])


class BusyEngine:
    """A scheduler with 256 requests decoding, and a publisher."""

    def __init__(self, *, socket: Path | None = None, recording: Path | None = None, step_s: float = 0.02) -> None:
        self.config = config(27_432)
        self.clock = VirtualClock()
        self.step_s = step_s
        self.publisher = TelemetryPublisher.open(
            facts(self.config.num_blocks), clock=self.clock, socket=socket or False, recording=recording
        )
        self._scheduler = Scheduler(self.config)
        self._stats = StatsCollector(block_size=self.config.block_size)
        self._runner = SyntheticRunner()
        self._rng = random.Random(1)
        self._num_added = 0

    def fill(self) -> None:
        """Let requests in until all of them decode."""
        for _ in range(NUM_REQUESTS):
            self.add_request()
        while len(self._scheduler.running) < NUM_REQUESTS or self._scheduler.num_waiting:
            self.step()
        for _ in range(10):
            self.step()

    def add_request(self) -> None:
        """One request of some 1,000 tokens, an eighth of its prompt common to all."""
        self._num_added += 1
        own = [self._rng.randrange(100_000) for _ in range(self._rng.randrange(300, 1500))]
        request = Request(
            RequestId(f"request-{self._num_added:05}"),
            [*range(128), *own],
            SamplingParams(max_tokens=self._rng.randrange(200, 2000)),
        )
        self._scheduler.add_request(request)
        self.publisher.request_added(request)

    def step(self) -> float:
        """One step; returns the CPU microseconds of this thread that telemetry took."""
        output = self._scheduler.schedule()
        self._stats.scheduled(output, self._scheduler.running, self._scheduler.kv_cache)
        sampled = self._runner.execute(output)
        finished = self._scheduler.update(output, sampled)
        self._stats.sampled(output, sampled, finished)
        start_ns = time.thread_time_ns()
        self.publisher.publish(self._scheduler, output, finished, self._stats)
        telemetry_us = (time.thread_time_ns() - start_ns) / 1000
        for _ in finished:
            self.add_request()
        self.clock.advance(self.step_s)
        return telemetry_us


def publisher_figures() -> list[Figure]:
    """Telemetry in the engine, with nobody there and with a viewer and a recording."""
    return [
        Figure(name="publish a step of 256 requests, nobody attached", value=unwatched_us(), unit="us"),
        *watched_figures(),
    ]


def unwatched_us(steps: int = 200) -> float:
    """Median microseconds a step while nobody listens."""
    with TemporaryDirectory() as folder:
        engine = BusyEngine(socket=Path(folder) / "engine.sock")
        engine.fill()
        taken_us = [engine.step() for _ in range(steps)]
        engine.publisher.close("done")
    return statistics.median(taken_us)


def watched_figures(steps: int = 200) -> list[Figure]:
    """Median microseconds a step with both, and bytes a step and request of the recording."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.kvrec"
        engine = BusyEngine(socket=Path(folder) / "engine.sock", recording=path)
        with Attachment.open(Path(folder) / "engine.sock") as viewer:
            engine.fill()
            size_before = path.stat().st_size
            taken_us = []
            for _ in range(steps):
                taken_us.append(engine.step())
                viewer.receive(0.001)
            num_bytes = path.stat().st_size - size_before
        engine.publisher.close("done")
    return [
        Figure(
            name="publish a step of 256 requests, viewer and recording", value=statistics.median(taken_us), unit="us"
        ),
        Figure(name="recording, a step and request", value=num_bytes / steps / NUM_REQUESTS, unit="bytes"),
    ]


async def dashboard_figure(seconds: float = 4.0) -> Figure:
    """All panes at ten frames a second while a recording of a busy engine plays, decoding and folding included."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.kvrec"
        record(path, seconds=seconds + 2)
        app = KvtopApp(RecordingSource(Recording.open(path)))
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause(1.0)
            start_s, start_cpu_s = time.monotonic(), time.process_time()
            await asyncio.sleep(seconds)
            share = (time.process_time() - start_cpu_s) / (time.monotonic() - start_s)
    return Figure(
        name="dashboard at 10 Hz, 27,432 blocks, 256 requests, 50 steps/s", value=share * 100, unit="% of a core"
    )


def record(path: Path, *, seconds: float) -> None:
    """Record a busy engine that makes 50 steps a second."""
    engine = BusyEngine(recording=path)
    engine.fill()
    for _ in range(round(seconds / engine.step_s)):
        engine.step()
    engine.publisher.close("done")


if __name__ == "__main__":
    main()
