# A compiled kernel is not Python: its body is excused from annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Rotary positions and the cache write in one pass: keys are turned on their way into their slots."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvkernels._launch import Launch, check_dtype, check_shape, strides
from kvkernels.cache_element import key_offsets, to_cache, value_offsets
from kvkernels.layout import PagedKV

_OP = "rope_store"
_MAX_HEADS_TILE = 8
"""Heads of one program: 8 of 128 dimensions are 8 elements a thread."""


def rope_store(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, cache: PagedKV, slots: Tensor, *, out: Tensor
) -> None:
    """Turn queries and keys as `reference.rope` does; write keys and values as `reference.store_kv` does.

    The turned key is rounded once, from float32 to the cache's type.

    Shapes:
        q: [num_tokens, num_heads, head_dim], any strides
        k, v: [num_tokens, num_kv_heads, head_dim], any strides
        cos, sin: [num_tokens, head_dim / 2]
        cache: changed in place
        slots: [num_tokens], int64, distinct; keys and values of negative ones are not written
        out: as q, the turned queries; may be q itself

    Raises:
        ValueError: Shapes do not go together, or the tensors are where the kernel cannot run.
        TypeError: The slots are not int64, or bfloat16 tensors meet the interpreter.
    """
    rope_store_launch(q, k, v, cos, sin, cache, slots, out=out).run()


