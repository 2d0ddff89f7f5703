"""What one layer of a model keeps in memory, before any engine, element type or division over GPUs.

attention      rows, one per token: K and V of every KV head, or one latent vector
states         a fixed amount per sequence: a convolution window and a matrix per head

A layer may keep several parts (attention and a state, latents and index keys) or none (an MLP, shared KV).
"""

from dataclasses import dataclass
from enum import StrEnum

from kvengine.spec import KVDtype
from kvplan.kv_layout.layers import AttentionKind


class RowUse(StrEnum):
    """What rows are for."""

    ATTENTION = "attention"
    INDEX = "index"
    """Keys by which sparse attention chooses tokens; engines keep them in fp8 with a scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRows:
    """The rows of one attention layer."""

    kind: AttentionKind
    num_heads: int
    """KV heads of the whole model; 1 for latent rows, which no rank splits."""
    key_size: int
    value_size: int
    """0 where a row has no values of its own, as in latent attention."""
    reach: int = 0
    """Tokens of the window or chunk; 0 where all are kept."""
    tokens_per_row: int = 1
    """Tokens that are compressed into one row."""
    use: RowUse = RowUse.ATTENTION
    has_open_window: bool = False
    """Whether it has a window no shorter than the longest context, which drops nothing and is one all the same."""
    element_bytes: int = 0
    """Of index keys that are kept as they are; 0 for those in fp8 with a scale."""

    @property
    def is_latent(self) -> bool:
        """Whether a row is one vector that serves all heads."""
        return self.value_size == 0

    @property
    def grows(self) -> bool:
        """Whether a row stays for as long as its request does, however long that becomes."""
        return self.kind in (AttentionKind.FULL, AttentionKind.MLA)


class StateKind(StrEnum):
    """Kinds of fixed-size states."""

    MAMBA1 = "mamba1"
    MAMBA2 = "mamba2"
    GATED_DELTA_NET = "gated_deltanet"
    KDA = "kda"
    LIGHTNING = "lightning"
    SHORT_CONV = "short_conv"
    RG_LRU = "rglru"
    RWKV4 = "rwkv4"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptState:
    """The state of one layer and sequence: `conv_columns` columns of channels, and `heads` times `head_elements`."""

    kind: StateKind
    conv_columns: int = 0
    conv_channels: int = 0
    """Channels that ranks split evenly."""
    groups: int = 0
    """Groups of channels that go with heads: ranks that cannot split them repeat them."""
    group_channels: int = 0
    """Channels of one group."""
    heads: int = 0
    head_elements: int = 0
    dtype: KVDtype | None = None
    """Of the part per head; None for the model's own type, which the columns always have."""
    drafts_add_columns: bool = True
    """Whether each speculative token lengthens the columns."""

    @property
    def conv_elements(self) -> int:
        """Elements of the convolution window of the whole model."""
        return self.conv_columns * (self.conv_channels + self.groups * self.group_channels)

    @property
    def head_state_elements(self) -> int:
        """Elements of the part per head, of the whole model."""
        return self.heads * self.head_elements


LayerParts = tuple[KeptRows | KeptState, ...]
"""What one layer keeps."""
