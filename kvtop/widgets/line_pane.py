"""The base of all panes: bordered, and drawn line by line in true colours."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Self

from rich.segment import Segment
from rich.style import Style
from textual.filter import ANSIToTruecolor, LineFilter
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from kvtop.palette import Palette
from kvtop.view_model import ViewModel
from kvtop.widgets.foreign_text import printable

ELLIPSIS = "…"


def cut(text: str, width: int) -> str:
    """Text in at most `width` columns, with an ellipsis where something is left out."""
    if len(text) <= width:
        return text
    return text[: width - 1] + ELLIPSIS if width > 0 else ""


class Line:
    """A line that is put together from left to right, and never gets wider than its width.

    Args:
        width: Terminal columns.
        base: Style of the gaps.
    """

    def __init__(self, width: int, base: Style) -> None:
        self.width = width
        self._base = base
        self._segments: list[Segment] = []
        self._used = 0

    @property
    def room(self) -> int:
        """Columns that are left."""
        return self.width - self._used

    def add(self, text: str, style: Style) -> "Line":
        """Add text, cut to what room there is."""
        text = cut(printable(text), self.room)
        if text:
            self._segments.append(Segment(text, style))
            self._used += len(text)
        return self

    def pad_to(self, column: int) -> "Line":
        """Add spaces up to a column."""
        gap = min(column, self.width) - self._used
        if gap > 0:
            self._segments.append(Segment(" " * gap, self._base))
            self._used += gap
        return self

    def strip(self, marked: Style | None = None) -> Strip:
        """The finished line, marked with a background if there is one."""
        self.pad_to(self.width)
        segments: Iterable[Segment] = self._segments
        if marked is not None:
            segments = Segment.apply_style(segments, post_style=marked)
        return Strip(segments, self.width)


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a line that is shown whole or not at all."""

    rank: int
    """Parts of the highest rank are left out first."""
    spans: tuple[tuple[str, Style], ...]

    @property
    def width(self) -> int:
        """Columns that it takes."""
        return sum(len(text) for text, _ in self.spans)


def arrange(left: Sequence[Part], right: Sequence[Part], width: int, base: Style) -> Strip:
    """Parts at the left and the right edge, without those for which there is no room."""
    kept = sorted([*left, *right], key=lambda part: part.rank)
    while len(kept) > 1 and sum(part.width for part in kept) > width:
        kept.pop()
    line = Line(width, base)
    for part in left:
        if part in kept:
            for text, style in part.spans:
                line.add(text, style)
    shown = [part for part in right if part in kept]
    line.pad_to(width - sum(part.width for part in shown))
    for part in shown:
        for text, style in part.spans:
            line.add(text, style)
    return line.strip()


class LinePane(Widget):
    """A pane that draws lines of a `ViewModel` and holds nothing else of it."""

    ALLOW_SELECT = False
    HELP = ""
    """What the pane shows, for the help page while it has the focus."""
    SERVER_LACKS = ""
    """Why the pane cannot be filled from a server of another engine; empty if it can."""

    def __init__(self, model: ViewModel, *, id: str, title: str = "") -> None:
        super().__init__(id=id)
        self.model = model
        self._palette: Palette | None = None
        self._base: Style | None = None
        self._titles = ("", "")
        self._rendered: tuple[Region, Size, list[Strip]] | None = None
        """The strips given out last, while they are still right."""
        self.set_titles(title)

    @property
    def palette(self) -> Palette:
        """The styles of the theme in use."""
        if self._palette is None:
            self._palette = Palette.from_variables(self.app.theme_variables, self.base)
        return self._palette

    @property
    def base(self) -> Style:
        """The pane's own colours, which lie under all that it draws."""
        if self._base is None:
            self._base = self.rich_style  # worked out through all ancestors: 0.2 ms
        return self._base

    @property
    def is_seen(self) -> bool:
        """Whether any line of it is on the screen."""
        return self.display and self.is_on_screen and self.size.height > 0

    def set_titles(self, title: str, subtitle: str = "") -> None:
        """Write into the border, and only if it is something new: that redraws the whole pane."""
        if (title, subtitle) != self._titles:
            self._titles = title, subtitle
            self.border_title, self.border_subtitle = title, subtitle

    def notify_style_update(self) -> None:
        """The theme may have changed."""
        super().notify_style_update()
        self._palette = self._base = self._rendered = None

    def get_line_filters(self) -> Sequence[LineFilter]:
        """All but the one that turns ANSI colours into true ones: there are none, and it takes half of the time."""
        return [
            line_filter for line_filter in super().get_line_filters() if not isinstance(line_filter, ANSIToTruecolor)
        ]

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        """Draw the pane, or some regions of it, anew."""
        self._rendered = None
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def render_lines(self, crop: Region) -> list[Strip]:
        """The pane with its border; kept while nothing changes, since a frame asks every pane that it touches."""
        if self._rendered is not None and self._rendered[:2] == (crop, self.outer_size):
            return self._rendered[2]
        strips = super().render_lines(crop)
        self._rendered = crop, self.outer_size, strips
        return strips

    def render_line(self, y: int) -> Strip:
        """One line of the content."""
        width = self.size.width
        if self.model.is_server and self.SERVER_LACKS:
            lines = wrap(self.SERVER_LACKS, width - 2)
            return self.line(width).add(f" {lines[y]}" if y < len(lines) else "", self.palette.muted).strip()
        return self.draw_line(y, width)

    def line(self, width: int) -> Line:
        """An empty line."""
        return Line(width, self.base)

    def draw_line(self, y: int, width: int) -> Strip:
        """Line `y` of the content, exactly `width` columns wide."""
        raise NotImplementedError

    def update_view(self) -> None:
        """The model has changed: draw what looks different."""
        self.refresh()


