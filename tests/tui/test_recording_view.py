"""A recording in the view: moving through it, selecting, sorting."""

import pytest
from textual.geometry import Region

from kvengine.telemetry.schema import Status
from kvtop.request_figures import SortKey
from kvtop.screens.help import HelpScreen
from kvtop.sources.recording import StepBy
from tests.tui.conftest import blocks_drawn_as, is_at, shows, text_of, until

SIZES = [(80, 24), (160, 48)]


@pytest.mark.parametrize("size", SIZES)
async def test_step_keys_move_through_the_recording_one_step_at_a_time(recording_view, size):
    async with recording_view(size) as (app, pilot):
        await pilot.press("full_stop")
        await until(pilot, lambda: is_at(app, 1))
        await pilot.press("full_stop", "full_stop")
        await until(pilot, lambda: is_at(app, 3))
        await pilot.press("comma")
        await until(pilot, lambda: is_at(app, 2))
        await shows(pilot, app.watching.state_line, "step 2")


async def test_space_plays_and_stops(recording_view):
    async with recording_view() as (app, pilot):
        await pilot.press("right_square_bracket", "right_square_bracket", "space")
        await until(pilot, lambda: app.watching.model.playhead.is_playing)
        assert app.watching.model.playhead.speed == 4
        await until(pilot, lambda: app.watching.model.playhead.position >= 2)
        await pilot.press("space")
        await until(pilot, lambda: not app.watching.model.playhead.is_playing)
        await shows(pilot, app.watching.playback, "‖ ×4")


async def test_home_end_and_the_slider_go_to_a_place(recording_view):
    async with recording_view() as (app, pilot):
        last = app.watching.model.playhead.num_positions - 1
        await pilot.press("end")
        await until(pilot, lambda: is_at(app, last))
        assert app.watching.model.picture.requests == ()
        await shows(pilot, app.watching.requests, "no request is waiting or running")
        await pilot.press("home")
        await until(pilot, lambda: is_at(app, 0))
        first, columns = app.watching.playback._slider
        await pilot.click("#playback", offset=(first + columns - 1, 0))
        await until(pilot, lambda: is_at(app, last))


async def test_n_goes_to_the_next_preemption(recording_view):
    async with recording_view() as (app, pilot):
        await pilot.press("n")
        await until(pilot, lambda: app.watching.model.picture.counters.preemptions == 1)
        assert any(request.status is Status.PREEMPTED for request in app.watching.model.picture.requests)
        await shows(pilot, app.watching.requests, "▲ preempted")
        await shows(pilot, app.watching.events, "▲ preempt")
        await shows(pilot, app.watching.events, "gives up")


@pytest.mark.parametrize("size", SIZES)
async def test_selecting_a_request_shows_its_block_table_and_lights_its_blocks(recording_view, size):
    async with recording_view(size) as (app, pilot):
        await pilot.press("full_stop")
        await until(pilot, lambda: app.watching.requests.num_rows == 2)
        await pilot.press("down", "down")
        await until(pilot, lambda: app.watching.model.selected_id == "b")
        # Both prompts begin with the same block; each has a second one of its own.
        assert app.watching.model.selected.block_table == [1, 3]
        assert blocks_drawn_as(app.watching.map, app.watching.map.palette.lit) == {1, 3}
        if size == (160, 48):
            assert text_of(app.watching.table).split() == ["0", "◆", "1", "■", "3"]
        await pilot.press("escape")
        await until(pilot, lambda: app.watching.model.selected_id is None)
        assert blocks_drawn_as(app.watching.map, app.watching.map.palette.lit) == set()


async def test_sorting_puts_the_request_with_most_blocks_first(recording_view):
    async with recording_view() as (app, pilot):
        for _ in range(4):
            await pilot.press("full_stop")
        await until(pilot, lambda: is_at(app, 4))
        await pilot.press("s")
        assert app.watching.model.sort_key is SortKey.BLOCKS
        await shows(pilot, app.watching.requests, "blocks▾")
        numbers = [len(request.block_table) for request in app.watching.model.listed_requests()]
        assert numbers == sorted(numbers, reverse=True)
        assert len(set(numbers)) > 1


async def test_the_block_cursor_tells_who_holds_a_block(recording_view):
    async with recording_view() as (app, pilot):
        await pilot.press("full_stop")
        await until(pilot, lambda: is_at(app, 1))
        await pilot.press("1", "down")
        await until(pilot, lambda: app.watching.model.cursor == 0)
        await shows(pilot, app.watching.block, "a placeholder that no request holds")
        await pilot.press("right")
        await until(pilot, lambda: app.watching.model.cursor == 1)
        await shows(pilot, app.watching.block, "◆ shared  ref 2  in the prefix cache  slots 4–7")
        await shows(pilot, app.watching.block, "held by a[0] b[0]", "4 of 4 slots filled")
        await pilot.press("enter", "enter")
        await until(pilot, lambda: app.watching.model.selected_id == "b")


async def test_shared_blocks_are_listed_with_their_owners_and_what_they_save(recording_view):
    async with recording_view() as (app, pilot):
        await pilot.press("full_stop", "full_stop", "full_stop")
        # a, b and c begin with the same block of four tokens: three owners of one block save two.
        await until(pilot, lambda: is_at(app, 3) and "× 3" in text_of(app.watching.prefixes))
        first, *others = [line.split() for line in text_of(app.watching.prefixes).splitlines()[1:5]]
        # It begins one block here, and each of the three has one of its own behind it: four blocks in all.
        assert first == ["4", "1", "▾", "◆", "×", "3", "1", "a", "b", "c"]
        assert [line[-1] for line in others] == ["a", "b", "c"]
        assert "sharing saves 2 blocks" in str(app.watching.prefixes.border_subtitle)


async def test_help_lists_the_keys_and_closes_again(recording_view):
    async with recording_view() as (app, pilot):
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        keys = {what: key for key, what in app.screen.keys}
        assert keys["A step back, forward"] == ", ."
        assert keys["Slower, faster"] == "[ ]"
        # The view goes on under the help page.
        app.watching.source.do(StepBy(2))
        await until(pilot, lambda: is_at(app, 2))
        await pilot.press("escape")
        assert not isinstance(app.screen, HelpScreen)


async def test_q_leaves(recording_view):
    async with recording_view() as (app, pilot):
        await pilot.press("q")
        await pilot.pause()
        assert not app.is_running
        assert app.return_code == 0


async def test_the_terminal_gets_what_the_map_would_draw_anew(recording_view):
    # The map redraws only the rows that changed; what is kept of the others must still be right.
    async with recording_view((80, 24)) as (app, pilot):
        pool_map = app.watching.map
        for step in range(1, 12):
            await pilot.press("full_stop")
            await until(pilot, lambda step=step: is_at(app, step))
            kept = pool_map.render_lines(Region(0, 0, *pool_map.outer_size))[1:-1]
            fresh = [pool_map.render_line(y).text for y in range(pool_map.size.height)]
            assert [strip.text[1:-1] for strip in kept] == fresh
