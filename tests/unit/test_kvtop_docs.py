"""docs/kvtop.md names every action, colour and option that there is."""

import re
from pathlib import Path

from typer.main import get_command

from kvtop.actions import all_actions
from kvtop.app import KvtopApp
from kvtop.cli import app as command
from kvtop.config import SURFACES
from kvtop.palette import DARK_VARIABLES

TEXT = (Path(__file__).parents[2] / "docs" / "kvtop.md").read_text()


def test_every_action_is_listed_with_its_keys():
    listed = dict(re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \| `([^`]+)` \|", TEXT, re.MULTILINE))
    assert listed == {name: binding.key for name, binding in all_actions(KvtopApp.BINDINGS).items()}


def test_every_colour_of_a_theme_is_named():
    single = {name.removeprefix("kv-") for name in DARK_VARIABLES if not re.search(r"-\d+$", name)}
    colours = TEXT.partition("Colours of a theme:")[2].partition("`NO_COLOR`")[0]
    named = {word for quoted in re.findall(r"`([^`]+)`", colours) for word in quoted.split()}
    assert named == single | set(SURFACES) | {"owner-1", "owner-12", "ramp-1", "ramp-6"}


def test_every_option_is_explained():
    hidden = {
        "--help",
        "--version",
        "--json",
        "--size",
        "--kv-events",
        "--kv-events-replay",
        "--no-kv-events",
        "--partial",
    }
    options = {option for parameter in get_command(command).params for option in parameter.opts if option[:2] == "--"}
    missing = [option for option in sorted(options - hidden) if option not in TEXT]
    assert missing == []
