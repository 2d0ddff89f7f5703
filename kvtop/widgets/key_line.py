"""The keys that work now, in one line; where there is no room for all, those for help and leaving stay longest."""

from typing import Any

from textual import events
from textual.binding import Binding
from textual.dom import DOMNode
from textual.screen import Screen
from textual.strip import Strip

from kvtop.view_model import ViewModel
from kvtop.widgets.line_pane import LinePane, Part, arrange

ALWAYS = ("app.help", "app.quit")
EARLY = ("watch.pause", "watch.forward", "watch.scene", "compare.pause", "compare.forward")
"""What is left out last, after those that are always there and those of the focused pane."""


class KeyLine(LinePane):
    """Made from the bindings that are shown; a click on one is the same as its key."""

    def __init__(self, model: ViewModel, *, id: str = "keys") -> None:
        super().__init__(model, id=id)
        self._places: list[tuple[int, int, str, DOMNode]] = []
        """First column and the one after the last of each key as last drawn, its action and where that is done."""

    def on_mount(self) -> None:
        """Follow the keys as the focus moves."""
        self.screen.bindings_updated_signal.subscribe(self, self._follow)

    def draw_line(self, y: int, width: int) -> Strip:  # noqa: ARG002
        """All keys for which there is room."""
        shown = self._shown()
        left = [self._part(binding, node) for binding, node in shown if binding.id not in ALWAYS]
        right = [self._part(binding, node) for binding, node in shown if binding.id in ALWAYS]
        strip = arrange(left, right, width, self.base)
        self._place(strip.text, shown)
        return strip

    def on_click(self, event: events.Click) -> None:
        """Do what the key does that was clicked."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        for start, end, action, node in self._places:
            if start <= offset.x < end:
                self.app.call_later(self.app.run_action, action, node)

    def _follow(self, _: Screen[Any]) -> None:
        self.refresh()

    def _shown(self) -> list[tuple[Binding, DOMNode]]:
        """Each action once, those of the focused pane first."""
        bindings: dict[str, tuple[Binding, DOMNode]] = {}
        for node, binding, is_enabled, _ in self.screen.active_bindings.values():
            if binding.show and is_enabled:
                bindings.setdefault(binding.action, (binding, node))
        return list(bindings.values())

    def _part(self, binding: Binding, node: DOMNode) -> Part:
        if binding.id in ALWAYS:
            rank = 0
        elif binding.id in EARLY:
            rank = 1
        else:
            rank = 2 if node is self.screen.focused else 3
        key, palette = self.app.get_key_display(binding), self.palette
        return Part(rank, ((f" {key}", palette.key), (f" {binding.description} ", palette.muted)))

    def _place(self, drawn: str, shown: list[tuple[Binding, DOMNode]]) -> None:
        """Note where each key stands."""
        self._places = []
        for binding, node in shown:
            text = f" {self.app.get_key_display(binding)} {binding.description} "
            start = drawn.find(text)
            if start >= 0:
                self._places.append((start, start + len(text), binding.action, node))
