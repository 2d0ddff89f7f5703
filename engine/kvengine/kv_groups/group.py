"""What every kind of group does with a request's blocks, and full attention, which keeps them all."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from sys import maxsize
from typing import NamedTuple, cast

from kvengine.block_pool import NULL_BLOCK, BlockId, BlockPool
from kvengine.block_table import BlockTable
from kvengine.config import EngineConfig
from kvengine.kv_groups.copies import StepCopies
from kvengine.kv_groups.sizes import GroupSizes
from kvengine.prefix_cache import BlockHash, BlockKey, PrefixCache, group_suffix
from kvengine.request import Request
from kvengine.units import cdiv

NEVER = maxsize
"""Tokens that no request reaches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParts:
    """What the groups of an engine have in common."""

    config: EngineConfig
    sizes: GroupSizes
    pool: BlockPool
    cache: PrefixCache
    copies: StepCopies


class StepTokens(NamedTuple):
    """Which tokens of a request a step computes, and what of them may enter the prefix cache."""

    start: int
    """Tokens computed before the step."""
    end: int
    """Tokens computed after it, drafts included."""
    num_known: int
    """The request's tokens without drafts."""
    num_cacheable: int
    """Leading tokens that may enter the cache."""
    hashes: Sequence[BlockHash]
    """Prefix hashes of at least the cacheable tokens."""
    prompt_end: int
    """The last token that a resent prompt can start from: the prompt's tokens but one."""
    junction: int
    """See `RequestBlocks.junction`."""


