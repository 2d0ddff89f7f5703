"""Several engines run: which one to watch."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from kvengine.telemetry.reader import RunningEngine
from kvtop.formats import plural
from kvtop.widgets.foreign_text import as_markup


class EnginePicker(ModalScreen[Path | None]):
    """A list of running engines; gives the chosen socket, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "Cancel", id="picker.cancel", tooltip="Leave kvtop")
    ]

    def __init__(self, engines: Sequence[RunningEngine]) -> None:
        super().__init__()
        self._engines = engines

    def compose(self) -> ComposeResult:
        """One row an engine."""
        engines = OptionList(
            *[Option(as_markup(describe_engine(engine)), id=str(engine.path)) for engine in self._engines]
        )
        engines.border_title = f"{plural(len(self._engines), 'engine')} running"
        engines.border_subtitle = "enter attaches · esc quits"
        yield engines

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Give the chosen one."""
        self.dismiss(Path(event.option_id or ""))


def describe_engine(engine: RunningEngine) -> str:
    """An engine in one line."""
    facts = engine.facts
    if facts is None:
        return f"{engine.path.name}  (does not say what it is)"
    label = f"  {facts.label}" if facts.label else ""
    blocks = f"{facts.num_blocks - 1:,} blocks × {facts.block_size} tokens"
    return f"{facts.model}{label}  pid {facts.pid}  {blocks}  {engine.path.name}"
