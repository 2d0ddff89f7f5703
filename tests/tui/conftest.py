"""Views of real engines and recordings, and ways to look at what they draw."""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from rich.style import Style
from textual.pilot import Pilot

from kvengine.observer import TelemetryPublisher
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.recording import Recording
from kvtop.app import KvtopApp
from kvtop.sources.live import LiveSource
from kvtop.sources.recording import RecordingSource, StepBy
from kvtop.widgets.line_pane import LinePane
from kvtop.widgets.pool_map import PoolMap
from tests.watched_engine import WatchedEngine, record_a_run

PATIENCE_S = 20.0


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.kvrec"
    record_a_run(path)
    return path


@pytest.fixture
def listening_engine(tmp_path: Path) -> Iterator[WatchedEngine]:
    """An engine with a socket at `tmp_path / "engine.sock"`, for the test to step."""
    watched = WatchedEngine(
        publisher=lambda facts, clock: TelemetryPublisher.open(facts, clock=clock, socket=tmp_path / "engine.sock")
    )
    yield watched
    watched.engine.close("done")


@pytest.fixture
def recording_view(run_file: Path):
    """Opens the recorded run at a size, standing still at its beginning."""

    @asynccontextmanager
    async def view(size: tuple[int, int] = (160, 48)) -> AsyncIterator[tuple[KvtopApp, Pilot]]:
        source = RecordingSource(Recording.open(run_file))
        app = KvtopApp(source)
        async with app.run_test(size=size) as pilot:
            source.do(StepBy(-1000))
            await until(pilot, lambda: is_at(app, 0) and not app.watching.model.playhead.is_playing)
            yield app, pilot

    return view


@pytest.fixture
def live_view(listening_engine: WatchedEngine, tmp_path: Path):
    """Attaches to the listening engine."""

    @asynccontextmanager
    async def view(size: tuple[int, int] = (160, 48)) -> AsyncIterator[tuple[KvtopApp, Pilot]]:
        app = KvtopApp(LiveSource(Attachment.open(tmp_path / "engine.sock")))
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.watching.model.facts is not None)
            yield app, pilot

    return view


async def until(pilot: Pilot, condition: Callable[[], bool]) -> None:
    """Let the app run until something is so."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s, f"did not come true within {PATIENCE_S} s"
        await pilot.pause(0.02)
    await pilot.pause()


async def shows(pilot: Pilot, pane: LinePane, *texts: str) -> None:
    """Let the app run until a pane draws all these texts: lists follow the map a little later."""
    try:
        await until(pilot, lambda: all(text in text_of(pane) for text in texts))
    except AssertionError:
        missing = [text for text in texts if text not in text_of(pane)]
        raise AssertionError(f"{pane.id} never showed {missing}; now it shows:\n{text_of(pane)}") from None


def is_at(app: KvtopApp, step: int) -> bool:
    """Whether the view shows the state after so many steps."""
    return app.watching.model.picture is not None and app.watching.model.picture.step == step


def text_of(pane: LinePane) -> str:
    """What a pane draws, without its border."""
    return "\n".join(pane.render_line(y).text.rstrip() for y in range(pane.size.height))


def blocks_drawn_as(pool_map: PoolMap, style: Style) -> set[int]:
    """The blocks (the first of a cell) that the map draws in a style, read from its strips."""
    grid = pool_map.grid
    assert grid is not None, "there is no map yet"
    blocks = set()
    for y in range(pool_map.size.height):
        x = 0
        for segment in pool_map.render_line(y):
            if segment.style == style:
                blocks |= {pool_map.block_at(x + offset, y) for offset, sign in enumerate(segment.text) if sign != " "}
            x += len(segment.text)
    return {block for block in blocks if block is not None}
