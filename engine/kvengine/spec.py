"""KV geometry to bytes: the only place where bytes per token, page and block are computed."""

from dataclasses import dataclass
from enum import StrEnum


class KVDtype(StrEnum):
    """Element type of the KV cache."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FP8 = "fp8"

    @property
    def num_bytes(self) -> int:
        """Bytes of one element."""
        return {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1}[self.value]


def kv_row_bytes(num_heads: int, key_size: int, value_size: int, element_bytes: int) -> int:
    """Bytes that one token takes in one layer: a key and a value of every head; latent rows have no values.

    Worked values: 8 heads of 128 in 16 bits, 4,096; one latent row of 576 in 16 bits, 1,152.
    """
    return num_heads * (key_size + value_size) * element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSpec:
    """Geometry of a KV cache whose layers all keep rows of one size of a token (MHA, GQA, MQA, latent rows).

    A block is `block_size` tokens in all layers of a group; a page is one layer's part of it.
    Worked value: 32 layers, 8 KV heads, head_dim 128, bfloat16: 131,072 bytes per token,
    65,536 bytes per page of 16 and 2,097,152 bytes per block of 16.
    """

    num_layers: int
    """Pages of a block: the layers of the model, or those of its longest group."""
    num_kv_heads: int
    """KV heads held by one rank."""
    head_dim: int
    head_dim_v: int
    """Size of a value head; equal to `head_dim` unless the model says otherwise, and 0 for latent rows."""
    dtype: KVDtype
    block_size: int
    """Tokens per block."""

    @property
    def layer_token_bytes(self) -> int:
        """Bytes of one token's K and V in one layer."""
        return kv_row_bytes(self.num_kv_heads, self.head_dim, self.head_dim_v, self.dtype.num_bytes)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's K and V in all layers."""
        return self.num_layers * self.layer_token_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of one block in one layer."""
        return self.block_size * self.layer_token_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers."""
        return self.num_layers * self.page_bytes
