"""The app: its themes and screens, and the keys that work on all of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from kvengine.errors import KVError
from kvengine.telemetry.reader import Attachment, RunningEngine
from kvtop.palette import DARK, DARK_VARIABLES, LIGHT
from kvtop.screens.help import HelpScreen
from kvtop.screens.jump import JumpScreen
from kvtop.screens.picker import EnginePicker
from kvtop.screens.watch import WatchScreen
from kvtop.sources.base import Source
from kvtop.sources.live import LiveSource


class KvtopApp(App[None]):
    """The live view of one engine, recording or server.

    Args:
        source: What to watch; None to choose among `engines` first.
        engines: The running engines, when there are several.

    Attributes:
        failure: Why the chosen engine could not be watched.
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
        Binding("ctrl+o", "jump_to_pane", "Jump", show=False, id="app.jump", tooltip="Go to a pane by its letter"),
        Binding("T", "next_theme", "Theme", show=False, id="app.theme", tooltip="Dark or light"),
        Binding("q,ctrl+c", "quit", "Quit", id="app.quit", tooltip="Leave kvtop; the engine goes on", key_display="q"),
    ]

    def __init__(self, source: Source | None, *, engines: Sequence[RunningEngine] = ()) -> None:
        super().__init__()
        self.failure: KVError | None = None
        self._source = source
        self._engines = engines

    @property
    def watching(self) -> WatchScreen:
        """The watch that is shown, or that lies under what is shown."""
        return next(screen for screen in reversed(self.screen_stack) if isinstance(screen, WatchScreen))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """The colours of the pool, for themes that do not bring their own."""
        return DARK_VARIABLES

    def on_mount(self) -> None:
        """Start watching, or ask what."""
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = DARK.name
        if self._source is not None:
            self.push_screen(WatchScreen(self._source))
        else:
            self.push_screen(EnginePicker(self._engines), self._choose)

    def _choose(self, path: Path | None) -> None:
        if path is None:
            self.exit()
            return
        try:
            self.push_screen(WatchScreen(LiveSource(Attachment.open(path))))
        except KVError as error:
            self.failure = error
            self.exit()

    def action_help(self) -> None:
        """Show every key and sign, and what the pane with the focus shows."""
        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen.about(self.screen))

    def action_jump_to_pane(self) -> None:
        """Put a letter on each pane, and go to the one that is typed."""
        if isinstance(self.screen, WatchScreen):
            self.push_screen(JumpScreen(self.screen), self._focus_pane)

    def action_next_theme(self) -> None:
        """Dark or light."""
        self.theme = LIGHT.name if self.theme == DARK.name else DARK.name

    def _focus_pane(self, pane_id: str | None) -> None:
        if pane_id is not None:
            self.watching.action_pane(pane_id)
