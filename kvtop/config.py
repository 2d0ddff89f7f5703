"""The user's own keys and themes: `$XDG_CONFIG_HOME/kvtop/config.toml`, or `~/.config/kvtop/config.toml`.

theme = "night"

[keys]
"map.order" = "O"
"watch.pause" = "space,p"

[themes.night]
base = "dark"
background = "#000000"
used = "#4f8ef7"
"""

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from textual.binding import Binding
from textual.keys import Keys, _character_to_key
from textual.theme import Theme

from kvengine.errors import ConfigError
from kvtop.palette import DARK, LIGHT

BASES = {"dark": DARK, "light": LIGHT}
SURFACES = ("background", "surface", "panel", "foreground", "primary", "secondary", "accent", "warning", "error")
"""Colours of a theme besides those of the pool."""
MODIFIERS = ("ctrl", "shift", "alt", "super", "hyper", "meta")
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
_KEY_NAMES = {key.value for key in Keys}


@dataclass(frozen=True, slots=True, kw_only=True)
class UserConfig:
    """What differs from what kvtop does by itself."""

    theme: str = DARK.name
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys by action, several separated by commas."""
    themes: tuple[Theme, ...] = (DARK, LIGHT)


def config_path() -> Path:
    """Where the file would be."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".config") / "kvtop" / "config.toml"


def load_config(path: Path, actions: Callable[[], Mapping[str, Binding]]) -> UserConfig:
    """Read the file; without one all is as it comes, and nothing is loaded for it.

    Args:
        path: The file.
        actions: Gives every action that can be given a key, by name.

    Raises:
        ConfigError: It cannot be read, or names something that is not there.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return UserConfig()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'})") from error
    import tomllib

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML ({error})") from error
    return _Reader(path, actions()).read(document)


class _Reader:
    """Checks one document; every message says where."""

    def __init__(self, path: Path, actions: Mapping[str, Binding]) -> None:
        self._path = path
        self._actions = actions

    def read(self, document: Mapping[str, Any]) -> UserConfig:
        for name in document:
            self._check_name(name, ("theme", "keys", "themes"), "setting")
        themes = (DARK, LIGHT, *self._read_themes(self._table(document, "themes")))
        names = {theme.name.removeprefix("kvtop-"): theme.name for theme in themes}
        chosen = document.get("theme", "dark")
        if not isinstance(chosen, str):
            raise self._error(f"theme: expected the name of a theme, got {chosen!r}")
        self._check_name(chosen, names, "theme", where="theme")
        return UserConfig(theme=names[chosen], keys=self._read_keys(self._table(document, "keys")), themes=themes)

    def _read_keys(self, table: Mapping[str, Any]) -> dict[str, str]:
        keys: dict[str, str] = {}
        for action, value in table.items():
            self._check_name(action, self._actions, "action", where="keys")
            if not isinstance(value, str) or not value.strip():
                raise self._error(f"keys.{action}: expected a key such as 'o' or 'ctrl+o', got {value!r}")
            keys[action] = ",".join(self._key(action, part.strip()) for part in value.split(","))
        from kvtop.actions import first_clash

        clash = first_clash(self._actions, keys)
        if clash is not None:
            key, action, other = clash
            raise self._error(f"keys.{action}: {key!r} is the key of {other} at the same time")
        return keys

    def _key(self, action: str, text: str) -> str:
        """One key in the long form that Textual uses."""
        *modifiers, name = text.split("+") if len(text) > 1 else [text]
        name = _character_to_key(name) if len(name) == 1 else name
        known = len(name) == 1 or name in _KEY_NAMES or _is_sign(name)
        if known and all(modifier in MODIFIERS for modifier in modifiers):
            return "+".join([*modifiers, name])
        raise self._error(f"keys.{action}: {text!r} is no key{_nearest(name, _KEY_NAMES)}")

    def _read_themes(self, table: Mapping[str, Any]) -> list[Theme]:
        themes: list[Theme] = []
        for name, value in table.items():
            if not isinstance(value, Mapping) or name in BASES:
                raise self._error(f"themes.{name}: expected a table of colours under a name of its own")
            themes.append(self._theme(name, value))
        return themes

    def _theme(self, name: str, colours: Mapping[str, Any]) -> Theme:
        where = f"themes.{name}"
        base_name = colours.get("base", "dark")
        self._check_name(base_name, BASES, "theme to start from", where=f"{where}.base")
        base = BASES[base_name]
        pool = {variable.removeprefix("kv-") for variable in base.variables if variable.startswith("kv-")}
        surfaces: dict[str, str] = {}
        variables = dict(base.variables)
        for key, colour in colours.items():
            if key == "base":
                continue
            self._check_name(key, [*SURFACES, *sorted(pool)], "colour", where=where)
            if not isinstance(colour, str) or not _COLOUR.fullmatch(colour):
                raise self._error(f"{where}.{key}: expected a colour such as '#4f8ef7', got {colour!r}")
            if key in SURFACES:
                surfaces[key] = colour
            else:
                variables[f"kv-{key}"] = colour
        own = {surface: surfaces.get(surface, getattr(base, surface)) for surface in SURFACES}
        return Theme(name=name, dark=base.dark, success=base.success, variables=variables, **own)

    def _table(self, document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        table = document.get(name, {})
        if not isinstance(table, Mapping):
            raise self._error(f"{name}: expected a table, [{name}]")
        return table

    def _check_name(self, name: object, known: Collection[str], kind: str, *, where: str = "") -> None:
        if name in known:
            return
        prefix = f"{where}: " if where else ""
        raise self._error(f"{prefix}unknown {kind} {name!r}{_nearest(str(name), known)}")

    def _error(self, message: str) -> ConfigError:
        return ConfigError(f"{self._path}: {message}", hint="docs/kvtop.md lists actions, keys and colours")


def _nearest(word: str, known: Collection[str]) -> str:
    near = get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _is_sign(name: str) -> bool:
    """Whether it is Textual's name of a sign on the keyboard, such as `full_stop`."""
    return any(_character_to_key(sign) == name for sign in map(chr, range(33, 127)) if not sign.isalnum())
