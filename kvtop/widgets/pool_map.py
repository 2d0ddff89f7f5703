"""The pool map: every block, or as few blocks a cell as fit."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip

from kvengine.telemetry.schema import RequestState
from kvtop.glyphs import PINNED_GLYPH
from kvtop.map_cells import LIT, LOOK_MASK, TINT_SHIFT, CellBook, Cells, Look, looks_of, tints_of
from kvtop.map_layout import MapLayout, lay_out
from kvtop.map_order import (
    NUM_OWNER_TINTS,
    SEVERAL_OWNERS,
    BlockOrder,
    MapColour,
    MapOrder,
    order_blocks,
    tints_of_blocks,
)
from kvtop.pacing import Pacer
from kvtop.palette import Palette
from kvtop.picture import Picture
from kvtop.pool import Pool
from kvtop.view_model import Phase, ViewModel
from kvtop.widgets.foreign_text import as_markup
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
    Look.PINNED: PINNED_GLYPH,
}
OWNER_SIGNS = "ABCDEFGHIJKL◆"
RAMP_SIGNS = "123456"
_FREE_AND_CACHED = "[$kv-free]·[/] free  [$kv-cached]▒[/] cached"
LEGENDS = {
    MapColour.STATE: _FREE_AND_CACHED + "  [$kv-used]{used}[/] used  [$kv-shared]{shared}[/] shared",
    MapColour.OWNER: _FREE_AND_CACHED + "  [$kv-owner-1]A[/][$kv-owner-2]B[/][$kv-owner-3]C[/]… owner  ◆ several",
    MapColour.AGE: "touched [$kv-ramp-6]6[/] now  [$kv-ramp-5]5[/] ≤10  [$kv-ramp-4]4[/] ≤100  [$kv-ramp-3]3[/] ≤1000"
    "  [$kv-ramp-2]2[/] steps ago or more  [$kv-ramp-1]1[/] before",
    MapColour.SHARERS: "owners [$kv-ramp-1]1[/] one  [$kv-ramp-2]2[/] two  [$kv-ramp-3]3[/] ≤4  [$kv-ramp-4]4[/] ≤8"
    "  [$kv-ramp-5]5[/] ≤16  [$kv-ramp-6]6[/] more",
}
PAGE_ROWS = 10
COUNT_BITS = 16
MAX_COUNT = 2**COUNT_BITS - 1
"""A run of cells has its count in the low bits of its key, the cell above."""
_FIRST = np.zeros(1, dtype=np.int64)
ORDER_SHARE = 0.05
"""Of the time, at most, to keep a map in order: for 256 k blocks by prefix that is one order a second."""


class _Runs(dict[int, Segment]):
    """Segments by cell and count (see `COUNT_BITS`), each made when it is first asked for."""

    def __init__(self, make: Callable[[int], Segment]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: int) -> Segment:
        segment = self[key] = self._make(key)
        return segment


class PoolMap(LinePane, can_focus=True):
    """Draws the pool's blocks; redraws only the cells that look different."""

    HELP = (
        "Every block of the pool, or as few blocks a cell as fit: the border says how many. A cell of several blocks\n"
        "shows what most of them are, and how much of it is held. The cursor picks a block for the pane below it.\n"
        "The order by request, prefix or age puts together what belongs together; then the numbers at the left are\n"
        "places, not block ids."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1, 0)", "Left", show=False, id="map.left", tooltip="Move the block cursor"),
        Binding("right,l", "move(1, 0)", "Right", show=False, id="map.right", tooltip="Move the block cursor"),
        Binding("up,k", "move(0, -1)", "Up", show=False, id="map.up", tooltip="Move the block cursor"),
        Binding("down,j", "move(0, 1)", "Down", show=False, id="map.down", tooltip="Move the block cursor"),
        Binding(
            "pageup", f"move(0, -{PAGE_ROWS})", "Page up", show=False, id="map.page_up", tooltip="Ten rows up, down"
        ),
        Binding(
            "pagedown",
            f"move(0, {PAGE_ROWS})",
            "Page down",
            show=False,
            id="map.page_down",
            tooltip="Ten rows up, down",
        ),
        Binding("enter", "pick_owner", "Owner", id="map.owner", tooltip="Select the next owner of the block"),
        Binding("o", "order", "Order", id="map.order", tooltip="Order the blocks by id, request, prefix, age"),
        Binding("c", "colour", "Colour", id="map.colour", tooltip="Colour by state, owner, age, sharers"),
        Binding("z", "zoom(True)", "Zoom", id="map.closer", tooltip="Look closer, at more of the pool"),
        Binding(
            "Z", "zoom(False)", "Zoom out", show=False, id="map.further", tooltip="Look closer, at more of the pool"
        ),
    ]

    @dataclass
    class CursorMoved(Message):
        """Another block is looked at."""

        block_id: int | None

    @dataclass
    class Hovered(Message):
        """The mouse is over a block, or over none."""

        block_id: int | None

    @dataclass
    class OwnerWanted(Message):
        """A request that holds this block is to be selected."""

        block_id: int

    def __init__(self, model: ViewModel, *, id: str = "map") -> None:
        super().__init__(model, id=id, title="1 Map")
        self.grid: MapLayout | None = None
        self.top = 0
        """The row of the grid that is drawn first."""
        self._order: BlockOrder | None = None
        self._order_step = -1
        self._order_kind = MapOrder.ID
        self._order_pace = Pacer(ORDER_SHARE)
        self._book: CellBook | None = None
        self._cells: Cells = np.zeros((0, 0), dtype=np.uint16)
        self._runs = _Runs(self._make_run)
        self._styles: dict[int, Style] = {}
        self._drawn_cursor: int | None = None
        self._drawn_colour = MapColour.STATE

    def notify_style_update(self) -> None:
        """The theme may have changed."""
        super().notify_style_update()
        self._forget_drawings()

    def update_view(self) -> None:
        """Work out the cells, and redraw those that changed."""
        picture = self.model.picture
        grid = self._lay_out()
        if picture is None or grid is None:
            self.grid = None
            self.refresh()
            return
        self._keep_order(picture)
        cells = self._cells_of(picture, grid)
        cursor = self._place_of_cursor()
        if grid != self.grid or self.model.map_colour is not self._drawn_colour:
            self.grid, self._cells = grid, cells
            self._drawn_colour = self.model.map_colour
            self._show_from(self.top)
            self._forget_drawings()
            self.refresh()
        else:
            changed = cells != self._cells
            self._cells = cells
            self._refresh_cells(changed, cursor)
        self._drawn_cursor = cursor
        self._describe()

    def draw_line(self, y: int, width: int) -> Strip:
        """One line of the grid."""
        grid = self.grid
        if grid is None:
            return self._draw_waiting(y, width)
        row, line_of_row = divmod(y, grid.row_height)
        row += self.top
        if line_of_row or row >= grid.rows:
            return Strip.blank(width, self.base)
        segments = self._draw_row_ids(row) if grid.shows_ids else self._draw_row(row)
        room = width - grid.id_width - grid.columns * grid.cell_width
        if room > 0:
            segments.append(Segment(" " * room, self.base))
        return Strip(segments, width)

    # Keys and mouse.

    def action_move(self, columns: int, rows: int) -> None:
        """Move the block cursor by cells."""
        grid = self.grid
        if grid is None:
            return
        place = self._place_of_cursor()
        target = 0 if place is None else place + columns * grid.blocks_per_cell + rows * grid.blocks_per_row
        if 0 <= target < grid.num_blocks:
            self.model.cursor = self._block_at_place(target)  # at once: the next key goes on from there
            self.post_message(self.CursorMoved(self.model.cursor))

    def action_pick_owner(self) -> None:
        """Ask for an owner of the block under the cursor."""
        if self.model.cursor is not None:
            self.post_message(self.OwnerWanted(self.model.cursor))

    def action_order(self) -> None:
        """Show the blocks in the next order."""
        orders = list(MapOrder)
        self.model.map_order = orders[(orders.index(self.model.map_order) + 1) % len(orders)]
        self.show_cursor()

    def action_colour(self) -> None:
        """Let colours stand for the next thing."""
        colours = list(MapColour)
        self.model.map_colour = colours[(colours.index(self.model.map_colour) + 1) % len(colours)]
        self.update_view()

    def action_zoom(self, closer: bool) -> None:
        """Show half, or twice, as many blocks a cell; at last the whole pool."""
        grid = self.grid
        if grid is None:
            return
        whole = lay_out(grid.num_blocks, self.size.width, self.size.height)
        size = grid.blocks_per_cell // 2 if closer else grid.blocks_per_cell * 2
        is_whole = whole is None or size >= whole.blocks_per_cell
        self.model.blocks_per_cell = None if is_whole else max(size, 1)
        self.show_cursor()

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to a block."""
        block_id = self._block_under(event)
        if block_id is not None:
            self.post_message(self.CursorMoved(block_id))

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Tell of the block under the mouse."""
        self.post_message(self.Hovered(self._block_under(event)))

    def on_leave(self) -> None:
        """The mouse is over no block."""
        self.post_message(self.Hovered(None))

    def on_mouse_scroll_down(self) -> None:
        """Scroll by three rows."""
        self._show_from(self.top + 3)
        self.refresh()

    def on_mouse_scroll_up(self) -> None:
        """Scroll by three rows."""
        self._show_from(self.top - 3)
        self.refresh()

    def on_resize(self) -> None:
        """Lay the pool out anew."""
        self.update_view()

    def reveal(self, place: int) -> None:
        """Scroll so that a place of the map is seen."""
        grid = self.grid
        if grid is None:
            return
        row, _ = grid.cell_of(place)
        top = self.top
        self._show_from(min(max(top, row - grid.visible_rows + 1), row))
        if self.top != top:
            self.refresh()

    def show_cursor(self) -> None:
        """Draw the cursor where it stands now, and scroll to it."""
        self.update_view()
        place = self._place_of_cursor()
        if place is not None:
            self.reveal(place)

    def block_at(self, x: int, y: int) -> int | None:
        """The first block of the cell at a position of the content; None outside of the cells."""
        place = None if self.grid is None else self.grid.place_at(x, y, self.top)
        return None if place is None else self._block_at_place(place)

    # Places and cells.

    def _lay_out(self) -> MapLayout | None:
        picture = self.model.picture
        if picture is None:
            return None
        return lay_out(len(picture.pool), self.size.width, self.size.height, blocks_per_cell=self.model.blocks_per_cell)

    def _keep_order(self, picture: Picture) -> None:
        """Work the order out anew where blocks may have moved in it; of a large pool not with every picture."""
        kind = self.model.map_order
        has_moved = kind is not MapOrder.ID and picture.step != self._order_step and self._order_pace.is_due
        if kind is not self._order_kind or has_moved or self._is_order_of_other(picture):
            with self._order_pace.work():
                self._order = order_blocks(kind, picture)
            self._order_kind, self._order_step = kind, picture.step

    def _is_order_of_other(self, picture: Picture) -> bool:
        return self._order is not None and len(self._order.blocks) != len(picture.pool)

    def _cells_of(self, picture: Picture, grid: MapLayout) -> Cells:
        """The whole grid, [rows, columns]."""
        size, order = grid.blocks_per_cell, self._order
        looks = self._looks_by_id(picture, size) if order is None else _ordered_looks(picture.pool, order, size)
        cells = np.zeros(grid.rows * grid.columns, dtype=np.uint16)
        cells[: len(looks)] = looks
        tints = tints_of_blocks(self.model.map_colour, picture)
        if tints is not None:
            mixed = SEVERAL_OWNERS if self.model.map_colour is MapColour.OWNER else None
            cells[: len(looks)] |= tints_of(tints if order is None else tints[order.blocks], size, mixed=mixed)
        if self.model.selected is not None:
            lit = self._places_of(self.model.selected) // size
            cells[lit] |= np.uint16(LIT)
        return cells.reshape(grid.rows, grid.columns)

    def _looks_by_id(self, picture: Picture, blocks_per_cell: int) -> Cells:
        if self._book is None or not self._book.is_of(picture.pool, blocks_per_cell):
            self._book = CellBook(picture.pool, blocks_per_cell)
        return self._book.looks()

    def _places_of(self, request: RequestState) -> NDArray[np.int64]:
        blocks = np.array([block for table in request.tables for block in table if block], dtype=np.int64)
        return blocks if self._order is None else self._order.places[blocks]

    def _block_at_place(self, place: int) -> int:
        return place if self._order is None else int(self._order.blocks[place])

    def _place_of_cursor(self) -> int | None:
        cursor = self.model.cursor
        if cursor is None or self._order is None:
            return cursor
        return int(self._order.places[cursor])

    def _block_under(self, event: events.MouseEvent) -> int | None:
        offset = event.get_content_offset(self)
        return None if offset is None else self.block_at(offset.x, offset.y)

    def _show_from(self, top: int) -> None:
        grid = self.grid
        self.top = 0 if grid is None else max(min(top, grid.rows - grid.visible_rows), 0)

    # Drawing.

    def _forget_drawings(self) -> None:
        self._runs.clear()
        self._styles.clear()

    def _describe(self) -> None:
        grid, model = self.grid, self.model
        assert grid is not None, "only a grid is described"
        many = grid.blocks_per_cell > 1
        scale = f"1 cell = {grid.blocks_per_cell:,} blocks" if many else "1 cell = 1 block"
        colour = "" if model.map_colour is MapColour.STATE else f" · colour {model.map_colour}"
        seen = "" if grid.rows <= grid.visible_rows else f" · {self.top * 100 // grid.rows}%"
        # The fill level is what a third glyph of the same colour tells.
        legend = LEGENDS[model.map_colour].format(used="▫▪■" if many else "■", shared="◇◈◆" if many else "◆")
        selected = model.selected
        pinned = f"  [$kv-warn]{PINNED_GLYPH}[/] pinned" if self._shows_pinned else ""
        lit = f"  [$kv-lit on $kv-lit-back] ■ [/] {as_markup(selected.request_id)}" if selected is not None else ""
        self.set_titles(f"1 Map  [$kv-muted]{scale} · by {model.map_order}{colour}{seen}[/]", legend + pinned + lit)

    @property
    def _shows_pinned(self) -> bool:
        grid, picture = self.grid, self.model.picture
        return grid is not None and grid.blocks_per_cell == 1 and picture is not None and picture.pool.num_pinned > 0

    def _refresh_cells(self, changed: NDArray[np.bool_], cursor: int | None) -> None:
        """Redraw what lies between the first and the last changed cell of each row that is seen."""
        grid = self.grid
        assert grid is not None, "cells belong to a grid"
        if cursor != self._drawn_cursor:
            for place in (cursor, self._drawn_cursor):
                if place is not None:
                    changed[grid.cell_of(place)] = True
        seen = changed[self.top : self.top + grid.visible_rows]
        rows = np.flatnonzero(seen.any(axis=1))
        if not len(rows):
            return  # without a region, refresh would mean all
        first = seen[rows].argmax(axis=1).tolist()
        last = (grid.columns - 1 - seen[rows, ::-1].argmax(axis=1)).tolist()
        width, left, height = grid.cell_width, grid.id_width, grid.row_height
        self.refresh(
            *(
                Region(left + start * width, row * height, (end - start + 1) * width, 1)
                for row, start, end in zip(rows.tolist(), first, last, strict=True)
            )
        )

    def _draw_waiting(self, y: int, width: int) -> Strip:
        line = self.line(width)
        if y == 0:
            line.add(self._why_nothing(), self.palette.muted)
        return line.strip()

    def _why_nothing(self) -> str:
        if self.model.picture is not None:
            return " too small for the map"
        if self.model.status.phase is Phase.CHOOSING:
            return " waiting for an engine: `kvplan run PROFILE` starts one …"
        return " waiting for the engine's next step …"

    def _draw_row(self, row: int) -> list[Segment]:
        """Runs of equal cells, each made once: 12 us for a row of 150 runs."""
        grid = self.grid
        assert grid is not None, "a row belongs to a grid"
        cells = self._cells[row]
        is_border = cells[1:] != cells[:-1]
        cursor = self._cursor_column(row)
        if cursor is not None:
            is_border[max(cursor - 1, 0) : cursor + 1] = True
        borders = np.flatnonzero(is_border) + 1
        starts = np.concatenate((_FIRST, borders))
        counts = np.concatenate((borders, (len(cells),))) - starts
        keys: list[int] = (cells[starts].astype(np.int64) << COUNT_BITS | counts).tolist()
        runs = self._runs
        segments = [runs[key] for key in keys]
        if cursor is not None:
            index = starts.tolist().index(cursor)
            segments[index] = Segment(segments[index].text, self.palette.cursor)
        if grid.cell_width > 1:
            gap = Segment(" " * (grid.cell_width - 1), self.base)
            segments = [part for segment in segments for part in (segment, gap)]
        if grid.id_width:
            sign = "" if self._order is None else "+"
            place = f"{sign}{row * grid.blocks_per_row}".rjust(grid.id_width - 1) + " "
            segments.insert(0, Segment(place, self.palette.faint))
        return segments

    def _draw_row_ids(self, row: int) -> list[Segment]:
        """Each block with its id: for pools so small that there is room."""
        grid = self.grid
        assert grid is not None, "a row belongs to a grid"
        segments: list[Segment] = []
        cursor = self._cursor_column(row)
        for column, cell in enumerate(self._cells[row].tolist()):
            if cell == Look.OUTSIDE:
                segments.append(Segment(" " * grid.cell_width, self.base))
                continue
            block_id = self._block_at_place(row * grid.columns + column)
            label = f"{self._sign(cell)} {block_id:<{grid.cell_width - 4}}"
            style = self.palette.cursor if column == cursor else self._style(cell)
            segments += (Segment(f" {label}", style), Segment(" ", self.base))
        return segments

    def _cursor_column(self, row: int) -> int | None:
        place = self._place_of_cursor()
        if self.grid is None or place is None:
            return None
        cursor_row, column = self.grid.cell_of(place)
        return column if cursor_row == row else None

    def _make_run(self, key: int) -> Segment:
        """So many equal cells in a row, with the gaps between them."""
        grid = self.grid
        assert grid is not None, "cells are in a grid"
        cell, count = key >> COUNT_BITS, key & MAX_COUNT
        gap = " " * (grid.cell_width - 1)
        return Segment(gap.join(self._sign(cell) * count), self._style(cell))

    def _sign(self, cell: int) -> str:
        tint = cell >> TINT_SHIFT
        if not tint:
            return GLYPHS[Look(cell & LOOK_MASK)]
        return OWNER_SIGNS[tint - 1] if self.model.map_colour is MapColour.OWNER else RAMP_SIGNS[tint - 1]

    def _style(self, cell: int) -> Style:
        style = self._styles.get(cell)
        if style is None:
            style = self._styles[cell] = _style_of(cell, self.model.map_colour, self.palette)
        return style


def _ordered_looks(pool: Pool, order: BlockOrder, blocks_per_cell: int) -> Cells:
    looks = looks_of(pool.states[order.blocks], blocks_per_cell)
    if pool.num_pinned and blocks_per_cell == 1:
        looks[pool.is_pinned(order.blocks)] = Look.PINNED
    return looks


def _style_of(cell: int, colour: MapColour, palette: Palette) -> Style:
    if cell & LIT:
        return palette.lit
    tint, look = cell >> TINT_SHIFT, Look(cell & LOOK_MASK)
    if tint:
        tinted = palette.owners if colour is MapColour.OWNER else palette.ramp
        return tinted[tint - 1]
    if look is Look.PINNED:
        return palette.warn
    if look >= Look.SHARED_THIRD:
        return palette.shared
    if look >= Look.USED_THIRD:
        return palette.used
    return {Look.CACHED_FREE: palette.cached, Look.NULL: palette.null}.get(look, palette.free)


assert len(OWNER_SIGNS) == NUM_OWNER_TINTS + 1, "each owner has its own sign, and so have several"
