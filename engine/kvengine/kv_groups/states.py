"""Mamba and linear attention: a block holds the state after some tokens, and stands for all before them.

A step writes one state, the one after its last token, into the block where that token's position lies; blocks that it
jumps over stay null. The block before it is the source of the step and is given back one step later.

tokens     0 .. 7 | 8 .. 15 | 16 .. 19      blocks of 8, chunks of 16 and 4
position   0      | 1       | 2
table      null   | 7       | 9             7 holds the state after 16 tokens, 9 the one after 20
"""

from collections.abc import Sequence

from kvengine.block_pool import NULL_BLOCK, BlockId
from kvengine.block_table import BlockTable
from kvengine.kv_groups.group import NEVER, GroupManager, SharedParts, StepTokens
from kvengine.prefix_cache import BlockKey
from kvengine.request import Request
from kvengine.units import cdiv


class StateTable(BlockTable):
    """A table of states.

    Attributes:
        num_retired: Leading positions that have been given back.
        exact: Positions whose state is the one after exactly the tokens up to the end of that position.
        unsaved: Position of a cached state that the request's next step overwrites; None if there is none.
    """

    __slots__ = ("exact", "num_retired", "unsaved")

    def __init__(self, block_ids: list[BlockId]) -> None:
        super().__init__(block_ids)
        self.num_retired = 0
        self.exact: set[int] = set()
        self.unsaved: int | None = None

    def fork(self, num_blocks: int) -> "StateTable":
        """See `BlockTable.fork`."""
        table = StateTable(self.block_ids[:num_blocks])
        table.num_cached_blocks = self.num_cached_blocks
        table.num_retired = self.num_retired
        table.exact = {position for position in self.exact if position < num_blocks}
        table.unsaved = self.unsaved
        return table