def rope_store_launch(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, cache: PagedKV, slots: Tensor, *, out: Tensor
) -> Launch:
    """Prepare `rope_store`."""
    num_tokens, num_heads, head_dim = q.shape
    if head_dim % 2:
        raise ValueError(f"{_OP}: pairs need an even head_dim, got {head_dim}")
    num_kv_heads = cache.num_kv_heads
    for name, tensor, shape in (
        ("q", q, (num_tokens, num_heads, cache.head_dim)),
        ("k", k, (num_tokens, num_kv_heads, head_dim)),
        ("v", v, (num_tokens, num_kv_heads, head_dim)),
        ("cos", cos, (num_tokens, head_dim // 2)),
        ("sin", sin, (num_tokens, head_dim // 2)),
        ("slots", slots, (num_tokens,)),
        ("out", out, (num_tokens, num_heads, head_dim)),
    ):
        check_shape(_OP, name, tensor, shape)
    check_dtype(_OP, "slots", slots, torch.int64)
    tile = min(_MAX_HEADS_TILE, triton.next_power_of_2(max(num_heads, num_kv_heads)))
    q_tiles = triton.cdiv(num_heads, tile)
    return Launch(
        op=_OP,
        kernel=_rope_store_kernel,
        grid=(num_tokens, q_tiles + triton.cdiv(num_kv_heads, tile)),
        arguments={
            "q_ptr": q,
            "k_ptr": k,
            "v_ptr": v,
            "cos_ptr": cos,
            "sin_ptr": sin,
            "k_cache_ptr": cache.k,
            "v_cache_ptr": cache.v,
            "k_scale_ptr": cache.k_scale,
            "v_scale_ptr": cache.v_scale,
            "slots_ptr": slots,
            "out_ptr": out,
            **strides("q", q, "token", "head", "dim"),
            **strides("k", k, "token", "head", "dim"),
            **strides("v", v, "token", "head", "dim"),
            **strides("cos", cos, "token", "dim"),
            **strides("sin", sin, "token", "dim"),
            **strides("kc", cache.k, "block", "offset", "head", "chunk", "dim"),
            **strides("vc", cache.v, "block", "offset", "head", "dim"),
            **strides("slots", slots, "token"),
            **strides("out", out, "token", "head", "dim"),
        },
        constants={
            "BLOCK_SIZE": cache.block_size,
            "NUM_HEADS": num_heads,
            "NUM_KV_HEADS": num_kv_heads,
            "HALF": head_dim // 2,
            "CHUNK": cache.chunk,
            "Q_TILES": q_tiles,
            "HEADS_TILE": tile,
            "HALF_TILE": triton.next_power_of_2(head_dim // 2),
        },
        num_warps=2,
    )


@triton.jit
def _rope_store_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    cos_ptr,
    sin_ptr,
    k_cache_ptr,
    v_cache_ptr,
    k_scale_ptr,
    v_scale_ptr,
    slots_ptr,
    out_ptr,
    stride_q_token,
    stride_q_head,
    stride_q_dim,
    stride_k_token,
    stride_k_head,
    stride_k_dim,
    stride_v_token,
    stride_v_head,
    stride_v_dim,
    stride_cos_token,
    stride_cos_dim,
    stride_sin_token,
    stride_sin_dim,
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
    stride_out_token,
    stride_out_head,
    stride_out_dim,
    BLOCK_SIZE: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    CHUNK: tl.constexpr,
    Q_TILES: tl.constexpr,
    HEADS_TILE: tl.constexpr,
    HALF_TILE: tl.constexpr,
):
    """x[i], x[i + HALF] = x[i] cos[i] - x[i + HALF] sin[i], x[i + HALF] cos[i] + x[i] sin[i], for queries and keys.

    One program a token and tile of heads: first the query heads, then the KV heads. The angle of position 100,000 has
    17 bits, so cos and sin come from the caller, who made them in float32.
    """
    token = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    dim = tl.arange(0, HALF_TILE)[None, :]
    is_dim = dim < HALF
    cos = tl.load(cos_ptr + token * stride_cos_token + dim * stride_cos_dim, mask=is_dim, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + token * stride_sin_token + dim * stride_sin_dim, mask=is_dim, other=0.0).to(tl.float32)
    if tile < Q_TILES:
        head = (tile * HEADS_TILE + tl.arange(0, HEADS_TILE)).to(tl.int64)[:, None]
        inside = (head < NUM_HEADS) & is_dim
        first, second = turn(
            q_ptr + token * stride_q_token + head * stride_q_head + dim * stride_q_dim,
            HALF * stride_q_dim, cos, sin, inside,
        )  # fmt: skip
        place = token * stride_out_token + head * stride_out_head + dim * stride_out_dim
        tl.store(out_ptr + place, first, mask=inside)
        tl.store(out_ptr + place + HALF * stride_out_dim, second, mask=inside)
    else:
        slot = tl.load(slots_ptr + token * stride_slots_token)
        if slot >= 0:
            block = slot // BLOCK_SIZE
            offset = slot % BLOCK_SIZE
            head = ((tile - Q_TILES) * HEADS_TILE + tl.arange(0, HEADS_TILE)).to(tl.int64)[:, None]
            inside = (head < NUM_KV_HEADS) & is_dim
            first, second = turn(
                k_ptr + token * stride_k_token + head * stride_k_head + dim * stride_k_dim,
                HALF * stride_k_dim, cos, sin, inside,
            )  # fmt: skip
            first = to_cache(first, k_scale_ptr, head, NUM_KV_HEADS, k_cache_ptr.dtype.element_ty)
            second = to_cache(second, k_scale_ptr, head, NUM_KV_HEADS, k_cache_ptr.dtype.element_ty)
            first_place = key_offsets(
                block, offset, head, dim, stride_kc_block, stride_kc_offset, stride_kc_head, stride_kc_chunk,
                stride_kc_dim, CHUNK, False,
            )  # fmt: skip
            second_place = key_offsets(
                block, offset, head, dim + HALF, stride_kc_block, stride_kc_offset, stride_kc_head, stride_kc_chunk,
                stride_kc_dim, CHUNK, False,
            )  # fmt: skip
            tl.store(k_cache_ptr + first_place, first, mask=inside)
            tl.store(k_cache_ptr + second_place, second, mask=inside)
            for half in tl.static_range(2):
                v_dim = dim + half * HALF
                v = tl.load(
                    v_ptr + token * stride_v_token + head * stride_v_head + v_dim * stride_v_dim, mask=inside, other=0.0
                )
                v = to_cache(v, v_scale_ptr, head, NUM_KV_HEADS, v_cache_ptr.dtype.element_ty)
                v_place = value_offsets(
                    block, offset, head, v_dim, stride_vc_block, stride_vc_offset, stride_vc_head, stride_vc_dim, 1
                )
                tl.store(v_cache_ptr + v_place, v, mask=inside)


@triton.jit
def turn(x_ptr, to_second, cos, sin, inside):
    """Both halves of some heads, turned, in float32."""
    first = tl.load(x_ptr, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + to_second, mask=inside, other=0.0).to(tl.float32)
    return first * cos - second * sin, second * cos + first * sin
