"""Bytes for KV to blocks, and blocks to requests, as the engine counts them."""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from kvengine.spec import KVCacheSpec
from kvengine.units import cdiv


class EngineKind(StrEnum):
    """Whose counting is followed."""

    VLLM = "vllm"
    """vLLM 0.32: block 0 is the null block, which holds no request."""
    PAGED = "paged"
    """The textbook allocator: every block holds requests."""

    @property
    def version(self) -> str:
        """The version whose rules these are; empty for the textbook."""
        return "0.32" if self is EngineKind.VLLM else ""

    @property
    def null_blocks(self) -> int:
        """Blocks that exist and hold no request."""
        return 1 if self is EngineKind.VLLM else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """A pool of blocks, and the longest request that it is checked against at start-up.

    Worked value (vLLM): 56,173,516,555 bytes in blocks of 2 MiB are 26,785 blocks; at 32,768 tokens a request needs
    2,048 of them, so 13.08 requests fit and the engine prints a cache of 428,560 tokens.
    """

    spec: KVCacheSpec
    engine: EngineKind
    available_bytes: int
    num_blocks: int
    """As the engine prints it: the null block included."""
    max_model_len: int

    @property
    def usable_blocks(self) -> int:
        """Blocks that can hold requests."""
        return max(0, self.num_blocks - self.engine.null_blocks)

    @property
    def blocks_per_request(self) -> int:
        """Blocks of one request of `max_model_len`."""
        return cdiv(self.max_model_len, self.spec.block_size)

    @property
    def needed_bytes(self) -> int:
        """Memory of one request of `max_model_len`."""
        return self.blocks_per_request * self.spec.block_bytes

    @property
    def checked_bytes(self) -> int:
        """Memory that one request may take: the engine's null block is not for requests."""
        return max(0, self.available_bytes - self.engine.null_blocks * self.spec.block_bytes)

    @property
    def holds_one_request(self) -> bool:
        """Whether the engine starts: one request of `max_model_len` fits."""
        return self.needed_bytes <= self.checked_bytes

    @property
    def max_concurrency(self) -> Fraction:
        """Requests of `max_model_len` that fit together, as the engine prints it: the null block counts in."""
        return Fraction(self.num_blocks, self.blocks_per_request)

    @property
    def kv_cache_tokens(self) -> int:
        """Tokens of the whole cache, as the engine prints it."""
        if self.engine is EngineKind.PAGED:
            return self.num_blocks * self.spec.block_size
        return self.num_blocks * self.max_model_len // self.blocks_per_request

    @property
    def longest_fit(self) -> int:
        """The longest request, up to `max_model_len`, that would fit; 0 when not even one token does."""
        return min(self.max_model_len, self.checked_bytes // self.spec.block_bytes * self.spec.block_size)

    @property
    def token_slots(self) -> int:
        """Tokens that the memory holds when it is not cut into blocks."""
        return self.available_bytes // self.spec.token_bytes


def count_blocks(
    spec: KVCacheSpec, engine: EngineKind, *, available_bytes: int, max_model_len: int, override: int | None = None
) -> Capacity:
    """Cut the memory into blocks; with an override the engine takes that many, and their bytes as available."""
    num_blocks = override if override is not None else available_bytes // spec.block_bytes
    return Capacity(
        spec=spec,
        engine=engine,
        available_bytes=num_blocks * spec.block_bytes if override is not None else available_bytes,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
    )
