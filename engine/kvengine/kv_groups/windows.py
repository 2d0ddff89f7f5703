"""Attention that looks back a limited way: blocks behind it are given back while the request runs."""

from collections.abc import Sequence

from kvengine.block_pool import NULL_BLOCK
from kvengine.block_table import BlockTable
from kvengine.kv_groups.group import GroupManager, SharedParts, StepTokens
from kvengine.kv_groups.kinds import ChunkedLocal, SlidingWindow
from kvengine.units import cdiv


class _Forgetting(GroupManager):
    """A group that gives back whole blocks before the first token that is still attended to."""

    has_gaps = True

    def give_back(self, table: BlockTable, num_computed: int) -> None:
        """See `GroupManager.give_back`; the table keeps its length, with the null block in place of what went."""
        blocks = table.block_ids
        first = last = min(self.first_needed(num_computed) // self.block_size, len(blocks))
        while first > 0 and blocks[first - 1]:
            first -= 1
        if first < last:
            self._pool.free(blocks[first:last])
            blocks[first:last] = [NULL_BLOCK] * (last - first)

    def quiet_until(self, table: BlockTable, step: StepTokens, /) -> int:
        """See `GroupManager.quiet_until`."""
        # What is given back depends on the tokens before a step, at least one less than those after it.
        return min(super().quiet_until(table, step), self._next_give_back(step.start) + 1)

    def _next_give_back(self, num_computed: int) -> int:
        """Computed tokens at which the next block may go, when those for `num_computed` have gone."""
        raise NotImplementedError


class WindowGroup(_Forgetting):
    """Sliding-window attention.

    For reuse it keeps the blocks of one window before each length that a later request is likely to start from.
    """

    def __init__(self, index: int, parts: SharedParts, kind: SlidingWindow) -> None:
        super().__init__(index, parts)
        self._window = kind.window
        self._num_needed = cdiv(kind.window - 1, self.block_size)
        self._alignment = parts.sizes.hit_alignment
        self._retention = parts.config.retention_interval
        self._budget = parts.config.scheduler.max_num_batched_tokens

    @property
    def admission_cap(self) -> int:
        """A window and one step's tokens; a window may begin inside a block."""
        num_tokens = min(self._window - 1 + self._budget, self._max_model_len)
        return cdiv(num_tokens, self.block_size) + 1

    def first_needed(self, num_computed: int, /) -> int:
        """The next token looks back over a window that it belongs to itself."""
        return max(0, num_computed - self._window + 1)

    def _next_give_back(self, num_computed: int) -> int:
        next_block = self.first_needed(num_computed) // self.block_size + 1
        return next_block * self.block_size + self._window - 1

    def _worth_keeping(self, first: int, last: int, step: StepTokens, /) -> Sequence[int]:
        interval = self._alignment if self._retention is None else self._retention
        per_segment = interval // self.block_size
        if interval and self._num_needed >= per_segment:
            return range(first, last)
        kept: set[int] = set()
        if interval:
            kept.update(p for p in range(first, last) if p % per_segment >= per_segment - self._num_needed)
        if self._retention is not None:
            for boundary in (step.prompt_end, step.junction):
                end = boundary // self._alignment * self._alignment // self.block_size
                kept.update(range(max(first, end - self._num_needed), min(last, end)))
        return sorted(kept)


class ChunkGroup(_Forgetting):
    """Chunked-local attention; every block is kept for reuse."""

    def __init__(self, index: int, parts: SharedParts, kind: ChunkedLocal) -> None:
        super().__init__(index, parts)
        self._chunk = kind.chunk
        self._budget = parts.config.scheduler.max_num_batched_tokens

    @property
    def admission_cap(self) -> int:
        """A chunk and one step's tokens."""
        return cdiv(min(self._chunk + self._budget, self._max_model_len), self.block_size)

    def first_needed(self, num_computed: int, /) -> int:
        """The beginning of the chunk that the next token belongs to."""
        return num_computed // self._chunk * self._chunk

    def _next_give_back(self, num_computed: int) -> int:
        return self.first_needed(num_computed) + self._chunk
