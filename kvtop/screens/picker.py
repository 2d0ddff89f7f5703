"""Which of the running engines to watch."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from kvengine.telemetry.engine_list import EngineList, RunningEngine
from kvtop.formats import plural
from kvtop.widgets.foreign_text import as_markup

LOOK_S = 1.0


class EnginePicker(ModalScreen[Path | None]):
    """A list of running engines, kept up to date; gives the chosen socket, or None.

    Args:
        engines: Where they are looked for.
        watched: Process id of the engine that is watched now; None for none.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,e", "dismiss(None)", "Cancel", id="picker.cancel", tooltip="Choose none")
    ]

    def __init__(self, engines: EngineList, watched: int | None = None) -> None:
        super().__init__()
        self._engines = engines
        self._watched = watched
        self._listed: Sequence[RunningEngine] = ()

    def compose(self) -> ComposeResult:
        """One row an engine."""
        engines = OptionList()
        engines.border_subtitle = "enter attaches · esc leaves"
        yield engines

    def on_mount(self) -> None:
        """List them now, and again and again."""
        self._list()
        self.set_interval(LOOK_S, self._list)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Give the chosen one."""
        self.dismiss(Path(event.option_id or ""))

    def _list(self) -> None:
        engines = self._engines.look()
        if self._listed and engines == self._listed:
            return
        options, highlighted = self.query_one(OptionList), None
        if options.highlighted is not None and options.option_count:
            highlighted = options.get_option_at_index(options.highlighted).id
        options.clear_options()
        options.add_options([self._option(engine) for engine in engines])
        ids = [str(engine.path) for engine in engines]
        options.highlighted = ids.index(highlighted) if highlighted in ids else 0 if ids else None
        options.border_title = f"{plural(len(engines), 'engine')} running" if engines else "no engine is running"
        self._listed = engines

    def _option(self, engine: RunningEngine) -> Option:
        is_watched = engine.facts is not None and engine.facts.pid == self._watched
        sign = "● " if is_watched else "  "
        return Option(sign + as_markup(describe_engine(engine)), id=str(engine.path))


def describe_engine(engine: RunningEngine) -> str:
    """An engine in one line."""
    facts = engine.facts
    if facts is None:
        return f"{engine.path.name}  (does not say what it is)"
    label = f"  {facts.label}" if facts.label else ""
    blocks = f"{facts.num_blocks - 1:,} blocks × {facts.block_size} tokens"
    return f"{facts.model}{label}  pid {facts.pid}  {blocks}  {engine.path.name}"