class GroupManager:
    """One group's blocks of all requests. This one keeps every block until its request ends.

    A request is admitted with `adopt` and `grow` and goes on with `give_back` and `grow`; the caller has made sure that
    the blocks are there. A target is the number of tokens that need a slot; see `target`.

    Args:
        index: The group's place among all.
        parts: What it shares with the others.

    Attributes:
        block_size: Tokens that one block id stands for.
    """

    has_gaps = False
    """Whether a table can hold the null block."""

    def __init__(self, index: int, parts: SharedParts) -> None:
        self._index = index
        self._pool = parts.pool
        self._cache = parts.cache
        self._copies = parts.copies
        self.block_size = parts.sizes.block_sizes[index]
        self._unit = parts.sizes.hash_unit
        self._units_per_block = self.block_size // parts.sizes.hash_unit
        self._suffix = group_suffix(index)
        self._num_lookahead = parts.config.scheduler.num_lookahead_tokens
        self._max_model_len = parts.config.scheduler.max_model_len

    @property
    def admission_cap(self) -> int:
        """Most blocks that admission asks for on behalf of one request."""
        return NEVER

    def begin_step(self) -> None:
        """Forget what only the last step had to know."""

    def target(self, _request: Request, num_tokens: int, num_lookahead: int, /) -> int:
        """Tokens that need a slot when the first `num_tokens` are computed and a drafter looks further ahead."""
        return min(num_tokens + num_lookahead, self._max_model_len)

    def first_needed(self, _num_computed: int, /) -> int:
        """The first token that is still attended to once so many are computed."""
        return 0

    def must_wait(self, _hit: Sequence[BlockId], _num_hit_tokens: int, /) -> bool:
        """Whether a hit can only be used in the next step, since this one has yet to write it."""
        return False

    def blocks_to_admit(self, hit: Sequence[BlockId], num_hit_tokens: int, target: int, cap: int = NEVER, /) -> int:
        """Free blocks that an admission takes: new ones, and those of the hit that nobody owns now.

        Args:
            hit: Blocks found for the request.
            num_hit_tokens: Tokens found for it.
            target: Tokens that need a slot.
            cap: Most blocks to count for the whole request.
        """
        num_required = min(cdiv(target, self.block_size), cap)
        if not hit:
            return num_required
        num_skipped = self.first_needed(num_hit_tokens) // self.block_size
        num_new = max(0, num_required - max(num_skipped, len(hit)))
        num_private = 1 if num_hit_tokens % self.block_size else 0
        return num_new + num_private + self._pool.num_free_among(filter(None, hit[num_skipped:]))

    def blocks_to_extend(self, table: BlockTable, target: int) -> int:
        """Free blocks that a table needs to reach a target, a private copy of a shared tail among them."""
        num_new = max(0, cdiv(target, self.block_size) - len(table.block_ids))
        return num_new + (table.shared_tail is not None)

    def adopt(self, hit: Sequence[BlockId], num_hit_tokens: int) -> BlockTable:
        """Start a table from a hit, as another owner of its blocks; those that are not needed any more stay out."""
        num_skipped = self.first_needed(num_hit_tokens) // self.block_size
        shared = hit[num_skipped:]
        self._pool.share(shared)
        table = BlockTable([NULL_BLOCK] * num_skipped + list(shared))
        self._note_shared_tail(table, num_hit_tokens)
        return table

    def fork(self, table: BlockTable, request: Request) -> BlockTable:
        """Start the table of another request as one more owner of all that a request has written."""
        num_computed = request.num_computed_tokens
        forked = table.fork(self.positions_needed(request, num_computed).stop)
        self._pool.share([block for block in forked.block_ids if block])
        self.note_tail(table, num_computed)
        self.note_tail(forked, num_computed)
        return forked

    def note_tail(self, table: BlockTable, num_computed: int) -> None:
        """Remember that others hold the block that a table's next token goes into, if it goes into one that is there.

        The first who writes takes a private copy; see `forget_sole_tail`.
        """
        if num_computed % self.block_size:
            table.shared_tail = num_computed // self.block_size

    def forget_sole_tail(self, table: BlockTable) -> None:
        """Let a table write its tail in place if nobody else holds it any more; copies of this step do not count."""
        position = table.shared_tail
        if position is not None:
            block = table.block_ids[position]
            if self._pool.ref_count(block) - self._copies.num_holds(block) == 1:
                table.shared_tail = None

    def origin(self, block: BlockId) -> BlockId:
        """The block that holds now, before the copies of this step, what a block is to hold after them."""
        return self._copies.origin(block)

    def grow(self, table: BlockTable, target: int) -> list[BlockId]:
        """Take blocks until a table reaches a target, a private copy of a shared tail first.

        Returns:
            The blocks taken.
        """
        taken: list[BlockId] = []
        if table.shared_tail is not None:
            taken.append(self._copy_shared_tail(table, table.shared_tail))
        num_new = cdiv(target, self.block_size) - len(table.block_ids)
        if num_new > 0:
            taken += self._take(num_new)
            table.block_ids += taken[-num_new:]
        return taken

    def give_back(self, table: BlockTable, num_computed: int) -> None:
        """Free the blocks that nothing after `num_computed` tokens needs."""

    def positions_needed(self, request: Request, num_computed: int) -> range:
        """Positions with blocks that a request goes on from when so many of its tokens are computed."""
        num_slots = self.target(request, num_computed, 0)
        return range(self.first_needed(num_computed) // self.block_size, cdiv(num_slots, self.block_size))

    def revive(self, block_ids: list[BlockId], num_computed: int) -> BlockTable:
        """Start a table from blocks that a request still owns, or will have at the null block's positions."""
        table = BlockTable(block_ids)
        table.num_cached_blocks = min(num_computed // self.block_size, len(block_ids))
        return table

    def free(self, table: BlockTable, num_written: int, *, staying: Container[int] = ()) -> None:
        """Take everything from a request.

        Args:
            table: Its table, not to be used again.
            num_written: Tokens that were really computed or hit. What is cached beyond them leaves the cache.
            staying: Positions of blocks that it stays an owner of.
        """
        self._withdraw(table, num_written)
        blocks = table.block_ids
        if staying:
            blocks = [block for position, block in enumerate(blocks) if position not in staying]
        self._pool.free([block for block in blocks if block] if self.has_gaps else blocks)

    def enter(self, table: BlockTable, step: StepTokens) -> None:
        """Let the blocks that a step fills be found by others."""
        first, last = table.num_cached_blocks, step.num_cacheable // self.block_size
        if last > first:
            kept = [position for position in self._worth_keeping(first, last, step) if table.block_ids[position]]
            self._enter_positions(table, kept, step.hashes)
            table.num_cached_blocks = last

    def quiet_until(self, table: BlockTable, _step: StepTokens, /) -> int:
        """Tokens that a request must reach before this group has anything to do but enter full blocks."""
        num_slots = len(table.block_ids) * self.block_size
        return NEVER if num_slots >= self._max_model_len else num_slots - self._num_lookahead + 1

    def check_table(self, table: BlockTable, request: Request, num_covered: int) -> None:
        """What a request needs is there, all pages but the last are full, and nobody else's page is written to.

        Args:
            table: Its table in this group.
            request: It has no step under way.
            num_covered: Most tokens that slots were asked for; drafts that turned out wrong leave theirs unused.
        """
        name, computed, size, blocks = request.request_id, request.num_computed_tokens, self.block_size, table.block_ids
        needed = self.positions_needed(request, computed)
        missing = [position for position in needed if position >= len(blocks) or not blocks[position]]
        assert not missing, f"{name} has {computed} tokens and no block at {missing} of its table {blocks}"
        num_asked = cdiv(self.target(request, max(num_covered, computed), self._num_lookahead), size)
        assert len(blocks) <= num_asked, (
            f"{name} has {computed} tokens in {len(blocks)} blocks of {size}: "
            f"only the last of them may be partly filled, and {num_asked} are enough"
        )
        tail = computed // size
        is_shared = tail in needed and self._pool.ref_count(blocks[tail]) > 1
        assert not is_shared or table.shared_tail == tail, (
            f"{name} would write its token {computed} into block {blocks[tail]}, which others hold too"
        )

    def _worth_keeping(self, first: int, last: int, _step: StepTokens, /) -> Sequence[int]:
        """Which of the positions `first .. last - 1`, now full, others may want."""
        return range(first, last)

    def _enter_positions(self, table: BlockTable, positions: Sequence[int], hashes: Sequence[BlockHash]) -> None:
        blocks = [table.block_ids[position] for position in positions]
        for block, position in zip(blocks, positions, strict=True):
            end = (position + 1) * self.block_size
            self._cache.add(block, self._key(hashes, end), end)
        self._pool.mark_cached(blocks)

    def _key(self, hashes: Sequence[BlockHash], num_tokens: int) -> BlockKey:
        """The key of a prefix that is a multiple of the hash unit."""
        return BlockKey(hashes[num_tokens // self._unit - 1] + self._suffix)

    def _take(self, count: int) -> list[BlockId]:
        blocks = self._pool.try_allocate(count)
        assert blocks is not None, f"{count} blocks were counted as free and are not there"
        return blocks

    def _note_shared_tail(self, table: BlockTable, num_hit_tokens: int) -> None:
        if num_hit_tokens % self.block_size:
            table.shared_tail = table.num_cached_blocks = num_hit_tokens // self.block_size

    def _copy_shared_tail(self, table: BlockTable, position: int) -> BlockId:
        """Replace a shared block that is to be written by a private copy; both ends are held until the copy ran."""
        (private,) = self._take(1)
        self._pool.share((private,))
        self._copies.add(self._index, table.block_ids[position], private)
        table.block_ids[position] = private
        table.shared_tail = None
        return private

    def _withdraw(self, table: BlockTable, num_written: int) -> None:
        """Take prefixes that no forward pass will write out of the cache."""
        for block in table.block_ids[num_written // self.block_size :]:
            if self._pool.is_cached(block) and not self._cache.discard_longer(block, num_written):
                self._pool.unmark_cached((block,))


class FullGroup(GroupManager):
    """Full and latent attention: every block is worth keeping, and so is the end of a prompt inside a block."""

    def __init__(self, index: int, parts: SharedParts) -> None:
        super().__init__(index, parts)
        self._ends_inside = parts.sizes.partial_hits
        self._written: dict[BlockId, int] = {}
        """Tokens written before this step of blocks that it entered for more; kept where hits end inside blocks."""

    def begin_step(self) -> None:
        """See `GroupManager.begin_step`."""
        if self._written:
            self._written.clear()

    def must_wait(self, hit: Sequence[BlockId], num_hit_tokens: int, /) -> bool:
        """A copy runs before the forward pass, so the copied part must have been written in an earlier step."""
        if num_hit_tokens % self.block_size == 0:
            return False
        return self._written.get(hit[-1], num_hit_tokens) < num_hit_tokens

    def revive(self, block_ids: list[BlockId], num_computed: int) -> BlockTable:
        """See `GroupManager.revive`; blocks that cannot be found by others are entered anew."""
        table = super().revive(block_ids, num_computed)
        table.num_cached_blocks = next(
            (position for position, block in enumerate(block_ids) if not self._pool.is_cached(block)), len(block_ids)
        )
        return table

    def enter(self, table: BlockTable, step: StepTokens) -> None:
        """See `GroupManager.enter`."""
        num_full = step.num_cacheable // self.block_size
        if num_full > table.num_cached_blocks:
            self.enter_blocks(table, num_full, step.hashes)
        if self._units_per_block > 1:
            self._enter_prompt_end(table, step)
            if self._ends_inside:
                self._note_unwritten(table, step)

    def enter_blocks(self, table: BlockTable, last: int, hashes: Sequence[BlockHash]) -> None:
        """Enter the blocks up to position `last - 1`, all of them full, that have not been entered yet."""
        first, units = table.num_cached_blocks, self._units_per_block
        blocks = table.block_ids[first:last]
        keys = hashes[first:last] if units == 1 else hashes[(first + 1) * units - 1 : last * units : units]
        if self._suffix:
            keys = [BlockHash(key + self._suffix) for key in keys]
        size = self.block_size
        self._cache.insert(blocks, cast("list[BlockKey]", keys), first_length=(first + 1) * size, block_size=size)
        self._pool.mark_cached(blocks)
        table.num_cached_blocks = last

    def _enter_prompt_end(self, table: BlockTable, step: StepTokens) -> None:
        """One more entry per prompt: where a resent one would end inside a block."""
        end = step.prompt_end // self._unit * self._unit
        if 0 < end <= step.num_cacheable and end % self.block_size:
            block = table.block_ids[end // self.block_size]
            self._cache.add(block, self._key(step.hashes, end), end)
            self._pool.mark_cached((block,))

    def _note_unwritten(self, table: BlockTable, step: StepTokens) -> None:
        first = step.start // self.block_size
        for block in table.block_ids[first : cdiv(step.num_cacheable, self.block_size)]:
            self._written[block] = step.start
