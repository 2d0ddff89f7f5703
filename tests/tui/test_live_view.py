"""A running engine in the view: fresh, paused, stale, gone."""

import pytest

from kvengine.telemetry.reader import RunningEngine
from kvtop.app import KvtopApp
from kvtop.screens.picker import EnginePicker
from kvtop.view_model import Phase
from tests.tui.conftest import is_at, shows, text_of, until

SIZES = [(80, 24), (160, 48)]


@pytest.mark.parametrize("size", SIZES)
async def test_before_the_first_step_the_view_says_that_it_waits_and_shows_no_figures(live_view, size):
    async with live_view(size) as (app, pilot):
        await until(
            pilot, lambda: app.watching.model.status.phase is Phase.WAITING and app.watching.model.facts is not None
        )
        source, figures = text_of(app.watching.state_line).splitlines()
        assert "ATTACHED" in source
        assert "8 blocks × 4 tokens" in source
        assert "nothing known of the pool yet" in figures
        await shows(pilot, app.watching.map, "waiting for the engine's next step")
        drawn = "\n".join([figures, *(text_of(pane) for pane in app.watching.panes)])
        assert not any(character in drawn for character in "0123456789%"), "nothing is known, so no figure is drawn"


@pytest.mark.parametrize("size", SIZES)
async def test_each_step_of_the_engine_is_shown(live_view, listening_engine, size):
    async with live_view(size) as (app, pilot):
        listening_engine.add("a", "b", max_tokens=9)
        listening_engine.step()
        await until(pilot, lambda: is_at(app, 1))
        listening_engine.step(3)
        await until(pilot, lambda: is_at(app, 4) and app.watching.requests.num_rows == 2)
        await shows(pilot, app.watching.state_line, "● LIVE", "step 4  age")
        # 10 tokens known and 9 computed, in blocks of 4: 3 blocks each, the first of them shared: 5 of 8.
        await shows(pilot, app.watching.state_line, "in use 62.5% 5")
        await shows(pilot, app.watching.requests, "a")


async def test_a_paused_view_stands_still_and_catches_up(live_view, listening_engine):
    async with live_view() as (app, pilot):
        listening_engine.add("a", max_tokens=20)
        listening_engine.step()
        await until(pilot, lambda: is_at(app, 1))
        await pilot.press("space")
        listening_engine.add("b", max_tokens=3)
        listening_engine.step(5)
        await until(pilot, lambda: "b" in [event.request_id for event in app.watching.model.events])
        assert is_at(app, 1)
        await shows(pilot, app.watching.state_line, "‖ PAUSED")
        await shows(pilot, app.watching.events, "admit   a")
        assert "admit   b" not in text_of(app.watching.events)
        await pilot.press("space")
        await until(pilot, lambda: is_at(app, 6))
        await shows(pilot, app.watching.events, "admit   b")


async def test_an_engine_that_closes_is_shown_as_ended_with_its_reason(live_view, listening_engine):
    async with live_view() as (app, pilot):
        listening_engine.add("a", max_tokens=9)
        listening_engine.step(2)
        await until(pilot, lambda: is_at(app, 2))
        listening_engine.engine.close("interrupted")
        await until(pilot, lambda: app.watching.model.status.phase is Phase.ENDED)
        await shows(pilot, app.watching.state_line, "■ ENDED FULL  interrupted")
        await shows(pilot, app.watching.requests, "a")


async def test_an_engine_that_dies_is_shown_as_disconnected_with_its_last_state_dimmed(live_view, listening_engine):
    async with live_view() as (app, pilot):
        listening_engine.add("a", max_tokens=9)
        listening_engine.step(2)
        await until(pilot, lambda: is_at(app, 2))
        map_before = text_of(app.watching.map)
        # What a kill does to the socket: it closes, and no end frame was sent.
        for viewer in listening_engine.publisher._sinks[0]._viewers:
            viewer.close()
        await until(pilot, lambda: app.watching.model.status.phase is Phase.GONE and app.screen.has_class("-stale"))
        await shows(pilot, app.watching.state_line, "× DISCONNECTED")
        await shows(pilot, app.watching.state_line, "went away without a goodbye")
        assert text_of(app.watching.map) == map_before
        assert app.watching.map.opacity < 1
        assert app.is_running


async def test_a_picture_that_has_not_changed_for_a_while_is_shown_as_old(live_view, listening_engine, monkeypatch):
    monkeypatch.setattr("kvtop.view_model.STALE_AFTER_S", 0.05)
    async with live_view() as (app, pilot):
        listening_engine.add("a", max_tokens=9)
        listening_engine.step()
        await until(pilot, lambda: app.screen.has_class("-stale"))
        assert app.watching.model.status.phase is Phase.LIVE


async def test_keys_that_move_through_time_are_for_recordings(live_view):
    async with live_view() as (app, _pilot):
        shown = {binding.description for _, binding, enabled, _ in app.screen.active_bindings.values() if enabled}
        assert "Pause" in shown
        assert not shown & {"Step", "Back", "Next preemption"}


async def test_with_several_engines_one_is_chosen_from_a_list(listening_engine, tmp_path):
    (path,) = tmp_path.glob("*.sock")
    engines = [
        RunningEngine(path=tmp_path / "other.sock", facts=None),
        RunningEngine(path=path, facts=listening_engine.facts),
    ]
    app = KvtopApp(None, engines=engines)
    async with app.run_test(size=(100, 30)) as pilot:
        assert isinstance(app.screen, EnginePicker)
        await pilot.press("down", "enter")
        listening_engine.step()
        await until(pilot, lambda: is_at(app, 1))


async def test_a_chosen_engine_that_has_gone_ends_the_view_with_the_reason(tmp_path):
    app = KvtopApp(None, engines=[RunningEngine(path=tmp_path / "gone.sock", facts=None)])
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("enter")
        await pilot.pause()
    assert app.failure is not None
    assert "no such socket" in app.failure.message
