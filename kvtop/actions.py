"""Every action that has a key, by the name under which a user can give it another one."""

from collections.abc import Iterable, Mapping

from textual.binding import Binding, BindingType

from kvtop.screens.compare import CompareScreen
from kvtop.screens.help import HelpScreen
from kvtop.screens.jump import JumpScreen
from kvtop.screens.picker import EnginePicker
from kvtop.screens.prompt import Prompt
from kvtop.screens.watch_keys import KEYS
from kvtop.widgets.pool_map import PoolMap
from kvtop.widgets.prefix_list import PrefixList
from kvtop.widgets.request_list import RequestList

TOGETHER = {
    "map": ("map", "watch", "app"),
    "requests": ("requests", "watch", "app"),
    "prefix": ("prefix", "watch", "app"),
    "watch": ("watch", "app"),
    "compare": ("compare", "map", "app"),
}
"""Scopes (the names' beginnings) whose keys work at the same time, by scope."""


def all_actions(app_bindings: Iterable[BindingType]) -> dict[str, Binding]:
    """The bindings of all screens and panes, by id.

    Args:
        app_bindings: Those of the app.
    """
    kinds = (PoolMap, RequestList, PrefixList, CompareScreen, EnginePicker, HelpScreen, JumpScreen, Prompt)
    bindings = [*app_bindings, *KEYS, *(binding for kind in kinds for binding in kind.BINDINGS)]
    return {binding.id: binding for binding in bindings if isinstance(binding, Binding) and binding.id}


def first_clash(actions: Mapping[str, Binding], keys: Mapping[str, str]) -> tuple[str, str, str] | None:
    """A key that a user gave to an action although it already does something at the same time.

    Args:
        actions: All of them.
        keys: What the user wants, by action; keys of one action are separated by commas.

    Returns:
        The key, the action that was given it, and the one that has it; None if there is none.
    """
    wanted = {name: set(keys.get(name, binding.key).split(",")) for name, binding in actions.items()}
    for name in keys:
        scope = name.partition(".")[0]
        for scopes in TOGETHER.values():
            if scope not in scopes:
                continue
            for other, taken in wanted.items():
                if other != name and other.partition(".")[0] in scopes and (both := taken & wanted[name]):
                    return min(both), name, other
    return None
