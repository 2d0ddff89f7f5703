"""Where prefill chunks end, so that states are written where later requests can resume from them.

A chunk leaves one state, the one after its last token. A chunk that starts inside a block of states must not run past
the end of that block, or the block would keep an earlier state than its position says.
"""

from dataclasses import dataclass
from math import lcm

from kvengine.config import SchedulerConfig
from kvengine.errors import ConfigError
from kvengine.kv_groups.kinds import LinearState, StateMode
from kvengine.kv_groups.sizes import GroupSizes
from kvengine.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkEnds:
    """Shortens the prefill chunks of requests that have states."""

    block_sizes: tuple[int, ...]
    """Tokens per block of each group with states of chunk ends."""
    unit: int
    """Tokens per prefix hash, if hits end inside blocks; else 0."""
    max_chunk: int
    """Most tokens of one request in a step while others run."""

    @property
    def common_block(self) -> int:
        """A multiple of this many tokens ends a block in every group."""
        return lcm(*self.block_sizes)

    def shorten(self, request: Request, start: int, num_tokens: int, *, junction: int) -> int:
        """How many of the tokens that could be computed next to take; 0 if they should wait for a longer chunk.

        Args:
            request: Whose tokens.
            start: Tokens computed so far.
            num_tokens: Tokens that the step could take.
            junction: See `RequestBlocks.junction`.
        """
        num_known = request.num_tokens
        prefill_end = max(request.num_prompt_tokens, num_known - 1)
        if start >= prefill_end:
            return num_tokens
        block = self.common_block
        end = start + num_tokens
        if end < prefill_end:
            aligned = end // block * block
            # A block that no chunk can fill is filled in pieces.
            if aligned > start or block <= self.max_chunk:
                end = aligned
        last_block_end = (num_known - 1) // block * block
        stops = [self._next_block_end(start), last_block_end, self._prompt_end(request, last_block_end)]
        if start < junction < end:
            stops.append(start + (junction - start) // block * block)
        return max(0, min([stop for stop in stops if start < stop < end], default=end) - start)

    def check_drafts(self, num_drafts: int) -> None:
        """Refuse drafts that could pass a whole block, for which no state would be kept when some of them are wrong.

        Raises:
            ConfigError: There are too many.
        """
        smallest = min(self.block_sizes)
        if num_drafts >= smallest:
            raise ConfigError(f"drafts: expected fewer than a state block of {smallest} tokens, got {num_drafts}")

    def _next_block_end(self, start: int) -> int:
        """The first end of a block that a chunk from here starts inside; 0 if it starts inside none."""
        return min(((start // size + 1) * size for size in self.block_sizes if start % size), default=0)

    def _prompt_end(self, request: Request, last_block_end: int) -> int:
        """Where a resent prompt would resume inside a block; 0 if nothing can resume there."""
        if not self.unit:
            return 0
        prompt_end = (request.num_prompt_tokens - 1) // self.unit * self.unit
        return prompt_end if prompt_end > last_block_end else 0


def chunk_ends_for(sizes: GroupSizes, limits: SchedulerConfig) -> ChunkEnds | None:
    """The rule for an engine's groups; None if none of them keeps states of chunk ends."""
    block_sizes = tuple(
        group.block_size for group in sizes.groups if isinstance(group, LinearState) and group.mode is StateMode.ALIGN
    )
    if not block_sizes:
        return None
    threshold = limits.long_prefill_token_threshold
    return ChunkEnds(
        block_sizes=block_sizes,
        unit=sizes.hash_unit if sizes.partial_hits and sizes.hash_unit < sizes.scheduler_block else 0,
        max_chunk=min(limits.max_num_batched_tokens, threshold or limits.max_num_batched_tokens),
    )
