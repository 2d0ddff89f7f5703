"""The block pool as one would first write it: an object per block, and an OrderedDict as the free queue."""

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(slots=True)
class PlainBlock:
    """One physical block."""

    block_id: int
    ref_count: int = 0
    block_hash: bytes | None = None


class PlainPool:
    """Same order of allocation and eviction as `kvengine.block_pool`, without its data structures."""

    def __init__(self, num_blocks: int) -> None:
        self.blocks = [PlainBlock(block_id) for block_id in range(num_blocks)]
        self._free = OrderedDict((block_id, self.blocks[block_id]) for block_id in range(1, num_blocks))
        self._cached: dict[bytes, PlainBlock] = {}

    def allocate(self, count: int) -> list[PlainBlock]:
        """Take blocks from the front, forgetting what they held."""
        taken = []
        for _ in range(count):
            _, block = self._free.popitem(last=False)
            if block.block_hash is not None:
                del self._cached[block.block_hash]
                block.block_hash = None
            block.ref_count = 1
            taken.append(block)
        return taken

    def cache(self, blocks: list[PlainBlock], hashes: list[bytes]) -> None:
        """Enter blocks under their hashes."""
        for block, block_hash in zip(blocks, hashes, strict=True):
            block.block_hash = block_hash
            self._cached[block_hash] = block

    def free(self, blocks: list[PlainBlock]) -> None:
        """Drop one owner of each: unhashed to the front, hashed to the back."""
        for block in reversed(blocks):
            block.ref_count -= 1
            if not block.ref_count:
                self._free[block.block_id] = block
                if block.block_hash is None:
                    self._free.move_to_end(block.block_id, last=False)
