"""The kinds of KV-cache groups: what the layers of a group remember of a request.

full            every token
mla             every token, as one latent row
sliding_window  the last `window` tokens, the current one included
chunked_local   the tokens of the current chunk
state           one state, which stands for all tokens before it
cross           the tokens of the encoder
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class StateMode(StrEnum):
    """When states are kept."""

    NONE = "none"
    """One block per request holds the running state; nothing is shared."""
    ALIGN = "align"
    """Chunks end where states are worth keeping, so that later requests can resume from them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FullAttention:
    """Every token is kept until the request ends."""

    name: ClassVar[str] = "full"
    block_size: int
    """Tokens per block on one rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention(FullAttention):
    """Multi-head latent attention: kept like full attention."""

    name: ClassVar[str] = "mla"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow:
    """A token attends to itself and the `window - 1` before it."""

    name: ClassVar[str] = "sliding_window"
    block_size: int
    """Tokens per block."""
    window: int
    """Tokens that are attended to, the current one included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedLocal:
    """A token attends to the tokens of its own chunk up to itself."""

    name: ClassVar[str] = "chunked_local"
    block_size: int
    """Tokens per block."""
    chunk: int
    """Tokens per chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearState:
    """Mamba or linear attention: a block holds the state after some number of tokens."""

    name: ClassVar[str] = "state"
    block_size: int
    """Tokens between two positions of the table."""
    mode: StateMode = StateMode.ALIGN


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttention:
    """Cross-attention of an encoder-decoder model: the encoder's tokens, taken at admission and held to the end."""

    name: ClassVar[str] = "cross"
    block_size: int
    """Encoder tokens per block on one rank."""


GroupKind = FullAttention | SlidingWindow | ChunkedLocal | LinearState | CrossAttention
"""One KV-cache group."""
