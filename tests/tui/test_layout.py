"""At every size each pane keeps to its lines, and nothing that is folded is out of reach."""

import pytest

from kvtop.screens.help import HelpScreen
from tests.tui.conftest import is_at, text_of, until

SIZES = [(40, 12), (60, 18), (80, 24), (80, 50), (100, 30), (120, 40), (160, 48), (200, 60), (400, 120)]


@pytest.mark.parametrize("size", SIZES)
async def test_every_line_is_exactly_as_wide_as_its_pane(recording_view, size):
    async with recording_view(size) as (app, pilot):
        for key in ("n", "down", "down", "1", "down", "right"):
            await pilot.press(key)
        await until(pilot, lambda: app.watching.model.picture.counters.preemptions == 1)
        for pane in (app.watching.state_line, *app.watching.panes, app.watching.playback):
            if pane.is_on_screen and pane.display and pane.size.width:
                # A strip believes what it was told of its width, so the texts are measured.
                widths = {sum(segment.cell_length for segment in pane.render_line(y)) for y in range(pane.size.height)}
                assert widths == {pane.size.width}, f"{pane.id} is {pane.size.width} columns wide"


@pytest.mark.parametrize("size", SIZES)
async def test_source_step_and_usage_are_seen_at_every_size(recording_view, size):
    async with recording_view(size) as (app, pilot):
        await pilot.press("full_stop")
        await until(pilot, lambda: is_at(app, 1))
        text = text_of(app.watching.state_line)
        assert "RECORDING" in text
        assert "in use" in text
        assert "step 1" in text or size == (40, 12)
        assert app.watching.map.grid is not None


async def test_on_a_small_terminal_requests_and_shared_blocks_take_turns(recording_view):
    async with recording_view((80, 24)) as (app, pilot):
        assert app.watching.requests.display
        assert not app.watching.prefixes.display
        assert "3 Prefixes" in str(app.watching.requests.border_title)
        await pilot.press("3")
        await until(pilot, lambda: app.watching.prefixes.has_focus)
        assert app.watching.prefixes.display
        assert not app.watching.requests.display
        await pilot.press("2")
        await until(pilot, lambda: app.watching.requests.has_focus and app.watching.requests.display)


async def test_folded_panes_are_one_line_and_their_number_enlarges_them(recording_view):
    async with recording_view((80, 24)) as (app, pilot):
        await pilot.press("n")
        await until(
            pilot, lambda: app.watching.model.picture.counters.preemptions == 1 and "pre" in text_of(app.watching.trend)
        )
        assert (app.watching.trend.size.height, app.watching.events.size.height) == (1, 1)
        await pilot.press("5")
        await until(pilot, lambda: app.watching.maximized is app.watching.events)
        await until(pilot, lambda: "+ arrive" in text_of(app.watching.events))
        assert app.watching.events.size.height > 10
        await pilot.press("escape")
        await until(pilot, lambda: app.watching.maximized is None and app.watching.events.size.height == 1)


async def test_the_number_of_a_focused_pane_enlarges_it(recording_view):
    async with recording_view((160, 48)) as (app, pilot):
        await pilot.press("1")
        await until(pilot, lambda: app.watching.map.has_focus)
        height = app.watching.map.size.height
        await pilot.press("1")
        await until(pilot, lambda: app.watching.maximized is app.watching.map)
        assert app.watching.map.size.height > height


async def test_a_terminal_too_small_for_lists_still_shows_the_map(recording_view):
    async with recording_view((60, 18)) as (app, _pilot):
        assert not app.watching.requests.is_on_screen or not app.watching.requests.size.height
        assert app.watching.map.size.height >= 8


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_line_of_keys_always_has_help_and_the_way_out_and_can_be_clicked(recording_view, size):
    async with recording_view(size) as (app, pilot):
        for pane in ("1", "2"):
            await pilot.press(pane)
            await pilot.pause()
            text = text_of(app.watching.keys_shown)
            assert text.endswith("? Help  q Quit")
            assert "space Pause" in text
        await pilot.click(app.watching.keys_shown, offset=(text.index("? Help") + 1, 0))
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))


async def test_keys_that_are_typed_fast_go_where_they_are_meant_to(recording_view):
    async with recording_view((160, 48)) as (app, pilot):
        await pilot.press("1")
        for key in ("2", "down", "down", "1", "down", "right", "right"):
            app.simulate_key(key)
        await until(pilot, lambda: app.watching.model.cursor == 2)
        assert app.watching.maximized is None
