"""Two sources side by side: recordings that move together, and figures with their differences."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from kvengine.observer import TelemetryPublisher
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.recording import Recording
from kvtop.app import KvtopApp
from kvtop.screens.compare import CompareScreen, Sync
from kvtop.sources.live import LiveSource
from kvtop.sources.recording import RecordingSource
from tests.tui.conftest import shows, until
from tests.watched_engine import STEP_S, WatchedEngine

SIZES = [(80, 24), (120, 40), (200, 60)]


def record(path: Path, *, num_blocks: int, max_tokens: int, step_s: float = STEP_S) -> None:
    """Two requests of six prompt tokens, to their ends."""
    watched = WatchedEngine(
        num_blocks=num_blocks,
        publisher=lambda facts, clock: TelemetryPublisher.open(facts, clock=clock, socket=False, recording=path),
    )
    watched.add("a", "b", max_tokens=max_tokens)
    while watched.engine.has_unfinished:
        watched.engine.step()
        watched.clock.advance(step_s)
    watched.engine.close("done")


@asynccontextmanager
async def comparison(tmp_path: Path, size: tuple[int, int] = (160, 48)) -> AsyncIterator[tuple[CompareScreen, Pilot]]:
    """A run of 8 blocks beside one of 16 that lasts longer and whose steps take twice the time."""
    record(tmp_path / "left.kvrec", num_blocks=9, max_tokens=5)
    record(tmp_path / "right.kvrec", num_blocks=17, max_tokens=9, step_s=2 * STEP_S)
    left, right = (RecordingSource(Recording.open(tmp_path / f"{name}.kvrec"), start=0) for name in ("left", "right"))
    app = KvtopApp(left, other=right)
    async with app.run_test(size=size) as pilot:
        assert isinstance(app.screen, CompareScreen)
        await until(pilot, lambda: steps(app.screen) == (0, 0))
        yield app.screen, pilot


def steps(screen: CompareScreen) -> tuple[int | None, int | None]:
    return screen.left.model.step, screen.right.model.step


@pytest.mark.parametrize("size", SIZES)
async def test_two_recordings_are_stepped_together(tmp_path, size):
    async with comparison(tmp_path, size) as (screen, pilot):
        await pilot.press("full_stop", "full_stop", "full_stop")
        await until(pilot, lambda: steps(screen) == (3, 3))
        await pilot.press("comma")
        await until(pilot, lambda: steps(screen) == (2, 2))
        for panel in (screen.left, screen.right):
            for pane in (panel.state_line, panel.map, panel.trend, panel.playback, screen.differences):
                if pane.is_seen:
                    widths = {sum(s.cell_length for s in pane.render_line(y)) for y in range(pane.size.height)}
                    assert widths == {pane.size.width}, f"{pane.id} at {size}"


async def test_the_shorter_one_waits_at_its_end(tmp_path):
    async with comparison(tmp_path) as (screen, pilot):
        await pilot.press("end")
        # 5 output tokens take 5 steps, 9 take 9.
        await until(pilot, lambda: steps(screen) == (5, 9))
        await pilot.press("home")
        await until(pilot, lambda: steps(screen) == (0, 0))


async def test_together_by_time_is_at_the_same_time_of_both_streams(tmp_path):
    async with comparison(tmp_path) as (screen, pilot):
        await pilot.press("y")
        assert screen.sync is Sync.TIME
        await pilot.press("full_stop", "full_stop", "full_stop")
        # The right one reaches further in time, so it leads: its step 3 is at 2 s, where the left is at step 5.
        await until(pilot, lambda: steps(screen) == (5, 3))


async def test_each_for_itself_takes_the_same_keys_from_where_it_stands(tmp_path):
    async with comparison(tmp_path) as (screen, pilot):
        await pilot.press("y")
        # Together by time both are at 0 s, where the left one has taken its first step already.
        await until(pilot, lambda: steps(screen) == (1, 0))
        await pilot.press("y")
        assert screen.sync is Sync.NONE
        await pilot.press("full_stop")
        await until(pilot, lambda: steps(screen) == (2, 1))


async def test_a_place_that_is_typed_is_gone_to_by_both(tmp_path):
    async with comparison(tmp_path) as (screen, pilot):
        await pilot.press("t")
        await pilot.press(*"#4", "enter")
        await until(pilot, lambda: steps(screen) == (4, 4))


async def test_each_side_says_which_recording_it_is_where_the_model_is_the_same(tmp_path):
    async with comparison(tmp_path, (120, 40)) as (screen, pilot):
        await shows(pilot, screen.left.state_line, "left.kvrec")
        await shows(pilot, screen.right.state_line, "right.kvrec")


async def test_figures_stand_side_by_side_with_their_difference(tmp_path):
    async with comparison(tmp_path) as (screen, pilot):
        await pilot.press("full_stop")
        await until(pilot, lambda: steps(screen) == (1, 1))
        # a and b share their one full block of four: 3 of 8 and of 16 blocks are held, 5 and 13 free.
        await shows(pilot, screen.differences, "blocks in use", "37.5%     18.8%   −18.8 points")
        await shows(pilot, screen.differences, "· free", "5        13   +8  ×2.60")
        await shows(pilot, screen.differences, "◆ shared", "1         1   ±0")


async def test_a_live_engine_is_compared_with_a_recording(tmp_path):
    record(tmp_path / "left.kvrec", num_blocks=9, max_tokens=5)
    watched = WatchedEngine(
        publisher=lambda facts, clock: TelemetryPublisher.open(facts, clock=clock, socket=tmp_path / "engine.sock")
    )
    left = RecordingSource(Recording.open(tmp_path / "left.kvrec"), start=1)
    app = KvtopApp(left, other=LiveSource(Attachment.open(tmp_path / "engine.sock")))
    async with app.run_test(size=(160, 48)) as pilot:
        screen = app.screen
        watched.add("a", max_tokens=9)
        watched.step(2)
        await until(pilot, lambda: steps(screen) == (1, 2))
        await shows(pilot, screen.right.state_line, "● LIVE")
        await shows(pilot, screen.differences, "● running", "2         1   −1  ×0.50")
        assert screen.sync is Sync.NONE
        watched.engine.close("done")
