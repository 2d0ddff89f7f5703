"""One line to type into, at the bottom of the screen."""

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Input


class Prompt(ModalScreen[str]):
    """Asks for a text; gives it, or what stood there before if it was left with escape.

    Args:
        title: What is asked for.
        value: What stands there at first.
        on_change: Told each time that the text changes.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Cancel", id="prompt.cancel", tooltip="Leave it as it was")
    ]

    def __init__(self, title: str, value: str = "", *, on_change: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self._title = title
        self._value = value
        self._on_change = on_change

    def compose(self) -> ComposeResult:
        """The one line."""
        line = Input(value=self._value, select_on_focus=False)
        line.border_title = self._title
        line.border_subtitle = "enter takes it · esc leaves it"
        yield line

    def on_input_changed(self, event: Input.Changed) -> None:
        """Pass on what is typed."""
        if self._on_change is not None:
            self._on_change(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Give the text."""
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        """Give what stood there before."""
        self.dismiss(self._value)
