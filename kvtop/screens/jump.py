"""A letter on each pane; typing it goes there."""

from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.widgets import Label

from kvtop.widgets.line_pane import LinePane

LETTERS = "asdfghjklqwertyuiop"


class JumpScreen(ModalScreen[str | None]):
    """Lies over a screen; gives the id of the pane whose letter was typed, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+o", "dismiss(None)", "Stay", id="jump.cancel", tooltip="Stay where you are")
    ]

    def __init__(self, screen: Screen[Any]) -> None:
        super().__init__()
        panes = [pane for pane in screen.query(LinePane) if pane.can_focus and pane.is_on_screen and pane.display]
        self._targets = dict(zip(LETTERS, panes, strict=False))

    def compose(self) -> ComposeResult:
        """One letter a pane, at its top left corner."""
        for letter, pane in self._targets.items():
            label = Label(f" {letter} ", classes="jump")
            label.styles.offset = (pane.region.x + 1, pane.region.y)
            yield label

    def on_key(self, event: events.Key) -> None:
        """Go to the pane of the letter."""
        if event.key in self._targets:
            event.stop()
            self.dismiss(self._targets[event.key].id)
