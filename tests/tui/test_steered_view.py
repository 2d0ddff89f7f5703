"""Guided scenes in the view: the engine process, its captions, and the keys that steer it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from textual.pilot import Pilot

from kvengine.telemetry.commands import SetSpeed
from kvtop.app import KvtopApp
from kvtop.demo_process import DemoProcess
from kvtop.sources.live import LiveSource
from tests.tui.conftest import shows, text_of, until


@asynccontextmanager
async def a_demo(size: tuple[int, int] = (120, 40)) -> AsyncIterator[tuple[KvtopApp, Pilot]]:
    """The scenes, stopped after their first step."""
    with DemoProcess() as process:
        source = LiveSource(process.attach(), following=process)
        app = KvtopApp(source)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.watching.model.picture is not None)
            await pilot.press("space")
            await until(pilot, lambda: app.watching.model.control is not None and app.watching.model.control.is_paused)
            yield app, pilot


def step_of(app: KvtopApp) -> int:
    picture = app.watching.model.picture
    return picture.step if picture is not None else 0


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_scene_says_what_just_happened_and_is_stepped_by_hand(size):
    async with a_demo(size) as (app, pilot):
        await shows(pilot, app.watching.playback, "engine stopped", "1 of 5")
        while "#2 is admitted" not in app.watching.model.note:
            step = step_of(app)
            assert step < 10
            await pilot.press("full_stop")
            await until(pilot, lambda step=step: step_of(app) > step)
        await shows(pilot, app.watching.caption, "» #2 is admitted: 12 of its tokens")
        assert not app.watching.has_class("-stale"), "an engine that was stopped by hand is no old picture"


async def test_the_pool_shrinks_by_a_key_and_says_what_is_still_held():
    async with a_demo() as (app, pilot):
        await pilot.press("left_curly_bracket", "left_curly_bracket")
        await shows(pilot, app.watching.playback, "pool 26 blocks")
        await pilot.press("full_stop")
        await until(pilot, lambda: app.watching.model.picture.num_usable == 26)
        await pilot.press("right_curly_bracket", "right_curly_bracket")
        await shows(pilot, app.watching.playback, "pool 28 blocks")


async def test_a_selected_request_is_aborted_by_a_key():
    async with a_demo() as (app, pilot):
        await pilot.press("X")
        await pilot.press("2", "down")
        await until(pilot, lambda: app.watching.model.selected_id == "#0")
        await pilot.press("X", "full_stop")
        await until(pilot, lambda: app.watching.model.picture.counters.aborted == 1)


async def test_the_next_scene_begins_with_an_empty_view():
    async with a_demo() as (app, pilot):
        assert app.watching.model.facts.num_blocks == 29
        await pilot.press("d")
        await until(pilot, lambda: "2 of 5" in app.watching.model.facts.label and step_of(app) >= 1)
        assert all(event.request_id in ("", "main") for event in app.watching.model.events)
        for number in (3, 4):
            await pilot.press("d")
            title = f"{number} of 5"
            await until(pilot, lambda title=title: title in app.watching.model.facts.label and step_of(app) >= 1)
        # Eight blocks and the null block: another pool than before.
        assert len(app.watching.model.pool) == 9
        assert app.watching.model.facts.groups[0].kind == "sliding_window"


async def test_a_speed_is_chosen_by_keys():
    async with a_demo() as (app, pilot):
        assert app.watching.source.do(SetSpeed(1.0))
        await pilot.press("right_square_bracket")
        await shows(pilot, app.watching.playback, "2 steps/s")
        await pilot.press("left_square_bracket", "left_square_bracket")
        await until(pilot, lambda: app.watching.model.control.steps_per_s < 2)


async def test_keys_that_an_engine_does_not_obey_are_not_offered(live_view, listening_engine):
    async with live_view() as (app, pilot):
        listening_engine.add("a", max_tokens=9)
        listening_engine.step()
        await until(pilot, lambda: step_of(app) == 1)
        shown = {binding.description for _, binding, enabled, _ in app.screen.active_bindings.values() if enabled}
        assert not shown & {"Shrink pool", "Grow pool", "Abort", "Next scene", "Step"}
        assert "engine stopped" not in text_of(app.watching.playback)


async def test_a_selected_request_is_preempted_by_a_key():
    async with a_demo() as (app, pilot):
        await pilot.press("P")
        await pilot.press("2", "down")
        await until(pilot, lambda: app.watching.model.selected_id == "#0")
        await pilot.press("P", "full_stop")
        await until(pilot, lambda: app.watching.model.picture.counters.preemptions == 1)
        await until(pilot, lambda: any(event.kind == "preempt" for event in app.watching.model.events))


async def test_blocks_that_a_transfer_reads_are_marked_and_told():
    async with a_demo() as (app, pilot):
        for number in (2, 3, 4, 5):
            await pilot.press("d")
            title = f"{number} of 5"
            await until(pilot, lambda title=title: title in app.watching.model.facts.label and step_of(app) >= 1)
        while "a transfer begins" not in app.watching.model.note:
            step = step_of(app)
            assert step < 10
            await pilot.press("full_stop")
            await until(pilot, lambda step=step: step_of(app) > step)
        # 13 prompt tokens and three of the output fill four blocks of four.
        await shows(pilot, app.watching.state_line, "▣ pinned 4")
        assert text_of(app.watching.map).count("▣") == 4
        await pilot.press("1", "down", "right")
        await shows(pilot, app.watching.block, "▣ pinned by a transfer")