class ListPane(LinePane, can_focus=True):
    """A pane with more lines than fit, one of which may be selected."""

    HEADER_LINES = 0
    NUMBERED_TITLE = ""
    TAKES_TURNS_WITH = ""

    def __init__(self, model: ViewModel, *, id: str) -> None:
        super().__init__(model, id=id, title=self.NUMBERED_TITLE)
        self.top = 0
        """The first row drawn."""

    @property
    def num_rows(self) -> int:
        """Rows that there are."""
        raise NotImplementedError

    @property
    def num_visible(self) -> int:
        """Rows that fit."""
        return max(self.size.height - self.HEADER_LINES, 0)

    def draw_row(self, row: int, width: int) -> Strip:
        """One row of the list."""
        raise NotImplementedError

    def draw_header(self, width: int) -> Strip:
        """The line above the rows."""
        raise NotImplementedError

    def describe_empty(self) -> str:
        """What to say when there is no row."""
        raise NotImplementedError

    def draw_line(self, y: int, width: int) -> Strip:
        """A header line, a row, or nothing."""
        if y < self.HEADER_LINES:
            return self.draw_header(width)
        row = self.top + y - self.HEADER_LINES
        if row < self.num_rows:
            return self.draw_row(row, width)
        line = self.line(width)
        if not self.num_rows:
            words = wrap(self.describe_empty(), max(width - 2, 1))
            number = y - self.HEADER_LINES
            line.add(f" {words[number]}" if number < len(words) else "", self.palette.muted)
        return line.strip()

    def describe_title(self) -> str:
        """The title, with that of the pane it takes turns with where there is no room for both."""
        if self.TAKES_TURNS_WITH and self.screen.has_class("-narrow"):
            return f"{self.NUMBERED_TITLE}  [$kv-muted]{self.TAKES_TURNS_WITH}[/]"
        return self.NUMBERED_TITLE

    def update_view(self) -> None:
        """Keep within the list, say how much of it is seen, and draw."""
        self.scroll_rows(0)
        self.set_titles(self.describe_title(), self.describe_position())
        self.refresh()

    def describe_position(self) -> str:
        """Which rows are seen, when not all are."""
        if self.num_rows <= self.num_visible or not self.num_visible:
            return ""
        return f"{self.top + 1}–{min(self.top + self.num_visible, self.num_rows)} of {self.num_rows}"

    def scroll_rows(self, count: int) -> None:
        """Move the rows that are seen."""
        self.top = max(min(self.top + count, self.num_rows - self.num_visible), 0)

    def on_mouse_scroll_down(self) -> None:
        """Scroll by three rows."""
        self.scroll_rows(3)
        self.update_view()

    def on_mouse_scroll_up(self) -> None:
        """Scroll by three rows."""
        self.scroll_rows(-3)
        self.update_view()

    def on_resize(self) -> None:
        """Fit the rows to the new size."""
        self.update_view()