class StateGroup(GroupManager):
    """States of chunk ends (mode `align`), found again by later requests with the same beginning."""

    has_gaps = True

    def __init__(self, index: int, parts: SharedParts) -> None:
        super().__init__(index, parts)
        self._alignment = parts.sizes.hit_alignment
        self._retention = parts.config.retention_interval
        self._entered: set[BlockKey] = set()
        """States that entered the cache in this step; they are not written yet."""

    def begin_step(self) -> None:
        """See `GroupManager.begin_step`."""
        if self._entered:
            self._entered.clear()

    def target(self, _request: Request, num_tokens: int, _num_lookahead: int, /) -> int:
        """Drafters have no states, so their lookahead does not count."""
        return num_tokens

    def must_wait(self, hit: Sequence[BlockId], _num_hit_tokens: int, /) -> bool:
        """A state is read when its step begins, so an earlier step must have written it."""
        return bool(hit) and self._cache.key_of(hit[-1]) in self._entered

    def blocks_to_admit(self, hit: Sequence[BlockId], num_hit_tokens: int, target: int, _cap: int = NEVER, /) -> int:
        """One new state, a private copy of a shared one, and the hit state if nobody owns it now."""
        num_private = 1 if num_hit_tokens % self.block_size else 0
        num_new = min(1, max(0, cdiv(target, self.block_size) - len(hit)))
        return num_new + num_private + self._pool.num_free_among(filter(None, hit))

    def blocks_to_extend(self, table: BlockTable, target: int) -> int:
        """One new state where the target is past the table, and one for a state that must not be overwritten."""
        assert isinstance(table, StateTable), "a state group was given the table of another"
        num_new = 1 if cdiv(target, self.block_size) > len(table.block_ids) else 0
        return num_new + (table.unsaved is not None or table.shared_tail is not None)

    def adopt(self, hit: Sequence[BlockId], num_hit_tokens: int) -> BlockTable:
        """See `GroupManager.adopt`; of a hit only its last block is a state."""
        table = StateTable(list(hit))
        if hit:
            self._pool.share(hit[-1:])
            table.num_retired = len(hit) - 1
            if num_hit_tokens % self.block_size == 0:
                table.exact.add(len(hit) - 1)
        self._note_shared_tail(table, num_hit_tokens)
        return table

    def positions_needed(self, _request: Request, num_computed: int) -> range:
        """See `GroupManager.positions_needed`: the state after the last computed token."""
        end = cdiv(num_computed, self.block_size)
        return range(max(0, end - 1), end)

    def revive(self, block_ids: list[BlockId], num_computed: int) -> BlockTable:
        """See `GroupManager.revive`; of the table only its last block is a state."""
        table = StateTable(block_ids)
        table.num_cached_blocks = num_computed // self.block_size
        table.num_retired = len(block_ids) - 1
        if num_computed % self.block_size == 0:
            table.exact.add(len(block_ids) - 1)
        return table

    def grow(self, table: BlockTable, target: int) -> list[BlockId]:
        """Make room for the state after `target` tokens.

        Returns:
            A private copy of a shared state, and what was appended to the table, null blocks included.
        """
        assert isinstance(table, StateTable), "a state group was given the table of another"
        taken: list[BlockId] = []
        if table.shared_tail is not None:
            # Whoever shares the state keeps it, and what it is cached for.
            taken.append(self._copy_shared_tail(table, table.shared_tail))
            table.unsaved = None
        elif table.unsaved is not None:
            self._save(table, table.unsaved)
        num_missing = cdiv(target, self.block_size) - len(table.block_ids)
        if num_missing > 0:
            appended = [NULL_BLOCK] * (num_missing - 1) + self._take(1)
            table.block_ids += appended
            taken += appended
        return taken

    def give_back(self, table: BlockTable, num_computed: int) -> None:
        """See `GroupManager.give_back`; the state after `num_computed` tokens stays, as the source of the next step."""
        assert isinstance(table, StateTable), "a state group was given the table of another"
        blocks, first = table.block_ids, table.num_retired
        last = min((num_computed - 1) // self.block_size, len(blocks))
        if last <= first:
            return
        self._pool.free([block for block in blocks[first:last] if block])
        blocks[first:last] = [NULL_BLOCK] * (last - first)
        table.num_retired = last
        table.exact = {position for position in table.exact if position >= last}

    def enter(self, table: BlockTable, step: StepTokens) -> None:
        """See `GroupManager.enter`; states that no chunk ended at are never entered."""
        assert isinstance(table, StateTable), "a state group was given the table of another"
        if step.end % self.block_size == 0 and step.end <= step.num_known:
            table.exact.add(step.end // self.block_size - 1)
        first, last = table.num_cached_blocks, step.num_cacheable // self.block_size
        if last > first:
            kept = [p for p in self._worth_keeping(first, last, step) if p in table.exact and table.block_ids[p]]
            self._enter_positions(table, kept, step.hashes)
            self._entered.update(self._key(step.hashes, (position + 1) * self.block_size) for position in kept)
            table.num_cached_blocks = last
        self._enter_prompt_end(table, step)

    def quiet_until(self, table: BlockTable, step: StepTokens, /) -> int:
        """See `GroupManager.quiet_until`."""
        assert isinstance(table, StateTable), "a state group was given the table of another"
        if table.unsaved is not None or step.num_cacheable == self._prompt_end(step):
            return 0
        # The state at the end of the last block is to be noted when it is reached, and left alone afterwards.
        next_give_back = (table.num_retired + 1) * self.block_size + 1
        return min(len(table.block_ids) * self.block_size, next_give_back + 1)

    def _enter_prompt_end(self, table: StateTable, step: StepTokens) -> None:
        """Enter the state that a resent prompt would start from, again in each step in which it is still held."""
        end = step.num_cacheable
        position = (end - 1) // self.block_size
        if end == 0 or end != self._prompt_end(step) or position >= len(table.block_ids):
            return
        is_inside = end % self.block_size != 0
        block = table.block_ids[position]
        if not block or not (end == step.end if is_inside else position in table.exact):
            return
        key = self._key(step.hashes, end)
        self._cache.add(block, key, end)
        self._pool.mark_cached((block,))
        self._entered.add(key)
        if is_inside:
            table.unsaved = table.num_cached_blocks = position

    def _prompt_end(self, step: StepTokens) -> int:
        return step.prompt_end // self._unit * self._unit

    def _save(self, table: StateTable, position: int) -> None:
        """Let the cache keep a copy of a state that the request is about to overwrite in place."""
        source = table.block_ids[position]
        (kept,) = self._take(1)
        self._cache.move(source, kept)
        self._pool.unmark_cached((source,))
        self._pool.mark_cached((kept,))
        self._pool.share((source,))
        self._copies.add(self._index, source, kept)
        key = self._cache.key_of(kept)
        if key is not None:
            self._entered.add(key)
        table.unsaved = None

    def _worth_keeping(self, first: int, last: int, step: StepTokens, /) -> Sequence[int]:
        per_segment = (self._retention or 0) // self.block_size
        if self._retention is None or per_segment == 1:
            return range(first, last)
        kept: set[int] = set()
        if per_segment:
            kept.update(position for position in range(first, last) if (position + 1) % per_segment == 0)
        for boundary in (step.prompt_end, step.junction):
            position = boundary // self._alignment * self._alignment // self.block_size - 1
            if first <= position < last:
                kept.add(position)
        return sorted(kept)
