"""What just happened, in words: the line that goes with each step of a guided scene."""

from textwrap import wrap

from textual.strip import Strip

from kvtop.view_model import ViewModel
from kvtop.widgets.foreign_text import printable
from kvtop.widgets.line_pane import LinePane, cut


class Caption(LinePane):
    """A few lines below the figures; only scenes say anything."""

    def __init__(self, model: ViewModel, *, id: str = "caption") -> None:
        super().__init__(model, id=id)
        self._text = ""

    def update_view(self) -> None:
        """Draw if something else is said."""
        if self.model.note != self._text:
            self._text = self.model.note
            self.refresh()

    def draw_line(self, y: int, width: int) -> Strip:
        """A line of the text."""
        lines = wrap(printable(self._text), max(width - 4, 1))
        if len(lines) > self.size.height > 0:
            lines = [*lines[: self.size.height - 1], cut(" ".join(lines[self.size.height - 1 :]), width - 4)]
        sign = " » " if y == 0 and lines else "   "
        return (
            self.line(width)
            .add(sign, self.palette.warn)
            .add(lines[y] if y < len(lines) else "", self.palette.strong)
            .strip()
        )
