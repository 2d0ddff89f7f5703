"""Logical to physical: block tables, and the cache slot of every token.

token position     0 1 2 3 4 5 6
block_size 4       block 0 | block 1
table [7, 2]       block 7 | block 2
slot              28 . . 31 8 . 10      slot = block_id * block_size + offset
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvengine.block_pool import NULL_BLOCK, BlockId
from kvengine.request import RequestId

PAD_SLOT = -1
"""The slot of a token that is kept elsewhere: nothing is stored for it here."""


class BlockTable:
    """One request's blocks in one group in logical order, and how many of them have been offered to the prefix cache.

    Attributes:
        block_ids: Physical block of each logical block, the null block where there is none; the group's own list, not
            to be changed by others.
        num_cached_blocks: Leading blocks that were full once and have been offered to the prefix cache.
        shared_tail: Position of a block that is to be written next although others may hold it too; None if there is
            none.
    """

    __slots__ = ("block_ids", "num_cached_blocks", "shared_tail")

    def __init__(self, block_ids: list[BlockId]) -> None:
        self.block_ids = block_ids
        self.num_cached_blocks = len(block_ids)
        self.shared_tail: int | None = None

    def fork(self, num_blocks: int) -> "BlockTable":
        """A table that begins with the same blocks, for a request that becomes an owner of them too."""
        table = BlockTable(self.block_ids[:num_blocks])
        table.num_cached_blocks = self.num_cached_blocks
        return table


class RequestBlocks:
    """The block tables of one request, and until when nothing has to be done for them.

    Attributes:
        tables: One for each group.
        block_ids: The list of the first group's table.
        quiet_until: As long as the tokens of the request stay below this number, nothing has to be done for them: there
            is a slot for each, no further block becomes full, and none is given back.
        num_covered: Most tokens that slots were asked for.
        junction: Tokens up to which the request shares a prefix with another one although some group had forgotten
            it; 0 if it does not.
    """

    __slots__ = ("block_ids", "junction", "num_covered", "quiet_until", "tables")

    def __init__(self, tables: tuple[BlockTable, ...], *, junction: int = 0) -> None:
        self.tables = tables
        self.block_ids = tables[0].block_ids
        self.quiet_until = 0
        self.num_covered = 0
        self.junction = junction


def count_owners(held_by: Mapping[RequestId, RequestBlocks], num_blocks: int) -> list[int]:
    """In how many tables each block of a pool is.

    Raises:
        AssertionError: A table cannot be right, whatever the pool says.
    """
    owners = [0] * num_blocks
    for request_id, held in held_by.items():
        blocks = [block for table in held.tables for block in table.block_ids if block != NULL_BLOCK]
        unknown = [block for block in blocks if not 0 < block < num_blocks]
        assert not unknown, f"{request_id} holds blocks {unknown}, which do not exist"
        assert len(set(blocks)) == len(blocks), f"{request_id} holds a block twice: {blocks}"
        for table in held.tables:
            assert table.num_cached_blocks <= len(table.block_ids), f"{request_id} cached more than it holds"
            is_looked_at = table.shared_tail is None or held.quiet_until == 0
            assert is_looked_at, f"{request_id} would write to a block that others share without looking at it"
        for block in blocks:
            owners[block] += 1
    return owners


def slot_of(block_ids: Sequence[int], position: int, block_size: int) -> int:
    """The cache slot of one token: position 5 in blocks [7, 2] of 4 is slot 9."""
    return block_ids[position // block_size] * block_size + position % block_size


def slot_mapping(
    tables: Sequence[Sequence[int]], starts: ArrayLike, counts: ArrayLike, block_size: int
) -> NDArray[np.int64]:
    """The cache slots of a batch: tokens `starts[i] .. starts[i] + counts[i] - 1` of each table, packed in order.

    Args:
        tables: Block ids of each request.
        starts: First position of each request's part.
        counts: Tokens of each request's part, each >= 1.
        block_size: Tokens per block.

    Returns:
        [sum(counts)], int64: a slot passes 2**31 at 134 M blocks of 16.
    """
    first_position = np.asarray(starts, dtype=np.int64)
    count_of = np.asarray(counts, dtype=np.int64)
    first_block = first_position // block_size
    last_block = (first_position + count_of - 1) // block_size
    # Only the blocks that this batch touches are read: a decode reads one id, however long its table is.
    touched: list[int] = []
    for table, first, last in zip(tables, first_block.tolist(), last_block.tolist(), strict=True):
        if first == last:
            touched.append(table[first])
        else:
            touched += table[first : last + 1]
    # Places in the touched blocks, laid end to end, so that block and offset fall out of one division.
    offset = _packed_offsets(last_block - first_block + 1) * block_size + first_position % block_size
    place = np.arange(int(count_of.sum()), dtype=np.int64)
    place += np.repeat(offset - _packed_offsets(count_of), count_of)
    return np.array(touched, dtype=np.int64)[place // block_size] * block_size + place % block_size


def rank_slot_mapping(
    tables: Sequence[Sequence[int]],
    starts: ArrayLike,
    counts: ArrayLike,
    block_size: int,
    *,
    num_ranks: int,
    rank: int,
    interleave: int = 1,
) -> NDArray[np.int64]:
    """The cache slots of a batch on one of several ranks that share every request's tokens.

    One block id stands for `num_ranks` blocks, one on each rank; its tokens are dealt out `interleave` at a time. With
    2 ranks and blocks of 4, id 3 holds 8 tokens: those at 0, 2, 4, 6 are slots 12..15 of rank 0, the others of rank 1.

    Args:
        tables: Block ids of each request.
        starts: First position of each request's part.
        counts: Tokens of each request's part, each >= 1.
        block_size: Tokens per block on one rank.
        num_ranks: Ranks that share the tokens.
        rank: Which of them.
        interleave: Neighbouring tokens on one rank; a divisor of `block_size`.

    Returns:
        [sum(counts)], int64; `PAD_SLOT` for the tokens of other ranks.
    """
    span = block_size * num_ranks
    block, offset = np.divmod(slot_mapping(tables, starts, counts, span), span)
    dealt, within = np.divmod(offset, interleave)
    slots: NDArray[np.int64] = block * block_size + dealt // num_ranks * interleave + within
    slots[dealt % num_ranks != rank] = PAD_SLOT
    return slots


def kernel_block_ids(block_ids: Sequence[int], per_block: int) -> NDArray[np.int32]:
    """A block table for a kernel whose blocks are `per_block` times smaller than the pool's.

    Pool blocks [7, 2] of 32 are kernel blocks [14, 15, 4, 5] of 16.

    Returns:
        [len(block_ids) * per_block], int32.
    """
    parts = np.arange(per_block, dtype=np.int32)
    return (np.asarray(block_ids, dtype=np.int32)[:, None] * per_block + parts).reshape(-1)


def _packed_offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each part starts when parts of these lengths are packed: [3, 1, 2] gives [0, 3, 4]."""
    return np.cumsum(lengths) - lengths
