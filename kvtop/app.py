"""The app: its themes and screens, and the keys that work on all of them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.screen import Screen

from kvengine.errors import KVError
from kvengine.telemetry.engine_list import EngineList
from kvengine.telemetry.reader import Attachment
from kvtop.config import UserConfig, config_path, load_config
from kvtop.following import FollowEngines
from kvtop.palette import DARK_VARIABLES
from kvtop.screens.compare import CompareScreen
from kvtop.screens.help import HelpScreen
from kvtop.screens.jump import JumpScreen
from kvtop.screens.picker import EnginePicker
from kvtop.screens.watch import WatchScreen
from kvtop.sources.base import Source
from kvtop.sources.live import LiveSource
from kvtop.view_model import ViewModel
from kvtop.widgets.foreign_text import printable


class KvtopApp(App[None]):
    """The live view of one engine, recording or server.

    Args:
        source: What to watch; None to choose among `engines` first.
        other: What to compare it with; None to show it alone.
        engines: Where running engines are looked for, to go from one to another; None where that makes no sense.
        config: The user's own keys and themes.
    """

    CSS_PATH = "kvtop.tcss"
    TITLE = "kvtop"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "question_mark,f1",
            "help",
            "Help",
            id="app.help",
            tooltip="Keys, signs, and what the pane with the focus shows",
            key_display="?",
        ),
        Binding("e", "engines", "Engines", id="app.engines", tooltip="Choose among the engines that run"),
        Binding("ctrl+o", "jump_to_pane", "Jump", show=False, id="app.jump", tooltip="Go to a pane by its letter"),
        Binding("T", "next_theme", "Theme", show=False, id="app.theme", tooltip="Next theme: dark, light, your own"),
        Binding("q,ctrl+c", "quit", "Quit", id="app.quit", tooltip="Leave kvtop; the engine goes on", key_display="q"),
    ]

    def __init__(
        self,
        source: Source | None,
        *,
        other: Source | None = None,
        engines: EngineList | None = None,
        config: UserConfig | None = None,
    ) -> None:
        super().__init__()
        self._config = config if config is not None else UserConfig()
        self._other = other
        assert source is not None or engines is not None, "there is something to watch, or to choose from"
        self._source = source
        self._engines = engines

    @property
    def models(self) -> Sequence[ViewModel]:
        """What is shown, from left to right."""
        if isinstance(self.screen, CompareScreen):
            return self.screen.left.model, self.screen.right.model
        return (self.watching.model,)

    def show_all(self) -> None:
        """Draw all that is known, whether or not it is time for it."""
        if isinstance(self.screen, CompareScreen | WatchScreen):
            self.screen.show_all()

    @property
    def watching(self) -> WatchScreen:
        """The watch that is shown, or that lies under what is shown."""
        return next(screen for screen in reversed(self.screen_stack) if isinstance(screen, WatchScreen))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """The colours of the pool, for themes that do not bring their own."""
        return DARK_VARIABLES

    def on_mount(self) -> None:
        """Start watching, or ask what."""
        for theme in self._config.themes:
            self.register_theme(theme)
        self.theme = self._config.theme
        self.set_keymap(dict(self._config.keys))
        if self._source is not None and self._other is not None:
            self.push_screen(CompareScreen(self._source, self._other))
        elif self._source is not None:
            self.push_screen(WatchScreen(self._source))
        else:
            self.action_engines()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Engines are chosen from where there is a list of them."""
        return self._engines is not None if action == "engines" else True

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Everything that has a key now, for the command palette."""
        bindings = {
            (binding.description, binding.tooltip): (node, binding)
            for node, binding, is_enabled, _ in reversed(screen.active_bindings.values())
            if is_enabled and binding.tooltip and binding.id
        }
        shared = Counter(tooltip for _, tooltip in bindings)
        for (description, tooltip), (node, binding) in reversed(bindings.items()):
            # What is said of several keys together would say of each what the others do.
            name, about = (f"{description}: {tooltip}", "") if shared[tooltip] == 1 else (description, f"{tooltip} · ")
            help_text = f"{about}key {self.get_key_display(binding)}"
            yield SystemCommand(name, help_text, partial(self._run_binding, binding.action, node))
        yield SystemCommand("Screenshot: the screen as a picture", "an SVG file", self.deliver_screenshot)

    def _run_binding(self, action: str, node: DOMNode) -> None:
        self.call_later(self.run_action, action, node)

    def action_help(self) -> None:
        """Show every key and sign, and what the pane with the focus shows."""
        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen.about(self.screen))

    def action_engines(self) -> None:
        """Choose another engine."""
        if self._engines is not None and not isinstance(self.screen, EnginePicker):
            facts = self.watching.model.facts if self._has_watch else None
            self.push_screen(EnginePicker(self._engines, facts.pid if facts is not None else None), self._choose)

    def action_jump_to_pane(self) -> None:
        """Put a letter on each pane, and go to the one that is typed."""
        if isinstance(self.screen, WatchScreen):
            self.push_screen(JumpScreen(self.screen), self._focus_pane)

    def action_next_theme(self) -> None:
        """Dark, light, and the user's own."""
        names = [theme.name for theme in self._config.themes]
        self.theme = names[(names.index(self.theme) + 1) % len(names)] if self.theme in names else names[0]

    @property
    def _has_watch(self) -> bool:
        return any(isinstance(screen, WatchScreen) for screen in self.screen_stack)

    def _choose(self, path: Path | None) -> None:
        """Watch the chosen engine in place of the one before."""
        if path is None:
            if not self._has_watch:
                self.exit()
            return
        assert self._engines is not None, "it was chosen from a list"
        try:
            attachment = Attachment.open(path)
        except KVError as error:
            self.notify(printable(error.message), severity="warning", timeout=5)
            self.action_engines()
            return
        watch = WatchScreen(LiveSource(attachment, following=FollowEngines(self._engines)))
        if self._has_watch:
            self.switch_screen(watch)
        else:
            self.push_screen(watch)

    def _focus_pane(self, pane_id: str | None) -> None:
        if pane_id is not None:
            self.watching.action_pane(pane_id)


def user_config() -> UserConfig:
    """The user's own keys and themes.

    Raises:
        ConfigError: The file names something that is not there.
    """

    def actions() -> dict[str, Binding]:
        from kvtop.actions import all_actions

        return all_actions(KvtopApp.BINDINGS)

    return load_config(config_path(), actions)
