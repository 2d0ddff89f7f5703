"""Memory to blocks, and blocks to the tokens and the concurrency that the engine prints."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from kvplan.kv_layout.groups import KVGroup
from kvplan.kv_layout.layers import RequestBound
from kvplan.kv_layout.rules import VllmRules


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """The groups of a model on one rank, under the rules of one engine version."""

    groups: tuple[KVGroup, ...]
    rules: VllmRules

    @property
    def bytes_per_block(self) -> int:
        """Bytes that one block id takes: the longest group decides, shorter ones leave a part unused."""
        return max(group.block_bytes for group in self.groups)

    @property
    def smallest_block_size(self) -> int:
        """Tokens per block of the group with the smallest blocks."""
        return min(group.block_size for group in self.groups)

    def num_blocks(self, available_bytes: Sequence[int], *, override: int | None = None) -> int:
        """Blocks that every rank can hold, the null block included."""
        return override or min(available_bytes) // self.bytes_per_block

    def blocks_per_request(self, bound: RequestBound) -> int:
        """Blocks that one request of the largest length needs, over all groups."""
        return sum(group.blocks_for(bound) for group in self.groups)

    def needed_bytes(self, bound: RequestBound) -> int:
        """Memory that the start-up check wants for one request of the largest length."""
        return self.blocks_per_request(bound) * self.bytes_per_block

    def checked_bytes(self, available_bytes: int) -> int:
        """Memory that the start-up check compares with: from 0.32 on less the null block."""
        return available_bytes - (self.bytes_per_block if self.rules.null_block_in_check else 0)

    def estimated_max_model_len(self, bound: RequestBound, available_bytes: int) -> int:
        """The longest request, up to the bound's length, that passes the check; 0 when not even one token does."""
        checked = self.checked_bytes(available_bytes)
        fits, too_long = 0, bound.max_model_len + 1
        while too_long - fits > 1:
            middle = (fits + too_long) // 2
            if self.needed_bytes(replace(bound, max_model_len=middle)) <= checked:
                fits = middle
            else:
                too_long = middle
        return fits

    def max_concurrency(self, num_blocks: int, bound: RequestBound) -> Fraction:
        """Requests of the largest length that the blocks hold; the engine counts the null block in."""
        return Fraction(num_blocks, self.blocks_per_request(bound))

    def printed_tokens(self, num_blocks: int, bound: RequestBound) -> int:
        """The engine's "KV cache size" in tokens.

        Gemma-3-27B with 14,745 blocks at length 32,768: 7 groups of 16-token blocks, 8,582 blocks a request.
        0.16 prints 14,745 // 7 * 16 = 33,696, 0.32 prints floor(14,745 / 8,582 * 32,768) = 56,299. The division is in
        floating point there, so a whole number may come out one less: 15,657 blocks, 11 a request of 176, are 250,511.
        """
        if not self.rules.tokens_are_concurrency_times_length:
            return num_blocks // len(self.groups) * self.smallest_block_size * bound.context_parallel_size
        return int(num_blocks / self.blocks_per_request(bound) * bound.max_model_len)
