"""Help: every key of the view and what the signs mean."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.markup import escape
from textual.screen import ModalScreen
from textual.widgets import Static

SIGNS = """\
[b]Blocks[/b]
 [$kv-shared]◆[/]  shared        several requests hold it
 [$kv-used]■[/]  used          one request holds it
 [$kv-cached]▒[/]  cached, free  nobody holds it; its content can be hit until it is evicted
 [$kv-free]·[/]  free          nobody holds it, nothing in it
 [$kv-null]×[/]  null          a placeholder that is never handed out
 [$kv-lit on $kv-lit-back]■[/]  lit           the selected request holds it
 In a cell of several blocks the majority gives the sign; ▫ ▪ ■ and ◇ ◈ ◆ say
 whether up to a third, two thirds or all of it is held.

[b]Requests[/b]
 [$kv-good]●[/] running   [$kv-muted]○[/] waiting   [$kv-bad]▲[/] preempted: waits again, its blocks given up
 A dash stands for what is not known or does not apply; it is never a 0.
"""


class HelpScreen(ModalScreen[None]):
    """Lists the keys; any of the usual keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter,space", "dismiss", "Close", id="help.close", tooltip="Back to the view")
    ]

    def __init__(self, keys: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._keys = keys

    def compose(self) -> ComposeResult:
        """One scrollable page."""
        with VerticalScroll(id="help") as page:
            page.border_title = "kvtop keys and signs"
            page.border_subtitle = "esc closes"
            width = max(len(key) for key, _ in self._keys)
            keys = "\n".join(f" [b $kv-used]{escape(f'{key:<{width}}')}[/]  {text}" for key, text in self._keys)
            yield Static(f"[b]Keys[/b]\n{keys}\n\n{SIGNS}")
