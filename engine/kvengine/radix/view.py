"""The radix cache as the engine and its viewers see any memory: pages by number, tables, and where all slots are."""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from kvengine.allocators.memory_use import MemoryUse
from kvengine.block_pool import BlockId
from kvengine.kv_groups.kinds import FullAttention
from kvengine.kv_groups.sizes import GroupSizes
from kvengine.radix.cache import RadixCache
from kvengine.request import RequestId

_ROW_ENTRY_BYTES = 4
_TREE_ENTRY_BYTES = 8
"""A token id and its slot."""

Tables = Mapping[RequestId, Sequence[int]]


class PageBook:
    """Who holds which page: the running requests by their tables, and the tree.

    The pool knows no owners, so nothing is kept here but how things were when `take_changes` was called last; each call
    looks at the whole pool, which costs as much as the pool is large, while somebody watches.

    Args:
        cache: Pool and tree.
        tables: The pages of every running request; a live view.
    """

    def __init__(self, cache: RadixCache, tables: Tables) -> None:
        self._cache = cache
        self._tables = tables
        self._is_watched = False
        self._owners = np.zeros(self.num_blocks, np.int64)
        self._is_cached = np.zeros(self.num_blocks, np.bool_)

    @property
    def num_blocks(self) -> int:
        """All pages, the padding page 0 included."""
        return self.num_usable + 1

    @property
    def num_usable(self) -> int:
        """Pages that can be handed out."""
        return self._cache.pool.num_pages

    @property
    def num_free(self) -> int:
        """Pages that no request holds, those in the tree included."""
        return self._cache.num_available // self._cache.page_size

    @property
    def num_used(self) -> int:
        """Pages that a request holds."""
        return self.num_usable - self.num_free

    def free_blocks(self) -> list[BlockId]:
        """Every page that no request holds."""
        owners, _ = self._read()
        return [BlockId(page) for page in (np.flatnonzero(owners[1:] == 0) + 1).tolist()]

    def ref_count(self, block: BlockId) -> int:
        """How many requests held the page at the last `take_changes`."""
        return int(self._owners[block])

    def is_cached(self, block: BlockId) -> bool:
        """Whether the page was in the tree at the last `take_changes`."""
        return bool(self._is_cached[block])

    def track_changes(self) -> None:
        """Look at the pages from now on."""
        self._is_watched = True

    def forget_changes(self) -> None:
        """Look at the pages no more."""
        self._is_watched = False

    def take_changes(self) -> list[BlockId]:
        """Pages that look different since the last call; empty unless `track_changes` was called."""
        if not self._is_watched:
            return []
        owners, is_cached = self._read()
        changed = np.flatnonzero((owners != self._owners) | (is_cached != self._is_cached))
        self._owners, self._is_cached = owners, is_cached
        return cast(list[BlockId], changed.tolist())

    def _read(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        size = self._cache.page_size
        slots = [self._cache.slots_of(request_id)[::size] for request_id in self._tables]
        owners = np.bincount(np.concatenate(slots) // size if slots else (), minlength=self.num_blocks)
        is_cached = np.zeros(self.num_blocks, np.bool_)
        for node in self._cache.tree.walk():
            is_cached[node.slots[::size] // size] = True
        return owners, is_cached


class RadixView:
    """The memory of a `RadixScheduler`, to be looked at; see `allocators.protocol.KVView`.

    Args:
        cache: Pool and tree.
        tables: The pages of every running request; a live view.
    """

    def __init__(self, cache: RadixCache, tables: Tables) -> None:
        self._cache = cache
        self._tables = tables
        self._pages = PageBook(cache, tables)
        size = cache.page_size
        self._sizes = GroupSizes(
            groups=(FullAttention(block_size=size),),
            block_sizes=(size,),
            hash_unit=size,
            scheduler_block=size,
            partial_hits=False,
        )

    @property
    def pool(self) -> PageBook:
        """The pages."""
        return self._pages

    @property
    def sizes(self) -> GroupSizes:
        """One group in pages."""
        return self._sizes

    @property
    def tables_only_grow(self) -> bool:
        """No: what is published is turned to the tree's pages."""
        return False

    def block_ids(self, request_id: RequestId) -> Sequence[BlockId]:
        """The pages of a running request."""
        return cast(Sequence[BlockId], self._tables[request_id])

    def group_tables(self, request_id: RequestId) -> tuple[Sequence[BlockId], ...]:
        """The same, for the only group."""
        return (self.block_ids(request_id),)

    def memory_use(self, running: Iterable[tuple[RequestId, int]]) -> MemoryUse:
        """Where all slots are: nothing is wasted but the rest of each request's open page."""
        cache, num_tokens, internal = self._cache, 0, 0
        for _, num_held in running:
            num_tokens += num_held
            internal += -num_held % cache.page_size
        held = cache.pool.num_slots - cache.num_available
        return MemoryUse(
            total=cache.pool.num_slots,
            used=held - internal,
            pending=0,
            reserved=0,
            internal=internal,
            external=0,
            index_bytes=num_tokens * _ROW_ENTRY_BYTES + cache.tree.num_tokens * _TREE_ENTRY_BYTES,
        )

    def check_invariants(self) -> None:
        """Pool, tree and rows agree."""
        self._cache.check_invariants()
