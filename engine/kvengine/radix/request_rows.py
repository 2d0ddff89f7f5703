"""Which slot holds which token of each running request: one row of a table per request."""

from typing import NewType

import numpy as np

from kvengine.radix.free_list import Ids

RowId = NewType("RowId", int)


class RequestRows:
    """A table of slots, a row per request, and the rows that are free.

    Row 0 is padding, for the padded requests of a batch; it is never handed out. Rows come from the end of the
    free list, in list order, and go back to its end.

    Invariant (`check_invariants`): no row is free twice, and row 0 is never free.

    Args:
        max_requests: Rows that can be in use at once.
        max_num_tokens: Tokens of the longest row.
    """

    def __init__(self, max_requests: int, max_num_tokens: int) -> None:
        # Untouched pages of a zeroed table take no memory: a row costs what is written to it.
        self.table: Ids = np.zeros((max_requests + 1, max_num_tokens), np.int32)
        self._free = [RowId(row) for row in range(1, max_requests + 1)]

    @property
    def num_free(self) -> int:
        """Rows that can be taken."""
        return len(self._free)

    def try_take(self, count: int) -> list[RowId] | None:
        """Take rows; None, and none taken, if not so many are free."""
        if count > len(self._free):
            return None
        first = len(self._free) - count
        taken = self._free[first:]
        del self._free[first:]
        return taken

    def give_back(self, row: RowId) -> None:
        """Free a row; what it says stays until it is written again."""
        self._free.append(row)

    def check_invariants(self) -> None:
        """The free rows are what they should be; see the class."""
        assert len(set(self._free)) == len(self._free), f"a row is free twice: {sorted(self._free)}"
        assert all(0 < row < len(self.table) for row in self._free), f"free rows out of range: {sorted(self._free)}"
