"""The map in its orders, colours and zooms; filters, prompts, letters and help."""

import pytest
from textual.widgets import Input

from kvengine.gpu_readings import GpuPicture, GpuReading
from kvtop.map_order import MapColour, MapOrder
from kvtop.screens.help import HelpScreen
from kvtop.screens.jump import JumpScreen
from kvtop.sources.base import GpusRead
from tests.tui.conftest import is_at, shows, text_of, until


async def at_step(app, pilot, step: int) -> None:
    for _ in range(step):
        await pilot.press("full_stop")
    await until(pilot, lambda: is_at(app, step))


def ids_drawn(app) -> list[int]:
    """The block ids of a small pool's map, in the order in which they are drawn."""
    return [int(word) for word in text_of(app.watching.map).split() if word.isdecimal()]


async def test_each_order_shows_every_block_once(recording_view):
    async with recording_view() as (app, pilot):
        await at_step(app, pilot, 1)
        await pilot.press("1")
        assert ids_drawn(app) == list(range(9))
        for order in (MapOrder.REQUEST, MapOrder.PREFIX, MapOrder.AGE):
            await pilot.press("o")
            await until(pilot, lambda order=order: f"by {order}" in str(app.watching.map.border_title))
            assert sorted(ids_drawn(app)) == list(range(9))
        await pilot.press("o")
        await until(pilot, lambda: ids_drawn(app) == list(range(9)))


async def test_by_request_the_blocks_of_each_lie_together(recording_view):
    async with recording_view() as (app, pilot):
        await at_step(app, pilot, 1)
        await pilot.press("1", "o")
        # a holds 1 and 2, b holds 1 and 3; free blocks follow, the null block is last.
        await until(pilot, lambda: ids_drawn(app)[:3] == [1, 2, 3])
        assert ids_drawn(app)[-1] == 0


async def test_colours_have_their_own_signs(recording_view):
    async with recording_view() as (app, pilot):
        await at_step(app, pilot, 1)
        await pilot.press("1", "c")
        assert app.watching.model.map_colour is MapColour.OWNER
        # The shared block keeps a sign of its own; the owners' blocks have letters: handles 1 and 2 are B and C.
        await shows(pilot, app.watching.map, "◆ 1", "B 2", "C 3")
        await pilot.press("c")
        await shows(pilot, app.watching.map, "6 1", "6 2", "6 3")
        await pilot.press("c")
        await shows(pilot, app.watching.map, "2 1", "1 2", "1 3")
        await pilot.press("c")
        await shows(pilot, app.watching.map, "◆ 1", "■ 2", "■ 3")


async def test_the_cursor_stays_on_its_block_when_the_order_changes(recording_view):
    async with recording_view() as (app, pilot):
        await at_step(app, pilot, 1)
        await pilot.press("1", "down", "right", "right", "right")
        await until(pilot, lambda: app.watching.model.cursor == 3)
        await pilot.press("o")
        await pilot.press("left")
        # By request 1, 2, 3 come first: left of 3 is 2.
        await until(pilot, lambda: app.watching.model.cursor == 2)


async def test_a_filter_lists_what_is_typed_and_escape_lists_all(recording_view):
    async with recording_view() as (app, pilot):
        await at_step(app, pilot, 1)
        await until(pilot, lambda: app.watching.requests.num_rows == 2)
        await pilot.press("slash", "b")
        await until(pilot, lambda: app.watching.requests.num_rows == 1)
        await pilot.press("enter")
        await shows(pilot, app.watching.requests, "b ")
        assert "/b" in str(app.watching.requests.border_title)
        await pilot.press("escape")
        await until(pilot, lambda: app.watching.requests.num_rows == 2)


async def test_a_filter_that_is_left_with_escape_is_as_it_was(recording_view):
    async with recording_view() as (app, pilot):
        await at_step(app, pilot, 1)
        await pilot.press("slash", "x")
        await shows(pilot, app.watching.requests, "no request passes 'x'")
        await pilot.press("escape")
        await until(pilot, lambda: app.watching.requests.num_rows == 2)
        assert app.watching.model.filter_text == ""


async def test_a_block_or_a_request_is_found_by_its_id(recording_view):
    async with recording_view() as (app, pilot):
        await at_step(app, pilot, 1)
        await pilot.press("f", "3", "enter")
        await until(pilot, lambda: app.watching.model.cursor == 3)
        await pilot.press("f", "b", "enter")
        await until(pilot, lambda: app.watching.model.selected_id == "b")


async def test_a_recording_goes_to_a_step_or_a_time_that_is_typed(recording_view):
    async with recording_view() as (app, pilot):
        await pilot.press("t", "5", "enter")
        await until(pilot, lambda: is_at(app, 5))
        # Steps are half a second apart, the first at 0: step 3 is at 1 s.
        await pilot.press("t", "1", "s", "enter")
        await until(pilot, lambda: is_at(app, 3))


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
async def test_letters_lead_to_panes(recording_view, size):
    async with recording_view(size) as (app, pilot):
        await pilot.press("ctrl+o")
        assert isinstance(app.screen, JumpScreen)
        letter = next(letter for letter, pane in app.screen._targets.items() if pane.id == "map")
        await pilot.press(letter)
        await until(pilot, lambda: app.watching.map.has_focus)


async def test_help_tells_of_the_pane_with_the_focus(recording_view):
    async with recording_view() as (app, pilot):
        await pilot.press("3", "question_mark")
        assert isinstance(app.screen, HelpScreen)
        assert app.screen._pane_title == "Prefixes"
        assert "Open, close a branch" in [what for _, what in app.screen.keys]
        await pilot.press("escape", "1", "f1")
        assert app.screen._pane_title == "Map"
        assert "Open, close a branch" not in [what for _, what in app.screen.keys]


async def test_a_branch_closes_and_opens(recording_view):
    async with recording_view() as (app, pilot):
        await at_step(app, pilot, 1)
        await until(pilot, lambda: app.watching.prefixes.num_rows == 3)
        await pilot.press("3", "left")
        await until(pilot, lambda: app.watching.prefixes.num_rows == 1)
        await pilot.press("right")
        await until(pilot, lambda: app.watching.prefixes.num_rows == 3)
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.watching.model.cursor in (2, 3))


async def test_typing_into_a_prompt_is_no_command(recording_view):
    async with recording_view() as (app, pilot):
        await pilot.press("f", "q")
        assert app.is_running
        assert app.screen.query_one(Input).value == "q"


async def test_gpus_have_a_pane_where_there_are_any_and_words_where_not(recording_view):
    async with recording_view((200, 60)) as (app, pilot):
        assert not app.watching.gpu.display
        await pilot.press("8")
        await shows(pilot, app.watching.gpu, "a recording has no GPU readings")
        await pilot.press("escape")
        gpu = GpuReading(
            index=0,
            name="NVIDIA H100",
            used_bytes=60 * 2**30,
            total_bytes=80 * 2**30,
            engine_bytes=None,
            busy_fraction=0.37,
            power_w=None,
            power_limit_w=700.0,
            temperature_c=54,
        )
        app.watching.post_message(GpusRead(GpuPicture(gpus=(gpu,))))
        await until(pilot, lambda: app.watching.gpu.display)
        await shows(pilot, app.watching.gpu, "60.00 GiB of 80", "busy 37.0%", "power – of 700 W")
