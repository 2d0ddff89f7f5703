"""The pool map: every block, or as few blocks a cell as fit."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip

from kvtop.map_layout import LIT, Cells, Look, MapLayout, lay_out
from kvtop.palette import Palette
from kvtop.view_model import ViewModel
from kvtop.widgets.line_pane import LinePane

GLYPHS = {
    Look.OUTSIDE: " ",
    Look.NULL: "×",
    Look.FREE: "·",
    Look.CACHED_FREE: "▒",
    Look.USED_THIRD: "▫",
    Look.USED_TWO_THIRDS: "▪",
    Look.USED: "■",
    Look.SHARED_THIRD: "◇",
    Look.SHARED_TWO_THIRDS: "◈",
    Look.SHARED: "◆",
}
LEGEND = "[$kv-free]·[/] free  [$kv-cached]▒[/] cached  [$kv-used]{used}[/] used  [$kv-shared]{shared}[/] shared"


class PoolMap(LinePane, can_focus=True):
    """Draws the pool's blocks by id; redraws only the rows that look different."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1, 0)", "Block", show=False, id="map.left", tooltip="Map: move the block cursor"),
        Binding("right", "move(1, 0)", "Block", show=False, id="map.right", tooltip="Map: move the block cursor"),
        Binding("up", "move(0, -1)", "Block", show=False, id="map.up", tooltip="Map: move the block cursor"),
        Binding("down", "move(0, 1)", "Block", show=False, id="map.down", tooltip="Map: move the block cursor"),
        Binding("enter", "pick_owner", "Owner", id="map.owner", tooltip="Map: select the next owner of the block"),
    ]

    @dataclass
    class CursorMoved(Message):
        """Another block is looked at."""

        block_id: int | None

    @dataclass
    class OwnerWanted(Message):
        """A request that holds this block is to be selected."""

        block_id: int

    def __init__(self, model: ViewModel, *, id: str = "map") -> None:
        super().__init__(model, id=id, title="1 Map")
        self.grid: MapLayout | None = None
        self._cells: Cells = np.zeros((0, 0), dtype=np.uint8)
        self._runs: dict[tuple[int, int], list[Segment]] = {}
        self._styles: dict[int, Style] = {}
        self._drawn_cursor: int | None = None

    def notify_style_update(self) -> None:
        """The theme may have changed."""
        super().notify_style_update()
        self._runs.clear()
        self._styles.clear()

    def update_view(self) -> None:
        """Work out the cells, and redraw the rows that changed."""
        picture = self.model.picture
        grid = None if picture is None else lay_out(picture.facts.num_blocks, self.size.width, self.size.height)
        if picture is None or grid is None:
            self.refresh()
            return
        lit = np.zeros(picture.facts.num_blocks, dtype=np.bool_)
        if self.model.selected is not None:
            lit[self.model.selected.block_table] = True
        cells = grid.cells(picture.states, lit)
        if grid != self.grid:
            self.grid = grid
            self._cells = cells
            self._runs.clear()
            self.refresh()
        else:
            changed = np.flatnonzero((cells != self._cells).any(axis=1)).tolist()
            self._cells = cells
            self._refresh_rows([*changed, *self._cursor_rows()])
        self._drawn_cursor = self.model.cursor
        self._describe()

    def draw_line(self, y: int, width: int) -> Strip:
        """One line of the grid."""
        grid = self.grid
        if grid is None:
            return self._draw_waiting(y, width)
        row, line_of_row = divmod(y, grid.row_height)
        if line_of_row or row >= grid.rows:
            return Strip.blank(width, self.base)
        segments = self._draw_row_ids(row) if grid.shows_ids else self._draw_row(row)
        room = width - grid.id_width - grid.columns * grid.cell_width
        if room > 0:
            segments.append(Segment(" " * room, self.base))
        return Strip(segments, width)

    def action_move(self, columns: int, rows: int) -> None:
        """Move the block cursor by cells."""
        grid = self.grid
        if grid is None:
            return
        if self.model.cursor is None:
            target = 0
        else:
            target = self.model.cursor + columns * grid.blocks_per_cell + rows * grid.blocks_per_row
        if 0 <= target < grid.num_blocks:
            self.post_message(self.CursorMoved(target))

    def action_pick_owner(self) -> None:
        """Ask for an owner of the block under the cursor."""
        if self.model.cursor is not None:
            self.post_message(self.OwnerWanted(self.model.cursor))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to a block."""
        offset = event.get_content_offset(self)
        if offset is not None and self.grid is not None:
            block_id = self.grid.block_at(offset.x, offset.y)
            if block_id is not None:
                self.post_message(self.CursorMoved(block_id))

    def on_resize(self) -> None:
        """Lay the pool out anew."""
        self.update_view()

    def _describe(self) -> None:
        grid = self.grid
        assert grid is not None, "only a grid is described"
        many = grid.blocks_per_cell > 1
        scale = f"1 cell = {grid.blocks_per_cell} blocks" if many else "1 cell = 1 block"
        # The fill level is what a third glyph of the same colour tells.
        legend = LEGEND.format(used="▫▪■" if many else "■", shared="◇◈◆" if many else "◆")
        selected = self.model.selected
        lit = f"  [$kv-lit on $kv-lit-back] ■ [/] {selected.request_id}" if selected is not None else ""
        self.set_titles(f"1 Map  [$kv-muted]{scale} · by id[/]", legend + lit)

    def _refresh_rows(self, rows: list[int]) -> None:
        grid = self.grid
        assert grid is not None, "rows belong to a grid"
        if rows:  # without a region, refresh would mean all
            self.refresh(*(Region(0, row * grid.row_height, self.size.width, 1) for row in set(rows)))

    def _cursor_rows(self) -> list[int]:
        if self.grid is None or self._drawn_cursor == self.model.cursor:
            return []
        cursors = (self._drawn_cursor, self.model.cursor)
        return [self.grid.cell_of(cursor)[0] for cursor in cursors if cursor is not None]

    def _draw_waiting(self, y: int, width: int) -> Strip:
        line = self.line(width)
        if y == 0:
            no_room = self.model.picture is not None
            line.add(
                " too small for the map" if no_room else " waiting for the engine's next step …", self.palette.muted
            )
        return line.strip()

    def _draw_row(self, row: int) -> list[Segment]:
        grid = self.grid
        assert grid is not None, "a row belongs to a grid"
        segments: list[Segment] = []
        if grid.id_width:
            first = row * grid.blocks_per_row
            segments.append(Segment(f"{first:>{grid.id_width - 1}} ", self.palette.faint))
        cells = self._cells[row]
        is_start = np.empty(len(cells), dtype=np.bool_)
        is_start[0] = True
        np.not_equal(cells[1:], cells[:-1], out=is_start[1:])
        cursor = self._cursor_column(row)
        if cursor is not None:
            is_start[cursor : cursor + 2] = True
        starts = np.flatnonzero(is_start)
        counts = np.diff(starts, append=len(cells)).tolist()
        runs = self._runs
        for key in zip(cells[starts].tolist(), counts, strict=True):
            segments += runs.get(key) or self._make_run(*key)
        if cursor is not None:
            self._mark_cursor(segments, starts.tolist().index(cursor))
        return segments

    def _draw_row_ids(self, row: int) -> list[Segment]:
        """Each block with its id: for pools so small that there is room."""
        grid = self.grid
        assert grid is not None, "a row belongs to a grid"
        segments: list[Segment] = []
        cursor = self._cursor_column(row)
        for column, look in enumerate(self._cells[row].tolist()):
            if look == Look.OUTSIDE:
                segments.append(Segment(" " * grid.cell_width, self.base))
                continue
            label = f"{GLYPHS[Look(look % LIT)]} {row * grid.columns + column:<{grid.cell_width - 4}}"
            style = self.palette.cursor if column == cursor else self._style(look)
            segments += (Segment(f" {label}", style), Segment(" ", self.base))
        return segments

    def _cursor_column(self, row: int) -> int | None:
        if self.grid is None or self.model.cursor is None:
            return None
        cursor_row, column = self.grid.cell_of(self.model.cursor)
        return column if cursor_row == row else None

    def _mark_cursor(self, segments: list[Segment], run: int) -> None:
        """Redraw the one cell under the cursor, which is a run of its own."""
        grid = self.grid
        assert grid is not None, "the cursor is in a grid"
        index = run * (2 if grid.cell_width > 1 else 1) + (1 if grid.id_width else 0)
        segments[index] = Segment(segments[index].text, self.palette.cursor)

    def _make_run(self, look: int, count: int) -> list[Segment]:
        """So many equal cells in a row, the gap after them plain; made once for each look and count."""
        grid = self.grid
        assert grid is not None, "cells are in a grid"
        gap = " " * (grid.cell_width - 1)
        run = [Segment(gap.join(GLYPHS[Look(look % LIT)] * count), self._style(look))]
        if gap:
            run.append(Segment(gap, self.base))
        self._runs[look, count] = run
        return run

    def _style(self, look: int) -> Style:
        style = self._styles.get(look)
        if style is None:
            style = self._styles[look] = _style_of(look, self.palette)
        return style


def _style_of(look: int, palette: Palette) -> Style:
    plain = look % LIT
    if plain >= Look.SHARED_THIRD:
        style = palette.shared
    elif plain >= Look.USED_THIRD:
        style = palette.used
    else:
        style = {Look.CACHED_FREE: palette.cached, Look.NULL: palette.null}.get(Look(plain), palette.free)
    return palette.lit if look >= LIT else style
