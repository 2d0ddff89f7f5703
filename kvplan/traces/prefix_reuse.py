"""How much of the prompts of a trace was there before: the most that any prefix cache could find.

Only block numbers count, so a trace of 512-token blocks says nothing of what 16-token blocks would find beyond them.
Outputs never enter the cache, and requests do not overlap in time.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvplan.traces.rows import TraceRow


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixReuse:
    """Hits of one cache over a whole trace."""

    requests: int
    requests_with_a_hit: int
    total_blocks: int
    unique_blocks: int
    hit_blocks: int
    """Blocks found from the start of a prompt without a gap; the last one may be cut short."""
    input_tokens: int
    hit_tokens: int
    full_block_hit_tokens: int
    """Of full blocks only."""
    usable_hit_tokens: int
    """Of full blocks, and never the last token of a prompt, which an engine always computes."""
    evictions: int = 0

    @property
    def block_hit_rate(self) -> float:
        """Hit blocks over all blocks."""
        return self.hit_blocks / self.total_blocks if self.total_blocks else 0.0

    @property
    def usable_hit_rate(self) -> float:
        """Prompt tokens that need not be computed, over all prompt tokens."""
        return self.usable_hit_tokens / self.input_tokens if self.input_tokens else 0.0


class _Endless:
    """A cache that forgets nothing."""

    def __init__(self) -> None:
        self.blocks: set[int] = set()
        self.evictions = 0

    def __contains__(self, block: int) -> bool:
        return block in self.blocks

    def touch(self, block_ids: Sequence[int]) -> None:
        """Note that a request holds these."""
        self.blocks.update(block_ids)


class _LeastRecentlyUsed:
    """A cache of a fixed number of blocks that evicts the one that was not used for longest."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self.evictions = 0

    def __contains__(self, block: int) -> bool:
        return block in self._blocks

    def touch(self, block_ids: Sequence[int]) -> None:
        """Note that a request holds these; the start of a prompt is used last, as it is worth most."""
        for block in reversed(block_ids):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
            self.evictions += 1


_COUNTED = (
    "requests",
    "requests_with_a_hit",
    "total_blocks",
    "hit_blocks",
    "input_tokens",
    "hit_tokens",
    "full_block_hit_tokens",
    "usable_hit_tokens",
)


def prefix_reuse(rows: Iterable[TraceRow], *, block_tokens: int, capacity: int | None = None) -> PrefixReuse:
    """Replay a trace, one request after the other, against a cache.

    Args:
        rows: In order of arrival.
        block_tokens: Tokens that a block number stands for.
        capacity: Blocks that the cache holds; None for one that forgets nothing.
    """
    cache = _Endless() if capacity is None else _LeastRecentlyUsed(capacity)
    seen: set[int] = set()
    counts = Counter(dict.fromkeys(_COUNTED, 0))
    for row in rows:
        hit = next((index for index, block in enumerate(row.block_ids) if block not in cache), len(row.block_ids))
        cache.touch(row.block_ids)
        seen.update(row.block_ids)
        counts["requests"] += 1
        counts["requests_with_a_hit"] += hit > 0
        counts["total_blocks"] += len(row.block_ids)
        counts["hit_blocks"] += hit
        counts["input_tokens"] += row.input_tokens
        counts["hit_tokens"] += min(hit * block_tokens, row.input_tokens)
        counts["full_block_hit_tokens"] += min(hit, row.input_tokens // block_tokens) * block_tokens
        counts["usable_hit_tokens"] += min(hit, (row.input_tokens - 1) // block_tokens) * block_tokens
    return PrefixReuse(unique_blocks=len(seen), evictions=cache.evictions, **counts)
