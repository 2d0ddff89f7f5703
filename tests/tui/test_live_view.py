"""A running engine in the view: fresh, paused, stale, gone."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import structs

from kvengine.observer import TelemetryPublisher
from kvengine.telemetry.engine_list import EngineList
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.recording import Recording
from kvtop.app import KvtopApp
from kvtop.following import FollowEngines
from kvtop.screens.picker import EnginePicker
from kvtop.sources.live import LiveSource
from kvtop.view_model import Phase
from tests.tui.conftest import is_at, shows, text_of, until
from tests.watched_engine import WatchedEngine

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


@contextmanager
def an_engine_in(folder: Path, name: str, model: str = "tiny") -> Iterator[WatchedEngine]:
    """An engine whose socket lies where others are looked for."""
    folder.mkdir(mode=0o700, exist_ok=True)
    watched = WatchedEngine(
        publisher=lambda facts, clock: TelemetryPublisher.open(
            structs.replace(facts, model=model, started_unix_s=time.time()), clock=clock, socket=folder / name
        )
    )
    yield watched
    watched.engine.close("done")


async def test_with_several_engines_one_is_chosen_from_a_list(tmp_path):
    with an_engine_in(tmp_path / "run", "a.sock", "first"), an_engine_in(tmp_path / "run", "b.sock", "second") as other:
        app = KvtopApp(None, engines=EngineList(tmp_path / "run"))
        async with app.run_test(size=(100, 30)) as pilot:
            assert isinstance(app.screen, EnginePicker)
            await pilot.press("down", "enter")
            other.step()
            await until(pilot, lambda: app.watching.model.facts is not None)
            assert app.watching.model.facts.model == "second"


async def test_another_engine_is_chosen_while_one_is_watched(tmp_path):
    with an_engine_in(tmp_path / "run", "a.sock", "first") as first:
        engines = EngineList(tmp_path / "run")
        source = LiveSource(Attachment.open(tmp_path / "run" / "a.sock"), following=FollowEngines(engines))
        app = KvtopApp(source, engines=engines)
        async with app.run_test(size=(160, 40)) as pilot:
            first.step()
            await until(pilot, lambda: is_at(app, 1))
            with an_engine_in(tmp_path / "run", "b.sock", "second"):
                await shows(pilot, app.watching.state_line, "2 engines run")
                await pilot.press("e", "down", "enter")
                await until(
                    pilot,
                    lambda: app.watching.model.facts is not None and app.watching.model.facts.model == "second",
                )


async def test_a_chosen_engine_that_has_gone_is_named_and_the_list_stays(tmp_path):
    folder = tmp_path / "run"
    with an_engine_in(folder, "a.sock"), an_engine_in(folder, "b.sock"):
        app = KvtopApp(None, engines=EngineList(folder))
        async with app.run_test(size=(100, 30)) as pilot:
            (folder / "a.sock").unlink()
            await pilot.press("enter")
            await until(pilot, lambda: any("no such socket" in note.message for note in app._notifications))
            assert isinstance(app.screen, EnginePicker)
            assert app.is_running


async def test_without_an_engine_the_view_waits_for_one_and_says_so(tmp_path):
    folder = tmp_path / "run"
    engines = EngineList(folder)
    app = KvtopApp(LiveSource(None, following=FollowEngines(engines)), engines=engines)
    async with app.run_test(size=(160, 40)) as pilot:
        await shows(pilot, app.watching.state_line, "NOT ATTACHED", "no engine runs on this machine; kvtop waits")
        await shows(pilot, app.watching.map, "waiting for an engine: `kvplan run PROFILE` starts one")
        with an_engine_in(folder, "a.sock") as engine:
            await until(pilot, lambda: app.watching.model.facts is not None)
            engine.step()
            await until(pilot, lambda: is_at(app, 1))
            await shows(pilot, app.watching.state_line, "● LIVE")


async def test_the_view_goes_on_to_the_next_point_of_a_sweep_and_says_what_it_follows_on(tmp_path):
    folder = tmp_path / "run"
    engines = EngineList(folder)
    with an_engine_in(folder, "1.sock", "point-1") as first:
        source = LiveSource(Attachment.open(folder / "1.sock"), following=FollowEngines(engines))
        app = KvtopApp(source, engines=engines)
        async with app.run_test(size=(160, 40)) as pilot:
            first.add("a", max_tokens=9)
            first.step(3)
            await until(pilot, lambda: is_at(app, 3))
            first.engine.close("done")
            await shows(pilot, app.watching.state_line, "■ ENDED", "done; the next engine is waited for")
            assert is_at(app, 3), "what ended stays until something follows"
            with an_engine_in(folder, "1.sock", "point-2") as second:
                await until(pilot, lambda: app.watching.model.facts.model == "point-2")
                second.step(1)
                await until(pilot, lambda: is_at(app, 1))
                await shows(pilot, app.watching.state_line, "● LIVE", "point-2")
                await shows(pilot, app.watching.events, "follows on point-1 (done)")


async def test_a_view_that_stands_still_stays_with_the_engine_that_ended(tmp_path):
    folder = tmp_path / "run"
    engines = EngineList(folder)
    with an_engine_in(folder, "1.sock", "point-1") as first:
        source = LiveSource(Attachment.open(folder / "1.sock"), following=FollowEngines(engines))
        app = KvtopApp(source, engines=engines)
        async with app.run_test(size=(160, 40)) as pilot:
            first.step(1)
            await until(pilot, lambda: is_at(app, 1))
            await pilot.press("space")
            first.engine.close("done")
            with an_engine_in(folder, "1.sock", "point-2") as second:
                await pilot.pause(0.8)
                assert app.watching.model.facts.model == "point-1"
                await pilot.press("space")
                await until(pilot, lambda: app.watching.model.facts.model == "point-2")
                second.step(1)
                await until(pilot, lambda: is_at(app, 1))


async def test_an_older_engine_is_not_taken_for_the_next(tmp_path):
    folder = tmp_path / "run"
    engines = EngineList(folder)
    with an_engine_in(folder, "old.sock", "older"), an_engine_in(folder, "new.sock", "newer") as newer:
        source = LiveSource(Attachment.open(folder / "new.sock"), following=FollowEngines(engines))
        app = KvtopApp(source, engines=engines)
        async with app.run_test(size=(160, 40)) as pilot:
            newer.step(1)
            await until(pilot, lambda: is_at(app, 1))
            newer.engine.close("done")
            await until(pilot, lambda: app.watching.model.status.phase is Phase.ENDED)
            await pilot.pause(0.8)
            assert app.watching.model.facts.model == "newer"


async def test_a_key_records_what_is_watched_from_there_on(live_view, listening_engine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with live_view() as (app, pilot):
        listening_engine.add("a", max_tokens=9)
        listening_engine.step(2)
        await until(pilot, lambda: is_at(app, 2))
        await pilot.press("r")
        await shows(pilot, app.watching.state_line, "◉ REC kvtop-tiny-")
        listening_engine.step(3)
        await until(pilot, lambda: is_at(app, 5))
        await pilot.press("r")
        await until(pilot, lambda: app.watching.model.recorded_into is None)
    (path,) = tmp_path.glob("kvtop-tiny-*.kvrec")
    with Recording.open(path) as recording:
        assert [sample.step for sample in recording.samples] == [2, 3, 4, 5]
        assert recording.end.reason == "recording stopped"
        (request,) = recording.read(3).requests
        assert (request.request_id, request.num_output_tokens) == ("a", 5)


async def test_the_block_that_is_looked_at_shows_tokens_and_hash(live_view, listening_engine):
    async with live_view() as (app, pilot):
        listening_engine.add("a", max_tokens=9)
        listening_engine.step()
        await until(pilot, lambda: is_at(app, 1))
        await pilot.press("1", "down", "right")
        await until(pilot, lambda: app.watching.model.cursor == 1)
        listening_engine.step()
        # No tokenizer here, so the ids: a prompt of letters is their code points.
        await shows(pilot, app.watching.block, "token ids", "hash", "begins a prefix")


async def test_an_engine_that_swaps_shows_its_host_blocks(tmp_path):
    # Four usable blocks of 4: at their ninth token both ask for a third block, and the later one goes to the host.
    watched = WatchedEngine(
        num_blocks=5,
        num_host_blocks=6,
        publisher=lambda facts, clock: TelemetryPublisher.open(facts, clock=clock, socket=tmp_path / "engine.sock"),
    )
    app = KvtopApp(LiveSource(Attachment.open(tmp_path / "engine.sock")))
    async with app.run_test(size=(220, 48)) as pilot:
        await until(pilot, lambda: app.watching.model.facts is not None)
        watched.add("a", max_tokens=9)
        watched.add("b", prompt="uvwxyz", max_tokens=9)
        watched.step()
        await shows(pilot, app.watching.state_line, "⇄ host 0 of 6", "swapped 0 out 0 in tok")
        watched.step(3)
        # b has computed 8 tokens in two blocks.
        await shows(pilot, app.watching.state_line, "⇄ host 2 of 6", "swapped 8 out 0 in tok")
        while watched.engine.has_unfinished:
            watched.step()
        await shows(pilot, app.watching.state_line, "⇄ host 0 of 6", "swapped 8 out 8 in tok")
    watched.engine.close("done")
