"""What one layer keeps per block, and how many blocks one request needs of it."""

from dataclasses import dataclass, replace
from enum import StrEnum

from kvengine.spec import kv_row_bytes
from kvengine.units import cdiv


class AttentionKind(StrEnum):
    """How many of a request's tokens an attention layer keeps."""

    FULL = "full"
    MLA = "mla"
    SLIDING_WINDOW = "sliding_window"
    CHUNKED_LOCAL = "chunked_local"
    CROSS = "cross_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBound:
    """The largest request that the engine promises to hold."""

    max_model_len: int
    tokens_in_flight: int
    """Tokens scheduled and not yet finished: step budget times concurrent batches."""
    max_encoder_tokens: int = 0
    context_parallel_size: int = 1
    """Ranks that share one request's tokens (decode context parallelism)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayer:
    """One attention layer on one rank; two layers can share a block table when they are equal."""

    kind: AttentionKind
    token_bytes: int
    """Bytes of one token in this layer."""
    block_size: int
    reach: int = 0
    """Tokens of the window or the chunk; 0 for layers that keep everything."""
    shape: tuple[int, ...] = ()
    """KV heads, head sizes and element size: layers of equal bytes but unequal shape are not equal."""
    padded_page_bytes: int | None = None
    tokens_per_row: int = 1
    """Tokens that share one row of `token_bytes` where rows are compressed (DeepSeek-V4)."""
    extra_blocks: int = 0
    """Of a layer that keeps everything in a window: the block that windows are given beyond their tokens."""

    @property
    def natural_page_bytes(self) -> int:
        """Bytes of one block in this layer, before any padding."""
        return cdiv(self.block_size, self.tokens_per_row) * self.token_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of one block in this layer as allocated."""
        return self.padded_page_bytes or self.natural_page_bytes

    def blocks_for(self, bound: RequestBound) -> int:
        """Blocks that one request of the largest length can hold at a time.

        A window of 1,024 with 16,384 tokens in flight, length 32,768, block 16: ceil(17,407 / 16) + 1 = 1,089.
        """
        length = cdiv(bound.max_model_len, bound.context_parallel_size)
        match self.kind:
            case AttentionKind.SLIDING_WINDOW:
                return cdiv(min(self.reach - 1 + bound.tokens_in_flight, length), self.block_size) + 1
            case AttentionKind.CHUNKED_LOCAL:
                return cdiv(min(self.reach + bound.tokens_in_flight, length), self.block_size)
            case AttentionKind.CROSS:
                return cdiv(bound.max_encoder_tokens, self.block_size)
            case _:
                return cdiv(length, self.block_size) + self.extra_blocks

    def kept_in_full(self) -> "AttentionLayer":
        """The same layer when the hybrid manager is off: its window is not used to free blocks."""
        return replace(self, kind=AttentionKind.FULL, reach=0, extra_blocks=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLayer:
    """One Mamba or linear-attention layer on one rank: a state per sequence, whatever its length."""

    state_bytes: int
    block_size: int
    """Tokens that one state block stands for; `max_model_len` when states are not cached."""
    blocks_per_request: int
    padded_page_bytes: int | None = None

    @property
    def page_bytes(self) -> int:
        """Bytes of one state as allocated."""
        return self.padded_page_bytes or self.state_bytes

    def blocks_for(self, bound: RequestBound) -> int:  # noqa: ARG002 - the same for every length
        """Blocks that one request holds at a time."""
        return self.blocks_per_request


Layer = AttentionLayer | StateLayer


def attention_layer(
    kind: AttentionKind,
    *,
    num_kv_heads: int,
    head_size: int,
    element_bytes: int,
    block_size: int,
    head_size_v: int | None = None,
    reach: int = 0,
    packed_token_bytes: int | None = None,
) -> AttentionLayer:
    """Build an attention layer from its geometry on one rank.

    Args:
        kind: What the layer keeps.
        num_kv_heads: KV heads of this rank: the model's divided by the tensor-parallel size, at least 1.
        head_size: Key head size; for latent attention the whole row (512 + 64 = 576 for DeepSeek).
        element_bytes: Bytes of one cached element.
        block_size: Tokens per block.
        head_size_v: Value head size, `head_size` unless given. Latent attention has no separate values.
        reach: Window or chunk in tokens.
        packed_token_bytes: Bytes of one token where a quantised row is not elements times size (656 for `fp8_ds_mla`).
    """
    values = 0 if kind is AttentionKind.MLA else head_size if head_size_v is None else head_size_v
    return AttentionLayer(
        kind=kind,
        token_bytes=packed_token_bytes or kv_row_bytes(num_kv_heads, head_size, values, element_bytes),
        block_size=block_size,
        reach=reach,
        shape=(num_kv_heads, head_size, values, element_bytes),
    )


def kv_heads_per_rank(num_kv_heads: int, tensor_parallel_size: int) -> int:
    """KV heads on one rank; heads are replicated, never split below one."""
    return max(1, num_kv_heads // tensor_parallel_size)


def state_blocks_per_request(*, prefix_caching: bool, speculative_tokens: int = 0, checkpoint_blocks: int = 0) -> int:
    """State blocks of one request in one group: one, and with prefix caching the last cached one beside it."""
    return (2 + checkpoint_blocks if prefix_caching else 1) + speculative_tokens


def state_bytes(
    *, columns: int, channels: int, column_element_bytes: int, heads: int, head_elements: int, head_element_bytes: int
) -> int:
    """Bytes of one state on one rank: the columns of a convolution window, and so many elements for every head."""
    return columns * channels * column_element_bytes + heads * head_elements * head_element_bytes


def gated_delta_state_bytes(
    *,
    num_key_heads: int,
    num_value_heads: int,
    key_head_size: int,
    value_head_size: int,
    conv_kernel: int,
    tensor_parallel_size: int = 1,
    speculative_tokens: int = 0,
    conv_element_bytes: int = 2,
    state_element_bytes: int = 4,
) -> int:
    """Bytes of one gated-delta-net state (Qwen3-Next, Qwen3.5) in one layer on one rank.

    A convolution window over the query, key and value channels, and one matrix per value head. Speculative tokens
    lengthen the window by one column each.

    Qwen3-Next-80B at tensor parallel 4 (16 key and 32 value heads of 128, kernel 4, 16-bit states):
    3 * 2,048 * 2 + 8 * 128 * 128 * 2 = 274,432.
    """
    channels = 2 * num_key_heads * key_head_size + num_value_heads * value_head_size
    return state_bytes(
        columns=conv_kernel - 1 + speculative_tokens,
        channels=cdiv(channels, tensor_parallel_size),
        column_element_bytes=conv_element_bytes,
        heads=cdiv(num_value_heads, tensor_parallel_size),
        head_elements=key_head_size * value_head_size,
        head_element_bytes=state_element_bytes,
    )
