"""Block copies that a step asks for, and the hold on both ends until they are handed out."""

from collections import Counter

from kvengine.block_pool import BlockId, BlockPool


class StepCopies:
    """Copies decided in this step; they run on the device before its forward pass.

    Both ends of a copy have an owner here until the step is decided, so that nothing can take them before the copy
    runs; then they are released, in the order source, destination, source, ...

    Args:
        pool: Owner of the blocks.
        num_groups: Copies are handed out group by group.
    """

    def __init__(self, pool: BlockPool, num_groups: int) -> None:
        self._pool = pool
        self._by_group: list[list[tuple[BlockId, BlockId]]] = [[] for _ in range(num_groups)]
        self._holds: Counter[BlockId] = Counter()
        self._origins: dict[BlockId, BlockId] = {}

    def add(self, group: int, source: BlockId, destination: BlockId) -> None:
        """Ask for a copy; one owner of each end passes to this object."""
        self._by_group[group].append((source, destination))
        self._holds.update((source, destination))
        self._origins[destination] = self._origins.get(source, source)

    def num_holds(self, block: BlockId) -> int:
        """How many of a block's owners are copies of this step."""
        return self._holds[block]

    def origin(self, block: BlockId) -> BlockId:
        """The block that holds now, before the copies of this step, what a block is to hold after them."""
        return self._origins.get(block, block)

    def take(self) -> list[tuple[BlockId, BlockId]]:
        """Hand out the copies of the step, and release their ends."""
        copies = [pair for pairs in self._by_group for pair in pairs]
        if copies:
            self._pool.free_in_order([block for pair in copies for block in pair])
            for pairs in self._by_group:
                pairs.clear()
            self._holds.clear()
            self._origins.clear()
        return copies
