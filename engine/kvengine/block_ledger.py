"""What the telemetry stream has said of each block so far, and what has changed since."""

import sys
from array import array
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from kvengine.allocators.protocol import SlotBook
from kvengine.block_pool import NULL_BLOCK, BlockId, BlockPool
from kvengine.telemetry.block_book import pack_column
from kvengine.telemetry.schema import REF_COUNT_SHIFT, UNKNOWN_PARENT, BlockFlag, Totals

_CACHED, _NULL, _PINNED = int(BlockFlag.CACHED), int(BlockFlag.NULL), int(BlockFlag.PINNED)
"""Plain numbers: operators of an enumeration are calls, with which a step of 256 requests took a third longer."""


class LedgerChanges(NamedTuple):
    """What a step did to blocks, as a delta tells it."""

    codes: list[int]
    """Block id and new code in turn."""
    cached: list[int]
    """Blocks that became findable, each followed by the one before it."""
    num_evicted: int
    """Blocks that lost their cached content."""


class StepBlocks(NamedTuple):
    """What is known of a step's blocks besides the pool's journal."""

    taken: Sequence[int] = ()
    """Blocks that left the free ones for new content."""
    listed: Sequence[int] = ()
    """Blocks that the delta names as part of a table."""
    hit: Sequence[int] = ()
    """Blocks that admissions found in the prefix cache."""
    filled: Sequence[int] = ()
    """Blocks that were filled, each followed by the one before it; those of them that can be found now became so in
    this step."""


_NOTHING_MORE = StepBlocks()


class BlockLedger:
    """The columns of all blocks as told so far, and how many blocks there are of each kind.

    See `telemetry.schema.Snapshot` for what the columns hold; a reader that folds the deltas comes to the same.

    Args:
        pool: The blocks; it keeps a journal from now on.
        pinned: Those that transfers read; a live view, whose changes are in the journal too.
    """

    def __init__(self, pool: SlotBook, *, pinned: Collection[BlockId] = ()) -> None:
        pool.track_changes()
        pool.take_changes()
        self._pool = pool
        self._is_withheld = pool.is_withheld if isinstance(pool, BlockPool) else _never
        self._pinned = pinned
        self._codes = _zeros(pool.num_blocks)
        self._codes[NULL_BLOCK] = _NULL
        self._touched = _zeros(pool.num_blocks)
        self._cached_at = _zeros(pool.num_blocks)
        self._parents = array("I", [UNKNOWN_PARENT]) * pool.num_blocks
        self._hits = _zeros(pool.num_blocks)
        self._counts = [pool.num_blocks - 1, 0, 0, 0, 0]
        """Blocks by `_kind`, but for the null block."""
        self._unread: Iterable[int] = range(NULL_BLOCK + 1, pool.num_blocks)
        """Blocks to look at besides those in the pool's journal: at first all of them."""

    def start(self) -> None:
        """Take in what the pool holds already; nothing has happened to it as far as the stream knows."""
        self.take_changes(0)

    def stop(self) -> None:
        """Nobody asks any more: let the pool keep no journal."""
        self._pool.forget_changes()

    @property
    def has_changes(self) -> bool:
        """Whether blocks are known to look different since the last call of `take_changes`; only block pools tell."""
        return isinstance(self._pool, BlockPool) and self._pool.has_changes

    def take_changes(self, step: int, news: StepBlocks = _NOTHING_MORE) -> LedgerChanges:
        """Blocks that look different since the last call.

        Args:
            step: The step that changed them.
            news: What else is known of what the step did.
        """
        codes, touched, counts, pool = self._codes, self._touched, self._counts, self._pool
        pinned = self._pinned
        evicted = {block for block in news.taken if codes[block] & _CACHED}
        changes: list[int] = []
        for block in (*self._unread, *pool.take_changes()):
            old = codes[block]
            if self._is_withheld(BlockId(block)):
                new = _NULL  # told like the null block, and no part of the usable pool
            else:
                new = pool.ref_count(BlockId(block)) << REF_COUNT_SHIFT | pool.is_cached(BlockId(block))
                if pinned and block in pinned:
                    new |= _PINNED
            if new == old:
                continue
            if old & _CACHED and not new & _CACHED:
                evicted.add(block)
            codes[block] = new
            touched[block] = step
            counts[_kind(old)] -= 1
            counts[_kind(new)] += 1
            changes += (block, new)
        self._unread = ()
        for block in news.listed:
            touched[block] = step
        cached = self._note_cached(step, news.filled)
        for block in news.hit:
            self._hits[block] += 1
        return LedgerChanges(changes, cached, len(evicted))

    def totals(self, *, running: int, waiting: int) -> Totals:
        """The blocks of each kind, beside the requests of each kind."""
        free, cached_free, used, shared, _ = self._counts
        return Totals(free, cached_free, used, shared, running, waiting)

    def packed(self) -> dict[str, bytes]:
        """All columns, under the names that they have in a snapshot."""
        return {
            "block_codes": _pack(self._codes),
            "block_touched": _pack(self._touched),
            "block_cached_at": _pack(self._cached_at),
            "block_parents": _pack(self._parents),
            "block_hits": _pack(self._hits),
        }

    def _note_cached(self, step: int, filled: Sequence[int]) -> list[int]:
        pool, touched = self._pool, self._touched
        cached: list[int] = []
        for block, previous in zip(filled[::2], filled[1::2], strict=True):
            if block != NULL_BLOCK and pool.is_cached(BlockId(block)):
                self._cached_at[block] = touched[block] = step
                self._parents[block] = previous
                self._hits[block] = 0
                cached += (block, previous)
        return cached


def _never(_block: BlockId, /) -> bool:
    return False


def _zeros(count: int) -> "array[int]":
    return array("I", bytes(4 * count))


def _pack(column: "array[int]") -> bytes:
    if sys.byteorder == "big":
        column = array("I", column)
        column.byteswap()
    return pack_column(column.tobytes())


def _kind(code: int) -> int:
    """Index into the counts: 0 free, 1 free and cached, 2 held once, 3 shared, 4 withheld."""
    if code & _NULL:
        return 4
    return min(code >> REF_COUNT_SHIFT, 2) + 1 if code else 0
