"""Each request's blocks: prefix hits, slots for new tokens, what enters the prefix cache, and giving it all back."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kvengine.block_pool import BlockId, BlockPool
from kvengine.block_table import BlockTable
from kvengine.prefix_cache import BlockHash, HashChain, PrefixCache
from kvengine.request import Request, RequestId
from kvengine.units import cdiv


class PrefixHit(NamedTuple):
    """What of a request's tokens is in the cache already."""

    block_ids: list[BlockId]
    num_tokens: int


class KVCacheManager:
    """Gives requests the blocks their tokens need, shared with others where the content is the same.

    Blocks enter the prefix cache when their last token is scheduled, before it is computed, so that equal prompts
    share within one step. Whoever takes a request away before its step was computed says how many tokens were.

    Invariants (`check_invariants`): a block's reference count is the number of tables that hold it, no table holds
    a block twice, and pool and cache agree on what is cached.

    Args:
        num_blocks: Blocks in the pool, the null block included.
        block_size: Tokens per block.
        enable_prefix_caching: Whether full blocks are found again by their content.
    """

    def __init__(self, *, num_blocks: int, block_size: int, enable_prefix_caching: bool) -> None:
        self._block_size = block_size
        self._caching = enable_prefix_caching
        self._cache = PrefixCache(num_blocks)
        self._pool = BlockPool(num_blocks, on_evict=self._cache.discard)
        self._tables: dict[RequestId, BlockTable] = {}
        self._chains: dict[RequestId, HashChain] = {}

    @property
    def pool(self) -> BlockPool:
        """The physical blocks."""
        return self._pool

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self._block_size

    @property
    def tables(self) -> Mapping[RequestId, BlockTable]:
        """The block table of every admitted request; a live view, not to be changed."""
        return self._tables

    def block_ids(self, request_id: RequestId) -> Sequence[BlockId]:
        """The block table of an admitted request, logical to physical; a live view, not to be changed."""
        return self._tables[request_id].block_ids

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return cdiv(num_tokens, self._block_size)

    def find_prefix(self, request: Request) -> PrefixHit:
        """The cached blocks a request could start from; nothing is taken.

        The last known token is never among them: its output is what the next step is for, so a fully cached prompt
        of whole blocks leaves its last block to be computed again.
        """
        if not self._caching:
            return PrefixHit([], 0)
        limit = (request.num_tokens - 1) // self._block_size
        block_ids = self._cache.find_prefix(self._hashes(request, limit), limit)
        return PrefixHit(block_ids, len(block_ids) * self._block_size)

    def try_admit(
        self, request: Request, hit: PrefixHit, num_tokens: int, *, gate_tokens: int = 0, spare_blocks: int = 0
    ) -> list[BlockId] | None:
        """Give a request its prefix hit and slots for its first `num_tokens` tokens.

        Args:
            request: A request without blocks.
            hit: What `find_prefix` just returned for it.
            num_tokens: Tokens that need slots after this step, those of the hit included.
            gate_tokens: Admit only if this many tokens would find room now; nothing is set aside for them.
            spare_blocks: Blocks that must still be free afterwards.

        Returns:
            The blocks newly taken, hits not included; None, and nothing taken, if they are not there.
        """
        pool = self._pool
        num_new = self.blocks_for(num_tokens) - len(hit.block_ids)
        num_gated = max(num_new, self.blocks_for(gate_tokens) - len(hit.block_ids))
        # Hit blocks that nobody owns now leave the free blocks too.
        if num_gated + pool.num_free_among(hit.block_ids) + spare_blocks > pool.num_free:
            return None
        pool.share(hit.block_ids)
        new_blocks = pool.try_allocate(num_new)
        assert new_blocks is not None, f"{num_new} blocks were counted as free and are not there"
        table = self._tables[request.request_id] = BlockTable()
        table.block_ids = [*hit.block_ids, *new_blocks]
        table.num_cached_blocks = len(hit.block_ids)
        self._settle(request, table, num_tokens)
        return new_blocks

    def try_extend(self, request: Request, num_tokens: int) -> Sequence[BlockId] | None:
        """Make sure an admitted request has slots for its first `num_tokens` tokens.

        Returns:
            The blocks newly taken; None, and nothing taken, if they are not there.
        """
        table = self._tables[request.request_id]
        if num_tokens < table.quiet_until:
            return ()
        num_new = self.blocks_for(num_tokens) - len(table.block_ids)
        new_blocks: list[BlockId] | None = []
        if num_new > 0:
            new_blocks = self._pool.try_allocate(num_new)
            if new_blocks is None:
                return None
            table.block_ids += new_blocks
        self._settle(request, table, num_tokens)
        return new_blocks

    def free(self, request: Request, num_computed_tokens: int) -> None:
        """Take all blocks from an admitted request.

        Args:
            request: It keeps its hash chain, since it may come back; see `forget`.
            num_computed_tokens: Tokens that were really computed or hit; blocks past them leave the prefix cache,
                since nothing was written to them.
        """
        table = self._tables.pop(request.request_id)
        num_written = num_computed_tokens // self._block_size
        if table.num_cached_blocks > num_written:
            unwritten = table.block_ids[num_written : table.num_cached_blocks]
            self._cache.discard(unwritten)
            self._pool.unmark_cached(unwritten)
        self._pool.free(table.block_ids)

    def forget(self, request: Request) -> None:
        """Drop what is kept of a request that will not come back; it must hold no blocks."""
        self._chains.pop(request.request_id, None)

    def _settle(self, request: Request, table: BlockTable, num_tokens: int) -> None:
        """Cache the blocks that `num_tokens` tokens fill, and note until when nothing more is to do."""
        num_slots = len(table.block_ids) * self._block_size
        table.quiet_until = num_slots + 1
        if self._caching:
            num_full = num_tokens // self._block_size
            self._cache_full_blocks(request, table, num_full)
            table.quiet_until = min(num_slots + 1, (num_full + 1) * self._block_size)

    def _cache_full_blocks(self, request: Request, table: BlockTable, num_full: int) -> None:
        first = table.num_cached_blocks
        if num_full <= first:
            return
        blocks = table.block_ids[first:num_full]
        self._cache.insert(blocks, self._hashes(request, num_full)[first:num_full])
        self._pool.mark_cached(blocks)
        table.num_cached_blocks = num_full

    def _hashes(self, request: Request, num_blocks: int) -> list[BlockHash]:
        chain = self._chains.get(request.request_id)
        if chain is None:
            chain = self._chains[request.request_id] = HashChain(self._block_size, salt=request.cache_salt)
        return chain.hashes(request.all_token_ids, num_blocks)

    def check_invariants(self) -> None:
        """Tables, pool and cache agree; see the class."""
        self._pool.check_invariants()
        self._cache.check_invariants()
        owners = [0] * self._pool.num_blocks
        for request_id, table in self._tables.items():
            assert len(set(table.block_ids)) == len(table.block_ids), (
                f"{request_id} holds a block twice: {table.block_ids}"
            )
            assert table.num_cached_blocks <= len(table.block_ids), f"{request_id} cached more blocks than it holds"
            for block in table.block_ids:
                owners[block] += 1
        for number, count in enumerate(owners):
            block = BlockId(number)
            held = self._pool.ref_count(block)
            assert held == count, f"block {block} has {held} references and is in {count} tables"
            cached = self._cache.hash_of(block) is not None
            assert cached == self._pool.is_cached(block), (
                f"block {block}: pool and cache differ on whether it is cached"
            )
