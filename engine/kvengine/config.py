"""What an engine is built from: finished values, checked at the edges, never edited later."""

from dataclasses import dataclass, field
from enum import StrEnum

from kvengine.spec import KVCacheSpec


class SchedulingPolicy(StrEnum):
    """Who is admitted first and who is preempted first."""

    FCFS = "fcfs"
    PRIORITY = "priority"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of one scheduling step."""

    max_num_seqs: int = 256
    """Most requests in the running list."""
    max_num_batched_tokens: int = 8192
    """Most tokens scheduled in one step."""
    max_model_len: int = 8192
    """Prompt plus output never exceed it; generation ends there."""
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    """Most tokens of one request in a step; 0 means no cap; a lone request is not capped."""
    policy: SchedulingPolicy = SchedulingPolicy.FCFS
    watermark: float = 0.0
    """Fraction of the pool that must stay free after admitting a request while others run."""
    reserve_full_isl: bool = True
    """Admit a request only if blocks for all its current tokens are free now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One engine: KV geometry, pool size and scheduling limits."""

    kv_cache: KVCacheSpec
    num_blocks: int
    """Blocks in the pool, the null block 0 included; usable blocks are `num_blocks - 1`."""
    enable_prefix_caching: bool = True
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.kv_cache.block_size
