"""How keys and values lie in memory: two layouts, and the one view of both that the kernels address.

Block-major, [num_blocks, block_size, num_kv_heads, head_dim] for keys and values: a token's head is one line.

    block 0:  token 0 | head 0: d d d d d d d d | head 1: d d d d d d d d |
              token 1 | head 0: d d d d d d d d | head 1: ...

Key chunks, of the first vLLM kernels: keys [num_blocks, num_kv_heads, head_dim / x, block_size, x] with x = 16 bytes,
what one load instruction takes; values [num_blocks, num_kv_heads, head_dim, block_size].

    block 0, head 0, keys:    chunk 0 | token 0: x | token 1: x | token 2: x | ...
                              chunk 1 | token 0: x | token 1: x | ...
                     values:  d 0     | token 0, 1, 2, ...
                              d 1     | token 0, 1, 2, ...

In both, a block is one contiguous piece of memory.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

_CHUNK_BYTES = 16
FP8 = torch.float8_e4m3fn
"""The 8-bit type of a cache: 4 bits of exponent, 3 of mantissa, largest value 448, no infinity."""


class KVLayout(StrEnum):
    """Order of a block's elements."""

    BLOCK_MAJOR = "block_major"
    KEY_CHUNKS = "key_chunks"


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedKV:
    """One layer's cache as kernels address it: views into the pool, with any strides; nothing is copied.

    A stored value times its head's scale is the true value; where the scale is None it is 1.
    """

    k: Tensor
    """[num_blocks, block_size, num_kv_heads, head_dim / x, x]; x is head_dim unless keys lie in chunks."""
    v: Tensor
    """[num_blocks, block_size, num_kv_heads, head_dim]"""
    k_scale: Tensor | None = None
    """[num_kv_heads], float32."""
    v_scale: Tensor | None = None
    """[num_kv_heads], float32."""

    @property
    def num_kv_heads(self) -> int:
        """KV heads of the layer."""
        return self.v.shape[2]

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.v.shape[1]

    @property
    def head_dim(self) -> int:
        """Elements of a key or value."""
        return self.v.shape[3]

    @property
    def chunk(self) -> int:
        """Elements of a key that lie together: x."""
        return self.k.shape[4]


def page_shapes(
    layout: KVLayout, *, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Give the shapes of one block's keys and values.

    Raises:
        ValueError: The head dimension is no whole number of chunks.
    """
    if layout is KVLayout.BLOCK_MAJOR:
        return (block_size, num_kv_heads, head_dim), (block_size, num_kv_heads, head_dim)
    chunk = _CHUNK_BYTES // dtype.itemsize
    if head_dim % chunk:
        raise ValueError(f"{layout}: head_dim {head_dim} is no multiple of {chunk}, the elements of 16 bytes")
    return (num_kv_heads, head_dim // chunk, block_size, chunk), (num_kv_heads, head_dim, block_size)


def paged_kv(
    layout: KVLayout,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> PagedKV:
    """View a layer's pools, [num_blocks, *page] each, as the kernels address them."""
    if layout is KVLayout.BLOCK_MAJOR:
        k, v = k_cache.unsqueeze(3), v_cache
    else:
        k, v = k_cache.permute(0, 3, 1, 2, 4), v_cache.permute(0, 3, 1, 2)
    return PagedKV(k=k, v=v, k_scale=k_scale, v_scale=v_scale)


def true_values(cache: PagedKV, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Copy a cache into the order of the references, with the scales applied.

    Returns:
        k, v: [num_blocks, block_size, num_kv_heads, head_dim], in `dtype`.
    """
    k, v = cache.k.flatten(3, 4).to(dtype, copy=True), cache.v.to(dtype, copy=True)
    return (
        k if cache.k_scale is None else k * cache.k_scale[:, None].to(dtype),
        v if cache.v_scale is None else v * cache.v_scale[:, None].to(dtype),
    )
