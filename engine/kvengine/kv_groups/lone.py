"""Full attention without other groups beside it, which most models have."""

from collections.abc import Sequence

from kvengine.block_pool import BlockId
from kvengine.block_table import RequestBlocks
from kvengine.hash_chains import HashChains
from kvengine.kv_groups.group import FullGroup, SharedParts
from kvengine.request import Request
from kvengine.units import cdiv


class LoneGroup:
    """Gives a request more slots as `KVCacheManager` does it, without the loops over groups: 2 us a block less.

    Args:
        group: The only one of the engine.
        parts: What it is made of.
        chains: Content hashes.
    """

    def __init__(self, group: FullGroup, parts: SharedParts, chains: HashChains) -> None:
        self._group = group
        self._pool = parts.pool
        self._chains = chains
        self._caching = parts.config.enable_prefix_caching
        self._num_lookahead = parts.config.scheduler.num_lookahead_tokens
        self._max_model_len = parts.config.scheduler.max_model_len

    def try_extend(self, request: Request, held: RequestBlocks, num_tokens: int) -> tuple[Sequence[BlockId]] | None:
        """Slots for the first `num_tokens` tokens of a request whose tail nobody shares; None if there is no room."""
        (table,), size, lookahead = held.tables, self._group.block_size, self._num_lookahead
        target = min(num_tokens + lookahead, self._max_model_len) if lookahead else num_tokens
        taken: Sequence[BlockId] = ()
        num_missing = target - len(table.block_ids) * size
        if num_missing > 0:
            new_blocks = self._pool.try_allocate(cdiv(num_missing, size))
            if new_blocks is None:
                return None
            table.block_ids += new_blocks
            taken = new_blocks
        self._settle(request, held, num_tokens)
        return (taken,)

    def _settle(self, request: Request, held: RequestBlocks, num_tokens: int) -> None:
        """Cache what the tokens fill, and note until when nothing more is to do."""
        (table,), size = held.tables, self._group.block_size
        quiet_until = len(table.block_ids) * size - self._num_lookahead + 1
        if self._caching:
            num_known = len(request.all_token_ids)
            num_full = (num_tokens if num_tokens < num_known else num_known) // size
            if num_full > table.num_cached_blocks:
                self._group.enter_blocks(table, num_full, self._chains.hashes(request, num_full * size))
            next_full = (num_full + 1) * size
            if next_full < quiet_until:
                quiet_until = next_full
        held.quiet_until = quiet_until
        if num_tokens > held.num_covered:
            held.num_covered = num_tokens
