# A compiled kernel is not Python: its body is excused from annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Writing the keys and values of a step into the paged cache."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvkernels._launch import Launch, check_dtype, check_shape, strides
from kvkernels.cache_element import key_offsets, to_cache, value_offsets
from kvkernels.layout import PagedKV

_OP = "store_kv"


def store_kv(k: Tensor, v: Tensor, cache: PagedKV, slots: Tensor) -> None:
    """Write keys and values into their slots, as `reference.store_kv` does.

    Shapes:
        k, v: [num_tokens, num_kv_heads, head_dim], any strides
        cache: changed in place; what is stored is the value over its head's scale, in the cache's type
        slots: [num_tokens], int64, distinct; negative ones are skipped

    Raises:
        ValueError: Shapes do not go together, or the tensors are where the kernel cannot run.
        TypeError: The slots are not int64, or bfloat16 tensors meet the interpreter.
    """
    store_kv_launch(k, v, cache, slots).run()


def store_kv_launch(k: Tensor, v: Tensor, cache: PagedKV, slots: Tensor) -> Launch:
    """Prepare `store_kv`."""
    num_tokens = k.shape[0]
    check_shape(_OP, "k", k, (num_tokens, cache.num_kv_heads, cache.head_dim))
    check_shape(_OP, "v", v, (num_tokens, cache.num_kv_heads, cache.head_dim))
    check_shape(_OP, "slots", slots, (num_tokens,))
    check_dtype(_OP, "slots", slots, torch.int64)
    return Launch(
        op=_OP,
        kernel=_store_kv_kernel,
        grid=(num_tokens,),
        arguments={
            "k_ptr": k,
            "v_ptr": v,
            "k_cache_ptr": cache.k,
            "v_cache_ptr": cache.v,
            "k_scale_ptr": cache.k_scale,
            "v_scale_ptr": cache.v_scale,
            "slots_ptr": slots,
            **strides("k", k, "token", "head", "dim"),
            **strides("v", v, "token", "head", "dim"),
            **strides("kc", cache.k, "block", "offset", "head", "chunk", "dim"),
            **strides("vc", cache.v, "block", "offset", "head", "dim"),
            **strides("slots", slots, "token"),
        },
        constants={
            "BLOCK_SIZE": cache.block_size,
            "NUM_KV_HEADS": cache.num_kv_heads,
            "HEAD_DIM": cache.head_dim,
            "CHUNK": cache.chunk,
            "HEADS_TILE": triton.next_power_of_2(cache.num_kv_heads),
            "DIM_TILE": triton.next_power_of_2(cache.head_dim),
        },
    )


@triton.jit
def _store_kv_kernel(
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
    k_scale_ptr,
    v_scale_ptr,
    slots_ptr,
    stride_k_token,
    stride_k_head,
    stride_k_dim,
    stride_v_token,
    stride_v_head,
    stride_v_dim,
    stride_kc_block,
    stride_kc_offset,
    stride_kc_head,
    stride_kc_chunk,
    stride_kc_dim,
    stride_vc_block,
    stride_vc_offset,
    stride_vc_head,
    stride_vc_dim,
    stride_slots_token,
    BLOCK_SIZE: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CHUNK: tl.constexpr,
    HEADS_TILE: tl.constexpr,
    DIM_TILE: tl.constexpr,
):
    """cache[slot // BLOCK_SIZE, slot % BLOCK_SIZE, h, d] = x[t, h, d] / scale[h], nothing where slot = slots[t] < 0.

    One program a token. int64: offsets pass 2**31 at 2.1 M slots of 1,024 elements.
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token * stride_slots_token)
    if slot >= 0:
        block = slot // BLOCK_SIZE
        offset = slot % BLOCK_SIZE
        head = tl.arange(0, HEADS_TILE).to(tl.int64)[:, None]
        dim = tl.arange(0, DIM_TILE).to(tl.int64)[None, :]
        inside = (head < NUM_KV_HEADS) & (dim < HEAD_DIM)
        k = tl.load(k_ptr + token * stride_k_token + head * stride_k_head + dim * stride_k_dim, mask=inside, other=0.0)
        v = tl.load(v_ptr + token * stride_v_token + head * stride_v_head + dim * stride_v_dim, mask=inside, other=0.0)
        k = to_cache(k, k_scale_ptr, head, NUM_KV_HEADS, k_cache_ptr.dtype.element_ty)
        v = to_cache(v, v_scale_ptr, head, NUM_KV_HEADS, v_cache_ptr.dtype.element_ty)
        k_place = key_offsets(
            block, offset, head, dim, stride_kc_block, stride_kc_offset, stride_kc_head, stride_kc_chunk,
            stride_kc_dim, CHUNK, False,
        )  # fmt: skip
        v_place = value_offsets(
            block, offset, head, dim, stride_vc_block, stride_vc_offset, stride_vc_head, stride_vc_dim, 1
        )
        tl.store(k_cache_ptr + k_place, k, mask=inside)
        tl.store(v_cache_ptr + v_place, v, mask=inside)
