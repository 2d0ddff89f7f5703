"""Help: what the pane with the focus shows, every key that works there, and what the signs mean."""

from collections.abc import Sequence
from textwrap import fill
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.markup import escape
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from kvtop.widgets.line_pane import LinePane

HELP_COLUMNS = 72
SIGNS = """\
[b]Blocks[/b]
 [$kv-shared]◆[/]  shared        several requests hold it
 [$kv-used]■[/]  used          one request holds it
 [$kv-cached]▒[/]  cached, free  nobody holds it; its content can be hit until it is evicted
 [$kv-free]·[/]  free          nobody holds it, nothing in it
 [$kv-null]×[/]  null          the placeholder, or a block that is kept out of use
 [$kv-warn]▣[/]  pinned        a transfer reads it: it stays, whatever becomes of its owners
 [$kv-lit on $kv-lit-back]■[/]  lit           the selected request holds it
 In a cell of several blocks the majority gives the sign; ▫ ▪ ■ and ◇ ◈ ◆ say
 whether up to a third, two thirds or all of it is held.

[b]Requests[/b]
 [$kv-good]●[/] running   [$kv-muted]○[/] waiting   [$kv-bad]▲[/] preempted: waits again, its blocks given up
 A dash stands for what is not known or does not apply; it is never a 0.
"""

Keys = Sequence[tuple[str, str]]


class HelpScreen(ModalScreen[None]):
    """Any of the usual keys closes it.

    Args:
        pane_title: Of the pane that is explained; empty for none.
        pane_help: What it shows.
        keys: Groups of keys with what they do, the pane's own first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape,question_mark,f1,q,enter,space", "dismiss", "Close", id="help.close", tooltip="Back to the view"
        )
    ]

    def __init__(self, pane_title: str, pane_help: str, keys: Keys) -> None:
        super().__init__()
        self._pane_title = pane_title
        self._pane_help = pane_help
        self.keys = keys

    @classmethod
    def about(cls, screen: Screen[Any]) -> "HelpScreen":
        """Explain what is on a screen now."""
        pane = screen.focused
        if not isinstance(pane, LinePane):
            return cls("", "", keys_of(screen))
        title = str(pane.border_title or "").partition("  ")[0].lstrip("0123456789 ")
        return cls(title, pane.HELP, keys_of(screen))

    def compose(self) -> ComposeResult:
        """One scrollable page."""
        with VerticalScroll(id="help") as page:
            page.border_title = "kvtop keys and signs"
            page.border_subtitle = "esc closes"
            width = max(len(key) for key, _ in self.keys)
            keys = "\n".join(f" [b $kv-used]{escape(f'{key:<{width}}')}[/]  {escape(text)}" for key, text in self.keys)
            about = (
                f"[b]{escape(self._pane_title)}[/b]\n{escape(_indented(self._pane_help))}\n\n"
                if self._pane_help
                else ""
            )
            yield Static(f"{about}[b]Keys[/b]\n{keys}\n\n{SIGNS}")


def keys_of(screen: Screen[Any]) -> list[tuple[str, str]]:
    """Each group of keys that work now, with what they do: bindings with the same tooltip are one group."""
    groups: dict[str, list[str]] = {}
    for _, binding, is_enabled, _ in screen.active_bindings.values():
        if is_enabled and binding.tooltip:
            keys = groups.setdefault(binding.tooltip, [])
            display = screen.app.get_key_display(binding)
            if display not in keys:
                keys.append(display)
    return [(" ".join(keys), tooltip) for tooltip, keys in groups.items()]


def _indented(text: str) -> str:
    """A paragraph in lines that fit an 80-column terminal."""
    return fill(" ".join(text.split()), HELP_COLUMNS, initial_indent=" ", subsequent_indent=" ")
