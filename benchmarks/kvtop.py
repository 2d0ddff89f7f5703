"""`python -m benchmarks.kvtop [--json]`: what a frame of the view costs, and what telemetry costs the engine.

CPU time of the process, medians. Frames are drawn by Textual's headless driver at 200x60, up to the escape codes that
a terminal would get; the terminal's own work comes on top. A frame of the map begins with the update that a source
hands over, so taking it in is part of it. The baseline is the same picture through a `Static` with a rich `Text`, the
usual way to draw in Textual. The first picture is timed in a real terminal (a pty), from the start of the command.
"""

import argparse
import asyncio
import os
import pty
import random
import select
import signal
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from fcntl import ioctl
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from termios import TIOCSWINSZ

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
from kvengine.telemetry.block_book import BlockChanges, BlockCodes, BlockColumns
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.recording import Recording
from kvengine.telemetry.schema import Counters, Hello, Totals
from kvengine.telemetry.state import StepUpdate, block_states
from kvtop.app import KvtopApp
from kvtop.map_cells import Look, looks_of
from kvtop.map_layout import MapLayout
from kvtop.palette import DARK, DARK_VARIABLES
from kvtop.sources.recording import RecordingSource, TogglePlay
from kvtop.view_model import ViewModel
from kvtop.widgets.pool_map import GLYPHS, PoolMap

SIZE = (200, 60)
FRAMES = 30
BIG_POOL = 4_000_000
BIG_FRAMES = 12
RUN_LENGTH = 8
"""Neighbours in a pool tend to be of one kind; so are about this many of the blocks that change together."""
NUM_REQUESTS = 256
CODES = np.array([0, 1, 16, 17, 33], dtype=np.uint32)
"""Free, cached, used, used and cached, shared."""
FIRST_PICTURE_WITHIN_S = 20.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=("map", "dashboard", "engine", "start"), help="a part of it")
    options = parser.parse_args()
    parts: dict[str, Callable[[], list[Figure]]] = {
        "map": all_map_figures,
        "dashboard": lambda: asyncio.run(dashboard_figures()),
        "engine": publisher_figures,
        "start": first_picture_figures,
    }
    figures = [figure for name, part in parts.items() if options.only in (None, name) for figure in part()]
    report("kvtop", figures, machine(("textual", "msgspec", "numpy")), as_json=options.json)


class MapOnly(App[None]):
    """The whole screen is the map."""

    CSS = "PoolMap { height: 1fr; }"

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
    """Every block one of five kinds, independent of its neighbours: the hardest picture to draw."""
    return rng.choice(CODES, num_blocks).astype(np.uint32)


def everything_new(num_blocks: int, rng: np.random.Generator) -> BlockChanges:
    """All blocks, as after a seek or an attachment."""
    columns = BlockColumns.blank(num_blocks)
    columns.codes[:] = random_codes(num_blocks, rng)
    return BlockChanges(block_ids=None, columns=columns)


