# A compiled kernel is not Python: its body is excused from annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Writing the keys and values of a step into the paged cache."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvkernels._launch import check_dtype, check_launchable, check_shape

_OP = "store_kv"


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Write keys and values into their slots, as `reference.store_kv` does.

    Shapes:
        k, v: [num_tokens, num_kv_heads, head_dim], any strides
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], any strides; changed in place
        slots: [num_tokens], int64, distinct; negative ones are skipped

    Raises:
        ValueError: Shapes do not go together, or the tensors are where the kernel cannot run.
        TypeError: The slots are not int64, or bfloat16 tensors meet the interpreter.
    """
    num_tokens, num_kv_heads, head_dim = k.shape
    num_blocks, block_size = k_cache.shape[:2]
    check_shape(_OP, "v", v, (num_tokens, num_kv_heads, head_dim))
    check_shape(_OP, "k_cache", k_cache, (num_blocks, block_size, num_kv_heads, head_dim))
    check_shape(_OP, "v_cache", v_cache, (num_blocks, block_size, num_kv_heads, head_dim))
    check_shape(_OP, "slots", slots, (num_tokens,))
    check_dtype(_OP, "slots", slots, torch.int64)
    check_launchable(_OP, k, v, k_cache, v_cache, slots)
    if not k.numel():
        return
    _store_kv_kernel[(num_tokens,)](
        k,
        v,
        k_cache,
        v_cache,
        slots,
        *k.stride(),
        *v.stride(),
        *k_cache.stride(),
        *v_cache.stride(),
        slots.stride(0),
        BLOCK_SIZE=block_size,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        HEADS_TILE=triton.next_power_of_2(num_kv_heads),
        DIM_TILE=triton.next_power_of_2(head_dim),
    )


@triton.jit
def _store_kv_kernel(
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
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
    stride_kc_dim,
    stride_vc_block,
    stride_vc_offset,
    stride_vc_head,
    stride_vc_dim,
    stride_slots,
    BLOCK_SIZE: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEADS_TILE: tl.constexpr,
    DIM_TILE: tl.constexpr,
):
    """cache[slot // BLOCK_SIZE, slot % BLOCK_SIZE, h, d] = x[t, h, d], with slot = slots[t], nothing where slot < 0.

    One program a token. int64: offsets pass 2**31 at 2.1 M slots of 1,024 elements.
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token * stride_slots)
    block = slot // BLOCK_SIZE
    offset = slot % BLOCK_SIZE
    head = tl.arange(0, HEADS_TILE).to(tl.int64)[:, None]
    dim = tl.arange(0, DIM_TILE).to(tl.int64)[None, :]
    inside = (head < NUM_KV_HEADS) & (dim < HEAD_DIM) & (slot >= 0)
    k = tl.load(k_ptr + token * stride_k_token + head * stride_k_head + dim * stride_k_dim, mask=inside, other=0.0)
    v = tl.load(v_ptr + token * stride_v_token + head * stride_v_head + dim * stride_v_dim, mask=inside, other=0.0)
    k_place = block * stride_kc_block + offset * stride_kc_offset + head * stride_kc_head + dim * stride_kc_dim
    v_place = block * stride_vc_block + offset * stride_vc_offset + head * stride_vc_head + dim * stride_vc_dim
    tl.store(k_cache_ptr + k_place, k, mask=inside)
    tl.store(v_cache_ptr + v_place, v, mask=inside)
