"""Every block as the view knows it, changed in place by each update, and what each update changed."""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvengine.telemetry.block_book import BlockChanges, BlockCodes, BlockColumns, BlockIds
from kvengine.telemetry.schema import REF_COUNT_SHIFT, BlockFlag
from kvengine.telemetry.state import BlockStates, block_states

KEPT_MOVES = 32
"""Updates that a reader may be behind before it has to count anew."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Blocks that went from one state to another in one update."""

    block_ids: BlockIds
    old: BlockStates
    new: BlockStates


class Pool:
    """The columns and states of all blocks.

    Args:
        columns: Its own from now on.

    Attributes:
        version: Goes up with each update.
        states: The `BlockState` of each block.
        num_references: All reference counts together: entries of block tables that name a block, and transfers.
        num_pinned: Blocks that transfers read.
    """

    def __init__(self, columns: BlockColumns) -> None:
        self.columns = columns
        self.states: BlockStates = block_states(columns.codes)
        self.num_references = _count_references(columns.codes)
        self.num_pinned = _count_pinned(columns.codes)
        self.version = 0
        self._moves: deque[Moves] = deque(maxlen=KEPT_MOVES)

    def __len__(self) -> int:
        return len(self.states)

    def apply(self, changes: BlockChanges) -> None:
        """Take an update of this pool."""
        self.version += 1
        block_ids, columns = changes.block_ids, changes.columns
        if block_ids is None:
            self.columns = columns
            self.states = block_states(columns.codes)
            self.num_references = _count_references(columns.codes)
            self.num_pinned = _count_pinned(columns.codes)
            self._moves.clear()
            return
        before = self.columns.codes[block_ids]
        self.num_references += _count_references(columns.codes) - _count_references(before)
        self.num_pinned += _count_pinned(columns.codes) - _count_pinned(before)
        for mine, new in zip(self.columns.arrays(), columns.arrays(), strict=True):
            mine[block_ids] = new
        states = block_states(columns.codes)
        old = self.states[block_ids]
        is_other = (states != old) | ((columns.codes ^ before) & BlockFlag.PINNED != 0)
        moved = block_ids[is_other]
        self._moves.append(Moves(moved, old[is_other], states[is_other]))
        self.states[moved] = states[is_other]

    def is_pinned(self, block_ids: BlockIds | slice) -> NDArray[np.bool_]:
        """Which blocks transfers read."""
        pinned: NDArray[np.bool_] = self.columns.codes[block_ids] & BlockFlag.PINNED != 0
        return pinned

    def moves_since(self, version: int) -> list[Moves] | None:
        """What each update after a version changed; None if that is not kept any more."""
        num_updates = self.version - version
        if num_updates > len(self._moves):
            return None
        return list(self._moves)[len(self._moves) - num_updates :]


def _count_references(codes: BlockCodes) -> int:
    return int((codes >> REF_COUNT_SHIFT).sum(dtype=np.int64))


def _count_pinned(codes: BlockCodes) -> int:
    return int(np.count_nonzero(codes & BlockFlag.PINNED))