def one_percent_new(num_blocks: int, rng: np.random.Generator) -> BlockChanges:
    """About one block in a hundred, in runs."""
    starts = rng.integers(num_blocks - RUN_LENGTH, size=max(num_blocks // 100 // RUN_LENGTH, 1))
    block_ids = np.unique((starts[:, None] + np.arange(RUN_LENGTH)).ravel())
    columns = BlockColumns.blank(len(block_ids))
    columns.codes[:] = np.repeat(rng.choice(CODES, len(block_ids) // RUN_LENGTH + 1), RUN_LENGTH)[: len(block_ids)]
    return BlockChanges(block_ids=block_ids, columns=columns)


def an_update(changes: BlockChanges, facts: Hello) -> StepUpdate:
    """A state in which only the map's blocks matter."""
    return StepUpdate(
        facts=facts,
        seq=1,
        step=1,
        time_s=0.1,
        totals=Totals(0, 0, facts.num_blocks - 1, 0, 0, 0),
        counters=Counters(*[0] * 12),
        requests=(),
        blocks=changes,
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


def all_map_figures() -> list[Figure]:
    """The map of a small, a large and a huge pool."""
    sizes = ((27_432, FRAMES), (262_144, FRAMES), (BIG_POOL, BIG_FRAMES))
    return [figure for num_blocks, frames in sizes for figure in asyncio.run(map_figures(num_blocks, frames))]


async def map_figures(num_blocks: int, frames: int) -> list[Figure]:
    """A frame of the map with every block new, and with 1 % of them."""
    rng = np.random.default_rng(1)
    about = facts(num_blocks)
    everything = [everything_new(num_blocks, rng) for _ in range(frames)]
    few = [one_percent_new(num_blocks, rng) for _ in range(frames)]
    app = MapOnly()
    async with app.run_test(size=SIZE):
        pool_map = app.query_one(PoolMap)

        def show(changes: BlockChanges) -> None:
            app.model.take_update(an_update(changes, about), now_s=0.0)
            pool_map.update_view()

        all_ms = await median_frame_ms(app, [partial(show, changes) for changes in everything])
        few_ms = await median_frame_ms(app, [partial(show, changes) for changes in few])
        check_what_is_drawn(app)
        grid = pool_map.grid
    assert grid is not None, "200x60 has room for a map"
    text_ms = await text_frame_ms([changes.columns.codes for changes in everything[:4]], grid)
    name = f"map of {num_blocks:,} blocks, {{}} changing"
    return [
        Figure(name=name.format("all"), value=all_ms, unit="ms", baseline=text_ms, baseline_name="Static with Text"),
        Figure(name=name.format("1 %"), value=few_ms, unit="ms", baseline=text_ms, baseline_name="Static with Text"),
    ]


def check_what_is_drawn(app: MapOnly) -> None:
    """Make sure that the frames that were timed have drawn the pool: a picture that is not read back proves nothing."""
    pool_map, pool = app.query_one(PoolMap), app.model.pool
    grid = pool_map.grid
    assert grid is not None and pool is not None, "there is a picture"  # noqa: PT018
    looks = looks_of(pool.states, grid.blocks_per_cell)
    signs = "".join(GLYPHS[Look(look)] for look in looks.tolist())
    drawn = "".join(
        pool_map.render_line(row).text[grid.id_width : grid.id_width + grid.columns] for row in range(grid.rows)
    )
    assert drawn[: len(signs)] == signs, "the map shows something else than the pool"


async def text_frame_ms(pictures: list[BlockCodes], grid: MapLayout) -> float:
    """The baseline: one `Text` with a span a run."""
    names = ("white", "purple", "grey50", "cyan", "blue", "blue", "blue", "yellow", "yellow", "yellow")
    styles = [Style.parse(name) for name in names]
    app = TextOnly()
    async with app.run_test(size=SIZE):
        static = app.query_one(Static)

        def show(codes: BlockCodes) -> None:
            text = Text()
            cells = np.zeros(grid.rows * grid.columns, dtype=np.uint16)
            looks = looks_of(block_states(codes), grid.blocks_per_cell)
            cells[: len(looks)] = looks
            for row in cells.reshape(grid.rows, grid.columns):
                borders = [0, *(np.flatnonzero(row[1:] != row[:-1]) + 1).tolist(), len(row)]
                for start, end in pairwise(borders):
                    look = int(row[start])
                    text.append(GLYPHS[Look(look)] * (end - start), styles[look])
                text.append("\n")
            static.update(text)

        return await median_frame_ms(app, [partial(show, codes) for codes in pictures])


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
        self._stats = StatsCollector()
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


async def dashboard_figures(seconds: float = 4.0) -> list[Figure]:
    """All panes while a recording of a busy engine plays, decoding and folding included; then standing still."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.kvrec"
        record(path, seconds=2 * seconds + 4)
        source = RecordingSource(Recording.open(path))
        app = KvtopApp(source)
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause(1.0)
            at_10_hz = await share_of_a_core(seconds)
            source.frame_s = 0.25
            await pilot.pause(0.5)
            at_4_hz = await share_of_a_core(seconds)
            source.do(TogglePlay())
            await pilot.pause(1.0)
            idle = await share_of_a_core(seconds)
            rss = resident_mib()
    what = "27,432 blocks, 256 requests, 50 steps/s"
    return [
        Figure(name=f"dashboard at 10 Hz, {what}", value=at_10_hz, unit="% of a core"),
        Figure(name=f"dashboard at 4 Hz, {what}", value=at_4_hz, unit="% of a core"),
        Figure(name="dashboard standing still", value=idle, unit="% of a core"),
        Figure(name=f"memory of viewer and benchmark, {what}", value=rss, unit="MiB"),
    ]


async def share_of_a_core(seconds: float) -> float:
    """Percent of one core that this process takes for a while."""
    start_s, start_cpu_s = time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    return (time.process_time() - start_cpu_s) / (time.monotonic() - start_s) * 100


def resident_mib() -> float:
    """Memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def record(path: Path, *, seconds: float) -> None:
    """Record a busy engine that makes 50 steps a second."""
    engine = BusyEngine(recording=path)
    engine.fill()
    for _ in range(round(seconds / engine.step_s)):
        engine.step()
    engine.publisher.close("done")


def first_picture_figures(repeats: int = 3) -> list[Figure]:
    """From the start of the command to the first map in a terminal, the lists behind it; and its memory."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.kvrec"
        record(path, seconds=1)
        runs = [first_picture(path) for _ in range(repeats)]
    wall_s, cpu_s, rss_mib = (statistics.median(values) for values in zip(*runs, strict=True))
    imports_s = statistics.median(textual_import_s() for _ in range(repeats))
    return [
        Figure(name="first picture", value=wall_s, unit="s", baseline=imports_s, baseline_name="import textual alone"),
        Figure(name="first picture, CPU of the command", value=cpu_s, unit="s"),
        Figure(name="memory of the command, 27,432 blocks, 256 requests", value=rss_mib, unit="MiB"),
    ]


def first_picture(path: Path) -> tuple[float, float, float]:
    """Seconds until the map has been drawn, CPU seconds of the process by then, and its memory in MiB."""
    start_s = time.monotonic()
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        os.execvpe(sys.executable, [sys.executable, "-m", "kvtop", str(path)], environment)
    ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
    try:
        drawn = b""
        while b"1 cell" not in drawn:
            assert time.monotonic() - start_s < FIRST_PICTURE_WITHIN_S, "no picture"
            if select.select([terminal], [], [], 0.01)[0]:
                drawn += os.read(terminal, 2**16)
        wall_s = time.monotonic() - start_s
        ticks = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
        rss_mib = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    return wall_s, ticks / os.sysconf("SC_CLK_TCK"), rss_mib


def textual_import_s() -> float:
    """Seconds that Python takes to start and import Textual's app."""
    start_s = time.monotonic()
    subprocess.run([sys.executable, "-c", "import textual.app"], check=True)
    return time.monotonic() - start_s


if __name__ == "__main__":
    main()
