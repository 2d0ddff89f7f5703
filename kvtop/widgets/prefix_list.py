"""The prefix tree, by blocks held: what is shared, by how many requests, and what is only cached."""

from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from kvtop import formats
from kvtop.pacing import Pacer
from kvtop.picture import Picture, runs_of
from kvtop.prefix_tree import PrefixTree, Segment
from kvtop.view_model import ViewModel
from kvtop.widgets.foreign_text import printable
from kvtop.widgets.line_pane import Line, ListPane

TREE_SHARE = 0.01
"""Of the time, at most, to keep the tree up to date."""
OPEN_DEPTH = 2
"""Branches below this depth are closed until they are opened."""
MAX_NAMED_OWNERS = 3


@dataclass(frozen=True, slots=True)
class Row:
    """One segment as listed."""

    index: int
    is_open: bool


class PrefixList(ListPane):
    """A tree of segments: blocks that follow one another without a branch."""

    HEADER_LINES = 1
    NUMBERED_TITLE = "3 Prefixes"
    TAKES_TURNS_WITH = "2 Requests"
    HELP = (
        "Each line is a run of blocks that follow one another and are held by the same number of requests: how many\n"
        "blocks there are from here on, how many in this line, and who holds them. ◆ several requests, ■ one, ▒ only\n"
        "cached. An orphan begins where the block before it is not cached any more, or came before the watching began."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="prefix.up", tooltip="Choose a prefix"),
        Binding("down,j", "move(1)", "Down", show=False, id="prefix.down", tooltip="Choose a prefix"),
        Binding("right,l", "open(True)", "Open", show=False, id="prefix.open", tooltip="Open, close a branch"),
        Binding("left,h", "open(False)", "Close", show=False, id="prefix.close", tooltip="Open, close a branch"),
        Binding("enter", "pick", "First block", id="prefix.pick", tooltip="Put the map's cursor on its first block"),
    ]

    @dataclass
    class Picked(Message):
        """The block with which a prefix begins is to be looked at."""

        block_id: int

    def __init__(self, model: ViewModel, *, id: str = "prefixes") -> None:
        super().__init__(model, id=id)
        self._picture: Picture | None = None
        """What the tree was made from."""
        self._tree: PrefixTree | None = None
        self._rows: list[Row] = []
        self._cursor = 0
        self._toggled: set[int] = set()
        """First blocks of segments that are open or closed against the rule."""
        self._pace = Pacer(TREE_SHARE)

    @property
    def num_rows(self) -> int:
        """Segments that are not hidden below a closed one."""
        return len(self._rows)

    def update_view(self) -> None:
        """Take the tree of the new picture, if it is time for one."""
        picture = self.model.picture
        if self.model.server is not None:
            self._tree = self.model.server.events.tree
            self._rows = self._list_rows() if self._tree is not None else []
        elif picture is None:
            self._picture, self._tree, self._rows = None, None, []
        elif picture is not self._picture and self._pace.is_due:
            with self._pace.work():
                self._picture, self._tree = picture, picture.tree
                self._rows = self._list_rows()
        else:
            self.set_titles(self.describe_title(), str(self.border_subtitle or ""))
            return
        self._cursor = max(min(self._cursor, len(self._rows) - 1), 0)
        super().update_view()

    def action_move(self, count: int) -> None:
        """Choose another line."""
        self._cursor = max(min(self._cursor + count, len(self._rows) - 1), 0)
        self._show_cursor()

    def action_open(self, wanted: bool) -> None:
        """Open or close a branch; close the branch above where there is nothing to close."""
        if self._tree is None or not self._rows:
            return
        row = self._rows[self._cursor]
        segment = self._tree.segments[row.index]
        if wanted == row.is_open and not wanted and segment.parent >= 0:
            self._cursor = next(number for number, other in enumerate(self._rows) if other.index == segment.parent)
        elif segment.children and wanted != row.is_open:
            self._toggled ^= {segment.first}
            self._rows = self._list_rows()
        self._show_cursor()

    def action_pick(self) -> None:
        """Look at the first block."""
        if self._tree is not None and self._rows and not self.model.is_server:
            self.post_message(self.Picked(self._tree.segments[self._rows[self._cursor].index].first))

    def on_click(self, event: events.Click) -> None:
        """Choose the line, and open or close it if it was chosen."""
        offset = event.get_content_offset(self)
        if offset is None or offset.y < self.HEADER_LINES:
            return
        row = self.top + offset.y - self.HEADER_LINES
        if row < len(self._rows):
            was_chosen = row == self._cursor
            self._cursor = row
            if was_chosen:
                self.action_open(not self._rows[row].is_open)
            self._show_cursor()
            self.action_pick()

    def describe_empty(self) -> str:
        """Why there is no row."""
        server = self.model.server
        if server is not None:
            return server.events.note or "no event has come yet"
        return "nothing is held or cached" if self.model.picture is not None else "no step yet"

    def describe_position(self) -> str:
        """How much is in the tree, and what sharing saves."""
        if self._tree is None or not self._rows:
            return ""
        saved = sum(segment.num_saved for segment in self._tree.segments)
        orphans = sum(segment.is_orphan for segment in self._tree.segments)
        parts = [f"sharing saves {formats.plural(saved, 'block')}"] if saved else []
        if orphans:
            parts.append(f"{formats.plural(orphans, 'orphan')}")
        position = super().describe_position()
        return " · ".join([*parts, position] if position else parts)

    def draw_header(self, width: int) -> Strip:
        """The titles of the columns."""
        return self.line(width).add(" blocks   here  prefix", self.palette.muted).strip()

    def draw_row(self, row: int, width: int) -> Strip:
        """One segment."""
        tree, palette = self._tree, self.palette
        assert tree is not None, "rows come from a tree"
        is_chosen = row == self._cursor and self.has_focus
        listed = self._rows[row]
        segment = tree.segments[listed.index]
        line = self.line(width)
        line.add("▌" if is_chosen else " ", palette.focus)
        line.add(f"{segment.num_blocks_below:>6,} {segment.num_blocks:>6,}  ", palette.text)
        line.add("  " * segment.depth, palette.faint)
        line.add(("▾ " if listed.is_open else "▸ ") if segment.children else "  ", palette.muted)
        self._draw_holders(line, segment)
        if tree.labels:
            line.add(printable(tree.labels[listed.index]), palette.text)
        else:
            self._draw_blocks(line, segment, tree.blocks_of(listed.index))
        return line.strip(palette.selected if is_chosen else None)

    def _draw_holders(self, line: Line, segment: Segment) -> None:
        palette = self.palette
        if segment.num_holders is None:
            line.add("▒ ", palette.cached)
        elif segment.num_holders > 1:
            line.add(f"◆ × {segment.num_holders:,} ", palette.shared)
        elif segment.num_holders == 1:
            line.add("■ ", palette.used)
        else:
            line.add("▒ cached ", palette.cached)
        if segment.is_orphan:
            line.add("orphan ", palette.warn)

    def _draw_blocks(self, line: Line, segment: Segment, block_ids: list[int]) -> None:
        """Which blocks, and who holds them."""
        palette = self.palette
        assert self._picture is not None, "blocks with ids come from a picture"
        owners = [request.request_id for request, _, _ in self._picture.block(segment.first).owners]
        line.add(_describe_ids(block_ids) + " ", palette.muted)
        line.add(" ".join(owners[:MAX_NAMED_OWNERS]), palette.text)
        if len(owners) > MAX_NAMED_OWNERS:
            line.add(f" … {len(owners) - MAX_NAMED_OWNERS:,} more", palette.muted)

    def _list_rows(self) -> list[Row]:
        """The segments that are not hidden, from the top."""
        tree = self._tree
        assert tree is not None, "rows come from a tree"
        rows: list[Row] = []
        stack = list(reversed(tree.roots))
        while stack:
            index = stack.pop()
            segment = tree.segments[index]
            is_open = bool(segment.children) and (segment.depth < OPEN_DEPTH) != (segment.first in self._toggled)
            rows.append(Row(index, is_open))
            if is_open:
                stack.extend(reversed(segment.children))
        return rows

    def _show_cursor(self) -> None:
        self.top = min(self.top, self._cursor)
        self.top = max(self.top, self._cursor - self.num_visible + 1)
        super().update_view()


def _describe_ids(block_ids: list[int]) -> str:
    runs = runs_of(block_ids)
    texts = [str(first) if first == last else f"{first}–{last}" for first, last in runs[:2]]
    return " ".join(texts) + (" …" if len(runs) > 2 else "")
