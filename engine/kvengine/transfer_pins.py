"""Blocks that are kept while something outside reads them, such as a transfer to another engine.

A request's table names its owners; a pin says that a read is under way that nobody can call back. A block is free only
when it has neither, so a transfer goes on undisturbed when its request is preempted, aborted or done. What is pinned
does not change: a request that would write into a pinned block, even as its only owner, takes a copy first.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NewType

from kvengine.block_pool import BlockId, BlockPool
from kvengine.errors import TransferError
from kvengine.request import RequestId

TransferHandle = NewType("TransferHandle", int)
"""Names one transfer of an engine; it is never given out twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What one transfer may read until it is completed."""

    handle: TransferHandle
    request_id: RequestId
    num_tokens: int
    """Tokens of the request that the blocks hold."""
    tables: tuple[tuple[BlockId, ...], ...]
    """The request's blocks in each group, logical to physical: the null block where there is none."""

    @property
    def blocks(self) -> list[list[BlockId]]:
        """The pinned blocks of each group."""
        return [[block for block in table if block] for table in self.tables]


class TransferPins:
    """The transfers under way, and the blocks that they hold.

    Invariants (`check_invariants`): a block's pins are the transfers that read it, and a pinned block is not free.

    Args:
        pool: Owner of the blocks; each pin counts as one reference.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._live: dict[TransferHandle, Transfer] = {}
        self._num_pins: Counter[BlockId] = Counter()
        self._num_begun = 0

    @property
    def live(self) -> Mapping[TransferHandle, Transfer]:
        """Transfers that are not completed; a live view, not to be changed."""
        return self._live

    @property
    def blocks(self) -> Collection[BlockId]:
        """Blocks that any transfer reads; a live view."""
        return self._num_pins.keys()

    def num_pins(self, block: BlockId) -> int:
        """How many transfers read a block."""
        return self._num_pins[block]

    def begin(self, request_id: RequestId, num_tokens: int, tables: Sequence[Sequence[BlockId]]) -> Transfer:
        """Pin the blocks of a request's tables."""
        transfer = Transfer(
            handle=TransferHandle(self._num_begun),
            request_id=request_id,
            num_tokens=num_tokens,
            tables=tuple(tuple(table) for table in tables),
        )
        self._num_begun += 1
        self._live[transfer.handle] = transfer
        for blocks in transfer.blocks:
            self._num_pins.update(blocks)
            self._pool.share(blocks)
        return transfer

    def complete(self, handle: TransferHandle) -> Transfer:
        """Let go of a transfer's blocks, group by group; those that nobody else holds are free.

        Raises:
            TransferError: There never was such a transfer, or it has been completed already.
        """
        transfer = self._live.pop(handle, None)
        if transfer is None:
            if 0 <= handle < self._num_begun:
                raise TransferError(f"transfer {handle} has been completed already")
            raise TransferError(f"there is no transfer {handle}; {self._num_begun} have begun, the first of them 0")
        for blocks in transfer.blocks:
            for block in blocks:
                self._num_pins[block] -= 1
                if not self._num_pins[block]:
                    del self._num_pins[block]
            self._pool.free(blocks)
        return transfer

    def check_invariants(self) -> None:
        """Pins and transfers agree; see the class."""
        read = Counter(block for transfer in self._live.values() for blocks in transfer.blocks for block in blocks)
        for block in read.keys() | self._num_pins.keys():
            pins = self._num_pins[block]
            assert pins == read[block], f"block {block} has {pins} pins and is read by {read[block]} transfers"
            assert self._pool.ref_count(block) >= pins, f"block {block} is pinned and free"
