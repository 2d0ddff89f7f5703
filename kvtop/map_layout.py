"""Where each block of the pool is drawn: the grid of cells, and the part of it that is seen."""

from dataclasses import dataclass

from kvengine.units import cdiv

MIN_WIDTH_FOR_IDS = 44
"""Columns from which a row begins with the id of its first block."""
ROW_MULTIPLES = (8, 4, 1)
"""A row holds a multiple of the first of these that fits, so that ids are easy to count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapLayout:
    """A grid of cells for a pool. A place is where a block stands in the order of the map; by id, that is its id."""

    num_blocks: int
    columns: int
    """Cells in a row."""
    cell_width: int
    """Terminal columns of a cell, the gap after it included."""
    row_height: int
    """Terminal lines of a row, the gap below it included."""
    blocks_per_cell: int
    id_width: int
    """Terminal columns before the first cell, for the place of the row's first block; 0 for none."""
    visible_rows: int
    """Rows that fit."""
    shows_ids: bool = False
    """There is room for the id of each block in its cell."""

    @property
    def num_cells(self) -> int:
        """Cells that stand for any block."""
        return cdiv(self.num_blocks, self.blocks_per_cell)

    @property
    def rows(self) -> int:
        """Rows with any cell."""
        return cdiv(self.num_cells, self.columns)

    @property
    def blocks_per_row(self) -> int:
        """Blocks between the first of a row and the first of the next."""
        return self.columns * self.blocks_per_cell

    def cell_of(self, place: int) -> tuple[int, int]:
        """Row and column of a place."""
        return divmod(place // self.blocks_per_cell, self.columns)

    def place_at(self, x: int, y: int, top: int = 0) -> int | None:
        """The first place of the cell at a terminal position; None outside of the cells.

        Args:
            x: Terminal column.
            y: Terminal line.
            top: The row that is drawn first.
        """
        column, row = (x - self.id_width) // self.cell_width, top + y // self.row_height
        if not 0 <= column < self.columns:
            return None
        place = (row * self.columns + column) * self.blocks_per_cell
        return place if 0 <= place < self.num_blocks else None


def lay_out(num_blocks: int, width: int, height: int, *, blocks_per_cell: int | None = None) -> MapLayout | None:
    """The grid in which a pool is best seen in so many columns and lines; None if there is no room at all.

    Args:
        num_blocks: Blocks in the pool.
        width: Terminal columns.
        height: Terminal lines.
        blocks_per_cell: How close to look; None for the whole pool, one block a cell if it fits, as large as fits.
    """
    if width < 1 or height < 1 or num_blocks < 1:
        return None
    id_width = len(str(num_blocks - 1)) + 2 if width >= MIN_WIDTH_FOR_IDS else 0
    room = width - id_width
    fit = cdiv(num_blocks, room * height)
    if blocks_per_cell is None or blocks_per_cell >= fit:
        whole = _lay_out_one_by_one(num_blocks, width, height, id_width) if fit == 1 else None
        if whole is not None:
            return whole
        blocks_per_cell, columns = fit, room
    else:
        columns = room if blocks_per_cell > 1 else _round_columns(room, num_blocks)
    return MapLayout(
        num_blocks=num_blocks,
        columns=columns,
        cell_width=1,
        row_height=1,
        blocks_per_cell=blocks_per_cell,
        id_width=id_width,
        visible_rows=height,
    )


def _lay_out_one_by_one(num_blocks: int, width: int, height: int, id_width: int) -> MapLayout | None:
    """The largest grid of one block a cell that shows the whole pool."""
    labelled = len(str(num_blocks - 1)) + 4
    for cell_width, row_height in ((labelled, 2), (labelled, 1), (2, 1), (1, 1)):
        columns = _round_columns((width - id_width) // cell_width, num_blocks)
        if columns and cdiv(num_blocks, columns) * row_height <= height + row_height - 1:
            shows_ids = cell_width == labelled
            return MapLayout(
                num_blocks=num_blocks,
                columns=columns,
                cell_width=cell_width,
                row_height=row_height,
                blocks_per_cell=1,
                id_width=0 if shows_ids else id_width,
                visible_rows=cdiv(height, row_height),
                shows_ids=shows_ids,
            )
    return None


def _round_columns(columns: int, num_blocks: int) -> int:
    for multiple in ROW_MULTIPLES:
        if columns >= 2 * multiple or multiple == 1:
            return min(columns // multiple * multiple, cdiv(num_blocks, multiple) * multiple)
    return columns
