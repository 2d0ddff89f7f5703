"""The user's own keys and themes, the command palette, and a terminal without colours."""

from pathlib import Path

import pytest

from kvengine.errors import ConfigError
from kvengine.telemetry.recording import Recording
from kvtop.actions import TOGETHER, all_actions
from kvtop.app import KvtopApp
from kvtop.config import UserConfig, config_path, load_config
from kvtop.map_order import MapOrder
from kvtop.screen_text import strips_of
from kvtop.screens.help import HelpScreen
from kvtop.sources.recording import RecordingSource
from tests.tui.conftest import is_at, until

ACTIONS = all_actions(KvtopApp.BINDINGS)


def read(tmp_path: Path, text: str) -> UserConfig:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return load_config(path, lambda: ACTIONS)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    return caught.value.message.removeprefix(f"{tmp_path / 'config.toml'}: ")


def test_without_a_file_all_is_as_it_comes(tmp_path):
    assert load_config(tmp_path / "none.toml", lambda: ACTIONS) == UserConfig()


def test_the_file_lies_where_the_desktop_keeps_such_files(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert config_path() == tmp_path / "kvtop" / "config.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config_path() == tmp_path / ".config" / "kvtop" / "config.toml"


def test_signs_and_names_of_keys_are_both_understood(tmp_path):
    config = read(tmp_path, '[keys]\n"map.order" = "O"\n"watch.forward" = ">,ctrl+right"\n"app.help" = "f2"\n')
    assert config.keys == {"map.order": "O", "watch.forward": "greater_than_sign,ctrl+right", "app.help": "f2"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("them = 'dark'", "unknown setting 'them'; did you mean 'theme'?"),
        ("theme = 'drak'", "theme: unknown theme 'drak'; did you mean 'dark'?"),
        ("theme = 3", "theme: expected the name of a theme, got 3"),
        ("keys = 3", "keys: expected a table, [keys]"),
        ("[keys]\n'map.oder' = 'O'", "keys: unknown action 'map.oder'; did you mean 'map.order'?"),
        ("[keys]\n'map.order' = 'escpe'", "keys.map.order: 'escpe' is no key; did you mean 'escape'?"),
        ("[keys]\n'map.order' = 'ctl+o'", "keys.map.order: 'ctl+o' is no key"),
        ("[keys]\n'map.order' = ''", "keys.map.order: expected a key such as 'o' or 'ctrl+o', got ''"),
        ("[keys]\n'map.order' = 'f'", "keys.map.order: 'f' is the key of watch.find at the same time"),
        ("[keys]\n'watch.find' = 's'", "keys.watch.find: 's' is the key of requests.sort at the same time"),
        ("[themes.dark]\nused = '#000000'", "themes.dark: expected a table of colours under a name of its own"),
        ("[themes.x]\nusd = '#000000'", "themes.x: unknown colour 'usd'; did you mean 'used'?"),
        ("[themes.x]\nused = 'blue'", "themes.x.used: expected a colour such as '#4f8ef7', got 'blue'"),
        ("[themes.x]\nbase = 'drk'", "themes.x.base: unknown theme to start from 'drk'; did you mean 'dark'?"),
    ],
)
def test_what_is_not_there_is_named_with_the_nearest_that_is(tmp_path, text, message):
    assert refusal(tmp_path, text).startswith(message)


def test_a_file_that_is_no_toml_is_one_line(tmp_path):
    assert refusal(tmp_path, "[keys").startswith("not TOML (")


def test_keys_may_change_places(tmp_path):
    config = read(tmp_path, "[keys]\n'map.order' = 'f'\n'watch.find' = 'o'")
    assert config.keys == {"map.order": "f", "watch.find": "o"}


def test_every_action_has_a_name_whose_beginning_is_a_scope_or_a_dialog():
    scopes = {name.partition(".")[0] for name in ACTIONS}
    assert scopes == {scope for scopes in TOGETHER.values() for scope in scopes} | {
        *("picker", "help", "jump", "prompt")
    }


async def test_keys_and_theme_of_the_user_are_those_of_the_view(tmp_path, run_file):
    config = read(
        tmp_path,
        "theme = 'night'\n[keys]\n'map.order' = 'O'\n'watch.forward' = 'g'\n[themes.night]\nused = '#123456'\n",
    )
    app = KvtopApp(RecordingSource(Recording.open(run_file), start=0), config=config)
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: is_at(app, 0))
        await pilot.press("full_stop")
        await pilot.press("g")
        await until(pilot, lambda: is_at(app, 1))
        await pilot.press("1", "o")
        assert app.watching.model.map_order is MapOrder.ID
        await pilot.press("O")
        assert app.watching.model.map_order is MapOrder.REQUEST
        assert app.theme == "night"
        assert app.watching.map.palette.used.color.get_truecolor().hex == "#123456"
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        keys = dict(app.screen.keys)
        assert "Order the blocks by id, request, prefix, age" in keys.values()
        assert any("O" in key.split() for key, text in app.screen.keys if text.startswith("Order the blocks"))


async def test_the_command_palette_has_what_has_a_key_now(recording_view):
    async with recording_view() as (app, pilot):
        commands = {command.title: command.callback for command in app.get_system_commands(app.screen)}
        assert "Find: Find a block or a request" in commands
        assert {"Sort", "Faster", "Map", "Requests"} <= set(commands), (
            "a key of several is named by what it does itself"
        )
        assert not any(title.startswith("Preempt:") for title in commands), "a recording cannot be steered"
        commands["Step"]()
        await until(pilot, lambda: is_at(app, 1))
        await pilot.press("ctrl+p")
        await pilot.press(*"zoom", "enter")
        await pilot.pause(0.5)
        assert app.is_running


async def test_no_color_leaves_no_colour_and_all_signs(run_file, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    app = KvtopApp(RecordingSource(Recording.open(run_file), start=3))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: is_at(app, 3))
        app.show_all()
        await pilot.pause()
        strips = strips_of(app)
    colours = {
        colour.get_truecolor()
        for strip in strips
        for segment in strip
        for colour in (segment.style.color, segment.style.bgcolor)
        if colour is not None
    }
    assert all(red == green == blue for red, green, blue in colours)
    text = "".join(strip.text for strip in strips)
    assert all(sign in text for sign in "■◆·●")
