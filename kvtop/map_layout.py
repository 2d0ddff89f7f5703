"""Where each block of the pool is drawn, and what a cell looks like that stands for several."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from kvengine.telemetry.state import BlockState, BlockStates
from kvengine.units import cdiv

Cells = NDArray[np.uint8]

MIN_WIDTH_FOR_IDS = 44
"""Columns from which a row begins with the id of its first block."""
ROW_MULTIPLES = (8, 4, 1)
"""A row holds a multiple of the first of these that fits, so that ids are easy to count."""


class Look(IntEnum):
    """How a cell is drawn. A cell of one block is never less than full."""

    OUTSIDE = 0
    NULL = 1
    FREE = 2
    CACHED_FREE = 3
    USED_THIRD = 4
    USED_TWO_THIRDS = 5
    USED = 6
    SHARED_THIRD = 7
    SHARED_TWO_THIRDS = 8
    SHARED = 9


LIT = 16
"""Added to a look: the cell holds a block of the selected request."""

_LOOK_OF_STATE = np.zeros(8, dtype=np.uint8)
_LOOK_OF_STATE[BlockState.NULL] = Look.NULL
_LOOK_OF_STATE[BlockState.FREE] = Look.FREE
_LOOK_OF_STATE[BlockState.CACHED_FREE] = Look.CACHED_FREE
_LOOK_OF_STATE[BlockState.USED] = Look.USED
_LOOK_OF_STATE[BlockState.SHARED] = Look.SHARED


@dataclass(frozen=True, slots=True, kw_only=True)
class MapLayout:
    """A grid of cells for a pool."""

    num_blocks: int
    columns: int
    """Cells in a row."""
    cell_width: int
    """Terminal columns of a cell, the gap after it included."""
    row_height: int
    """Terminal lines of a row, the gap below it included."""
    blocks_per_cell: int
    id_width: int
    """Terminal columns before the first cell, for the id of the row's first block; 0 for none."""
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

    def cell_of(self, block_id: int) -> tuple[int, int]:
        """Row and column of a block."""
        return divmod(block_id // self.blocks_per_cell, self.columns)

    def block_at(self, x: int, y: int) -> int | None:
        """The first block of the cell at a terminal position; None outside of the cells."""
        column, row = (x - self.id_width) // self.cell_width, y // self.row_height
        if not 0 <= column < self.columns:
            return None
        block_id = (row * self.columns + column) * self.blocks_per_cell
        return block_id if 0 <= block_id < self.num_blocks else None

    def cells(self, states: BlockStates, lit: NDArray[np.bool_] | None = None) -> Cells:
        """The look of each cell, [rows, columns].

        Args:
            states: By block id.
            lit: Which blocks belong to the selected request.
        """
        looks = _LOOK_OF_STATE[states] if self.blocks_per_cell == 1 else self._gather(states)
        if lit is not None:
            starts = np.arange(0, self.num_blocks, self.blocks_per_cell)
            looks = looks + np.logical_or.reduceat(lit, starts).astype(np.uint8) * np.uint8(LIT)
        cells = np.zeros(self.rows * self.columns, dtype=np.uint8)
        cells[: len(looks)] = looks
        return cells.reshape(self.rows, self.columns)

    def _gather(self, states: BlockStates) -> Cells:
        """One look for each run of `blocks_per_cell` blocks, the last of which may be shorter."""
        size, num_cells = self.blocks_per_cell, self.num_cells
        # What is missing in the last cell is filled up with null blocks, which are not counted.
        padded = np.full(num_cells * size, BlockState.NULL, dtype=np.uint8)
        padded[: self.num_blocks] = states
        rows = padded.reshape(num_cells, size)
        num_null = np.count_nonzero(rows == BlockState.NULL, axis=1)
        num_held = np.count_nonzero(rows >= BlockState.USED, axis=1)
        num_shared = np.count_nonzero(rows == BlockState.SHARED, axis=1)
        num_cached = np.count_nonzero(rows == BlockState.CACHED_FREE, axis=1)
        num_real = size - num_null

        looks = np.full(num_cells, Look.FREE, dtype=np.uint8)
        looks[num_real == 0] = Look.NULL
        looks[(num_cached * 2 >= num_real) & (num_cached > 0)] = Look.CACHED_FREE
        thirds = -(-3 * num_held // np.maximum(num_real, 1))
        base = np.where(num_shared * 2 >= num_held, Look.SHARED_THIRD, Look.USED_THIRD)
        return np.where(num_held > 0, base + thirds - 1, looks).astype(np.uint8)


def lay_out(num_blocks: int, width: int, height: int) -> MapLayout | None:
    """The grid in which a pool is best seen in so many columns and lines; None if there is no room at all.

    One block a cell, as large as fits; else as few blocks a cell as fit.
    """
    if width < 1 or height < 1 or num_blocks < 1:
        return None
    id_width = len(str(num_blocks - 1)) + 2 if width >= MIN_WIDTH_FOR_IDS else 0
    room = width - id_width
    labelled = len(str(num_blocks - 1)) + 4
    for cell_width, row_height in ((labelled, 2), (labelled, 1), (2, 1), (1, 1)):
        columns = _round_columns(room // cell_width, num_blocks)
        if columns and cdiv(num_blocks, columns) * row_height <= height + row_height - 1:
            shows_ids = cell_width == labelled
            return MapLayout(
                num_blocks=num_blocks,
                columns=columns,
                cell_width=cell_width,
                row_height=row_height,
                blocks_per_cell=1,
                id_width=0 if shows_ids else id_width,
                shows_ids=shows_ids,
            )
    return MapLayout(
        num_blocks=num_blocks,
        columns=room,
        cell_width=1,
        row_height=1,
        blocks_per_cell=cdiv(num_blocks, room * height),
        id_width=id_width,
    )


def _round_columns(columns: int, num_blocks: int) -> int:
    for multiple in ROW_MULTIPLES:
        if columns >= 2 * multiple or multiple == 1:
            return min(columns // multiple * multiple, cdiv(num_blocks, multiple) * multiple)
    return columns
