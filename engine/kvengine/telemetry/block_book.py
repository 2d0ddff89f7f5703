"""What a stream says of each block, folded: its code, when something happened to it, and what led to it."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvengine.errors import TelemetryError
from kvengine.telemetry.schema import UNKNOWN_PARENT, Delta, Hello, Snapshot

Numbers = NDArray[np.uint32]
BlockCodes = Numbers
BlockIds = NDArray[np.intp]

ALL_AT_ONCE = 4
"""Once more than this part of the pool has changed, it is cheaper to hand over all of it."""


@dataclass(frozen=True, slots=True)
class BlockColumns:
    """What is known of some blocks, one entry for each; see `schema.Snapshot`. Not to be written to."""

    codes: BlockCodes
    touched: Numbers
    cached_at: Numbers
    parents: Numbers
    hits: Numbers

    @classmethod
    def blank(cls, num_blocks: int) -> "BlockColumns":
        """Blocks of which nothing has been said."""
        return cls(
            codes=np.zeros(num_blocks, dtype=np.uint32),
            touched=np.zeros(num_blocks, dtype=np.uint32),
            cached_at=np.zeros(num_blocks, dtype=np.uint32),
            parents=np.full(num_blocks, UNKNOWN_PARENT, dtype=np.uint32),
            hits=np.zeros(num_blocks, dtype=np.uint32),
        )

    def __len__(self) -> int:
        return len(self.codes)

    def arrays(self) -> tuple[Numbers, ...]:
        """All columns, in one order."""
        return self.codes, self.touched, self.cached_at, self.parents, self.hits

    def copy(self) -> "BlockColumns":
        """The same, untouched by what happens later."""
        return BlockColumns(*(column.copy() for column in self.arrays()))

    def take(self, block_ids: BlockIds) -> "BlockColumns":
        """The entries of some blocks, copied."""
        return BlockColumns(*(column[block_ids] for column in self.arrays()))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockChanges:
    """Blocks that may look different, and all that is known of them now."""

    block_ids: BlockIds | None
    """Ascending; None for all blocks."""
    columns: BlockColumns


class BlockBook:
    """The columns of a whole pool while a stream changes them, and which entries changed."""

    def __init__(self, facts: Hello) -> None:
        self.columns = BlockColumns.blank(facts.num_blocks)
        self._block_sizes = [group.block_size for group in facts.groups] or [facts.block_size]
        self._changed: list[Sequence[int]] = []
        self._num_changed = 0
        self._all_changed = True

    def __len__(self) -> int:
        return len(self.columns)

    def load(self, snapshot: Snapshot) -> None:
        """Start from a snapshot; what a stream of an older release does not say stays unknown."""
        blank, num_blocks = BlockColumns.blank(len(self)), len(self)
        self.columns = BlockColumns(
            codes=_unpack(snapshot.block_codes, num_blocks),
            touched=_unpack_or(snapshot.block_touched, blank.touched),
            cached_at=_unpack_or(snapshot.block_cached_at, blank.cached_at),
            parents=_unpack_or(snapshot.block_parents, blank.parents),
            hits=_unpack_or(snapshot.block_hits, blank.hits),
        )
        self._forget_changes()
        self._all_changed = True

    def advance(self, delta: Delta) -> None:
        """Take in what a step did to blocks.

        Raises:
            IndexError: It speaks of a block that does not exist.
        """
        columns, step = self.columns, delta.step
        listed: list[int] = []
        hit: list[int] = []
        for progress in delta.progress:
            listed += progress.new_blocks
        for change in delta.tables:
            listed += filter(None, change.new_blocks)
        for admitted in delta.admitted:
            for table, block_size in zip((admitted.block_table, *admitted.more_tables), self._block_sizes, strict=True):
                listed += filter(None, table)
                hit += filter(None, table[: admitted.num_cached_tokens // block_size])
        if listed:
            self._touch(listed, step)
        if changed := delta.blocks[::2]:
            columns.codes[changed] = delta.blocks[1::2]
            self._touch(changed, step)
        if cached := delta.cached[::2]:
            columns.parents[cached] = delta.cached[1::2]
            columns.cached_at[cached] = step
            columns.hits[cached] = 0
            self._touch(cached, step)
        if hit:
            np.add.at(columns.hits, hit, 1)

    def take_changes(self) -> BlockChanges:
        """What changed since the last call."""
        if self._all_changed or self._num_changed * ALL_AT_ONCE > len(self):
            changes = BlockChanges(block_ids=None, columns=self.columns.copy())
        else:
            every = [block for blocks in self._changed for block in blocks]
            block_ids = np.unique(np.array(every, dtype=np.intp))
            changes = BlockChanges(block_ids=block_ids, columns=self.columns.take(block_ids))
        self._forget_changes()
        return changes

    def packed(self) -> dict[str, bytes]:
        """The columns as a snapshot carries them, by field."""
        columns = self.columns
        return {
            f"block_{name}": pack_column(getattr(columns, name).astype("<u4").tobytes())
            for name in ("codes", "touched", "cached_at", "parents", "hits")
        }

    def _touch(self, blocks: Sequence[int], step: int) -> None:
        self.columns.touched[blocks] = step
        if not self._all_changed:
            self._changed.append(blocks)
            self._num_changed += len(blocks)
            if self._num_changed * ALL_AT_ONCE > len(self):
                self._forget_changes()
                self._all_changed = True

    def _forget_changes(self) -> None:
        self._changed.clear()
        self._num_changed = 0
        self._all_changed = False


def pack_column(numbers: bytes) -> bytes:
    """Compress one number for each block, little-endian uint32, for a snapshot."""
    return zlib.compress(numbers, level=1)


def _unpack_or(packed: bytes, unknown: Numbers) -> Numbers:
    return _unpack(packed, len(unknown)) if packed else unknown


def _unpack(packed: bytes, num_blocks: int) -> Numbers:
    try:
        # One number more than there should be is enough to see that there are too many.
        unpacked = zlib.decompressobj().decompress(packed, 4 * num_blocks + 4)
        numbers = np.frombuffer(unpacked, dtype="<u4").astype(np.uint32)
    except (zlib.error, ValueError) as error:
        raise TelemetryError(f"a snapshot's block states cannot be unpacked ({error})") from error
    if len(numbers) != num_blocks:
        amount = len(numbers) if len(numbers) < num_blocks else f"more than {num_blocks}"
        raise TelemetryError(f"a snapshot of {amount} blocks in a stream about {num_blocks}")
    return numbers
