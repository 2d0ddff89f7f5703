"""What each cell of the map looks like: a sign for what it holds, a tint, and whether it is lit.

A cell of one block shows that block. A cell of several shows what most of them are, and how much of it is held.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from kvengine.telemetry.block_book import BlockIds
from kvengine.telemetry.state import BlockState, BlockStates
from kvtop.pool import KEPT_MOVES, Moves, Pool

Cells = NDArray[np.uint16]
Tints = NDArray[np.uint8]


class Look(IntEnum):
    """The sign of a cell. A cell of one block is never less than full."""

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
    PINNED = 10
    """One block that a transfer reads; of several blocks in a cell their states alone tell."""


LOOK_MASK = 15
LIT = 16
"""Added to a look: the cell holds a block of the selected request."""
TINT_SHIFT = 5
"""A tint stands above look and light; 0 is the colour of the state."""

_NUM_STATES = 5
_LOOK_OF_STATE = np.zeros(_NUM_STATES, dtype=np.uint16)
_LOOK_OF_STATE[BlockState.NULL] = Look.NULL
_LOOK_OF_STATE[BlockState.FREE] = Look.FREE
_LOOK_OF_STATE[BlockState.CACHED_FREE] = Look.CACHED_FREE
_LOOK_OF_STATE[BlockState.USED] = Look.USED
_LOOK_OF_STATE[BlockState.SHARED] = Look.SHARED

_LANES = (BlockState.NULL, BlockState.CACHED_FREE, BlockState.USED, BlockState.SHARED)
_LANE_BITS = 16
MAX_BLOCKS_PER_CELL = 2**_LANE_BITS - 1
_LANE_OF_STATE = np.zeros(_NUM_STATES, dtype=np.uint64)
"""A block counts as one in the lane of its state, so that one sum counts the blocks of a cell by state: 4 M blocks in
8 ms. Free blocks are what is left."""
for _lane, _state in enumerate(_LANES):
    _LANE_OF_STATE[_state] = 1 << (_LANE_BITS * _lane)

Counts = NDArray[np.int32]
"""[state, cell]: blocks of each state in each cell."""


def looks_of(states: BlockStates, blocks_per_cell: int) -> Cells:
    """The look of each cell, from the states of the blocks in the order of the map."""
    if blocks_per_cell == 1:
        return _LOOK_OF_STATE[states]
    return looks_of_counts(count_states(states, blocks_per_cell))


def count_states(states: BlockStates, blocks_per_cell: int) -> Counts:
    """How many blocks of each state each cell has; the last cell may have fewer blocks."""
    starts = np.arange(0, len(states), blocks_per_cell)
    sums = np.add.reduceat(_LANE_OF_STATE[states], starts)
    counts = np.zeros((_NUM_STATES, len(starts)), dtype=np.int32)
    for lane, state in enumerate(_LANES):
        counts[state] = sums >> np.uint64(_LANE_BITS * lane) & np.uint64(MAX_BLOCKS_PER_CELL)
    counts[BlockState.FREE] = blocks_per_cell - counts.sum(axis=0)
    counts[BlockState.FREE, -1] += len(states) - len(starts) * blocks_per_cell
    return counts


def looks_of_counts(counts: Counts) -> Cells:
    """The look of cells of several blocks."""
    num_real = counts.sum(axis=0) - counts[BlockState.NULL]
    num_shared, num_cached = counts[BlockState.SHARED], counts[BlockState.CACHED_FREE]
    num_held = counts[BlockState.USED] + num_shared
    looks = np.full(counts.shape[1], Look.FREE, dtype=np.uint16)
    looks[num_real == 0] = Look.NULL
    looks[(num_cached * 2 >= num_real) & (num_cached > 0)] = Look.CACHED_FREE
    thirds = -(-3 * num_held // np.maximum(num_real, 1))
    base = np.where(num_shared * 2 >= num_held, Look.SHARED_THIRD, Look.USED_THIRD)
    return np.where(num_held > 0, base + thirds - 1, looks).astype(np.uint16)


class CellBook:
    """The looks of all cells of a map by id, kept up from what changes.

    Args:
        pool: Whose blocks are counted.
        blocks_per_cell: How many blocks a cell stands for.
    """

    def __init__(self, pool: Pool, blocks_per_cell: int) -> None:
        self._pool = pool
        self.blocks_per_cell = blocks_per_cell
        self._version = -1 - KEPT_MOVES  # nothing has been counted
        self._counts: Counts = np.zeros((_NUM_STATES, 0), dtype=np.int32)
        self._looks: Cells = np.zeros(0, dtype=np.uint16)

    def is_of(self, pool: Pool, blocks_per_cell: int) -> bool:
        """Whether it is the book of this pool in cells of this size."""
        return self._pool is pool and self.blocks_per_cell == blocks_per_cell

    def looks(self) -> Cells:
        """The look of each cell now; not to be written to."""
        moves = self._pool.moves_since(self._version)
        if moves is None:
            self._count_anew()
        elif moves:
            self._version = self._pool.version
            self._move(moves)
        return self._looks

    def _count_anew(self) -> None:
        self._version = self._pool.version
        if self.blocks_per_cell > 1:
            self._counts = count_states(self._pool.states, self.blocks_per_cell)
        self._looks = self._look_at(slice(None))

    def _move(self, moves: list[Moves]) -> None:
        is_dirty = np.zeros(len(self._looks), dtype=np.bool_)
        for move in moves:
            cells = move.block_ids // self.blocks_per_cell
            is_dirty[cells] = True
            if self.blocks_per_cell > 1:
                self._recount(cells, move)
        dirty = np.flatnonzero(is_dirty)
        self._looks[dirty] = self._look_at(dirty)

    def _recount(self, cells: BlockIds, move: Moves) -> None:
        # Flat indices: numpy adds at one index per element much faster than at a pair (4 M blocks: 1 ms, not 3).
        counts, num_cells = self._counts.reshape(-1), self._counts.shape[1]
        np.subtract.at(counts, cells + num_cells * move.old.astype(np.intp), 1)
        np.add.at(counts, cells + num_cells * move.new.astype(np.intp), 1)

    def _look_at(self, cells: BlockIds | slice) -> Cells:
        if self.blocks_per_cell > 1:
            return looks_of_counts(self._counts[:, cells])
        looks = _LOOK_OF_STATE[self._pool.states[cells]]
        if self._pool.num_pinned:
            looks[self._pool.is_pinned(cells)] = Look.PINNED
        return looks


def tints_of(tints: Tints, blocks_per_cell: int, *, mixed: int | None = None) -> Cells:
    """The tint of each cell, in its place above look and light.

    Args:
        tints: Of each block in the order of the map; 0 for the colour of the state.
        blocks_per_cell: How many blocks a cell stands for.
        mixed: Tint of a cell whose tinted blocks differ; without one the largest tint wins.
    """
    if blocks_per_cell == 1:
        largest = tints
    else:
        starts = np.arange(0, len(tints), blocks_per_cell)
        largest = np.maximum.reduceat(tints, starts)
        if mixed is not None:
            smallest = np.minimum.reduceat(np.where(tints == 0, np.uint8(255), tints), starts)
            largest = np.where((largest > 0) & (smallest != largest), np.uint8(mixed), largest)
    return largest.astype(np.uint16) << np.uint16(TINT_SHIFT)
