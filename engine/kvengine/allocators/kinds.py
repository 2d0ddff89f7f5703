"""The allocators by name, and the tables that each needs on the device."""

from collections.abc import Sequence
from enum import StrEnum

from kvengine.config import EngineConfig
from kvengine.kv_groups.kinds import FullAttention, GroupKind
from kvengine.units import cdiv

_INDEX_ENTRY_BYTES = 4
"""Block tables and token tables hold 32-bit integers."""


class AllocatorKind(StrEnum):
    """How KV memory is handed out."""

    PAGED = "paged"
    """Blocks as tokens come, anywhere in the pool; vLLM's way."""
    CONTIGUOUS = "contiguous"
    """Room for the longest request for everybody, in one run."""
    BUDDY = "buddy"
    """Room for the prompt and the longest output, rounded up to a power of two, in one run."""
    TOKEN_LEVEL = "token_level"
    """Slots, or small pages, in a radix tree, with SGLang's admission and retraction."""

    @property
    def is_reserving(self) -> bool:
        """Whether a request is given all that it may need at once, and shares nothing."""
        return self in (AllocatorKind.CONTIGUOUS, AllocatorKind.BUDDY)


def keeps_every_token(groups: Sequence[GroupKind]) -> bool:
    """Whether all layers share one block table and forget nothing, as allocators other than paged need."""
    return len(groups) <= 1 and all(isinstance(group, FullAttention) for group in groups)


def index_table_bytes(allocator: AllocatorKind, config: EngineConfig) -> int:
    """Tables of fixed size that say where each token is, with a row for each of `max_num_seqs` requests.

    A row has an entry for each block of the longest request; where a request is in one run, its first slot alone. A
    token-level table has an entry for each token, and one row more, for padding (SGLang's request-to-token pool).
    """
    rows, longest = config.scheduler.max_num_seqs, config.scheduler.max_model_len
    match allocator:
        case AllocatorKind.PAGED:
            entries = rows * cdiv(longest, config.block_size)
        case AllocatorKind.TOKEN_LEVEL:
            entries = (rows + 1) * longest
        case AllocatorKind.CONTIGUOUS | AllocatorKind.BUDDY:
            entries = rows
    return entries * _INDEX_ENTRY_BYTES
