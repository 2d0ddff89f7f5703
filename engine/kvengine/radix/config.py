"""What a radix scheduler is built from."""

from dataclasses import dataclass

from kvengine.radix.admission import DEFAULT_MAX_PREFILL_TOKENS
from kvengine.radix.eviction import EvictionPolicy
from kvengine.radix.queue_order import QueueOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class RadixConfig:
    """Pool size and limits; the defaults are SGLang's."""

    num_tokens: int
    """Slots of the pool; a rest below a page is lost."""
    page_size: int = 1
    """Tokens per page."""
    max_num_seqs: int = 256
    """Most requests that hold slots at once."""
    max_model_len: int = 8192
    """Prompt plus output never exceed it; generation ends there."""
    order: QueueOrder = QueueOrder.FCFS
    eviction: EvictionPolicy = EvictionPolicy.LRU
    max_prefill_tokens: int = DEFAULT_MAX_PREFILL_TOKENS
    """Most tokens of one prefill step; without chunks its first request may exceed it."""
    chunk_tokens: int | None = 8192
    """Most tokens of one prefill step, to which its last request is cut; None for no chunks."""
    caching: bool = True
    """Whether prefixes are kept and shared; without, a request has its slots to itself (SGLang: no radix cache)."""
    conservativeness: float = 1.0
    """Scales the part of their possible output that is set aside for running requests."""
