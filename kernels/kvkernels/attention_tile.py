# A compiled kernel is not Python: its body is excused from annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""What decode and prefill share: arguments, tiles of keys and values read through a block table, a softmax step."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvkernels._launch import check_dtype, check_shape, strides
from kvkernels.cache_element import key_offsets, value_offsets
from kvkernels.layout import PagedKV

_MAX_GROUP_ROWS = 64
"""Query heads of one KV head that one program takes; more are dealt to several."""
_MAX_HEAD_DIM = 256
_SMALLEST_DOT = 16
"""`tl.dot` takes no shorter side."""
_LOG2_E = 1.4426950408889634
LOG2_E = tl.constexpr(_LOG2_E)
PER_STEP_NUMBERS = ("stride_tables_row",)
PER_STEP_POINTERS = ("tables_ptr", "lens_ptr", "loc_ptr", "tiles_ptr", "parts_ptr", "row_starts_ptr")
"""What differs from step to step: were Triton to compile for their alignment, steps would wait for its compiler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadGroups:
    """How the query heads of one KV head are dealt to programs."""

    size: int
    """Query heads of one KV head."""
    rows: int
    """Heads that one program takes."""
    tiles: int
    """Programs of one KV head."""


def head_groups(num_heads: int, num_kv_heads: int) -> HeadGroups:
    """Deal the query heads of one KV head; any number of them will do."""
    size = num_heads // num_kv_heads
    rows = min(size, _MAX_GROUP_ROWS)
    return HeadGroups(size=size, rows=rows, tiles=triton.cdiv(size, rows))


def check_attention(
    op: str, q: Tensor, cache: PagedKV, block_tables: Tensor, context_lens: Tensor, window: int | None
) -> None:
    """Refuse what does not go together.

    Raises:
        ValueError: Shapes differ, the heads do not divide or are too large, or the window is empty.
        TypeError: A tensor has another type.
    """
    if cache.head_dim > _MAX_HEAD_DIM:
        raise ValueError(f"{op}: head_dim is at most {_MAX_HEAD_DIM}, got {cache.head_dim}")
    if window is not None and window < 1:
        raise ValueError(f"{op}: a window holds at least the token itself, got {window}")
    if cache.chunk < cache.head_dim and any(stride % cache.chunk for stride in cache.k.stride()[:4]):
        raise ValueError(f"{op}: key chunks of {cache.chunk} must start at multiples of that, got {cache.k.stride()}")
    num_tokens, num_heads = q.shape[:2]
    if num_heads % cache.num_kv_heads:
        raise ValueError(f"{op}: {num_heads} query heads are no multiple of {cache.num_kv_heads} KV heads")
    check_shape(op, "q", q, (num_tokens, num_heads, cache.head_dim))
    check_shape(op, "context_lens", context_lens, (block_tables.shape[0],))
    check_dtype(op, "block_tables", block_tables, torch.int32)
    check_dtype(op, "context_lens", context_lens, torch.int32)


def attention_arguments(
    q: Tensor, cache: PagedKV, block_tables: Tensor, context_lens: Tensor, out: Tensor, scale: float
) -> dict[str, Tensor | int | float | None]:
    """Name the run-time arguments that both kernels take."""
    return {
        "q_ptr": q,
        "k_ptr": cache.k,
        "v_ptr": cache.v,
        "k_scale_ptr": cache.k_scale,
        "v_scale_ptr": cache.v_scale,
        "tables_ptr": block_tables,
        "lens_ptr": context_lens,
        "out_ptr": out,
        "scale": scale * _LOG2_E,
        **strides("q", q, "token", "head", "dim"),
        **strides("k", cache.k, "block", "offset", "head", "chunk", "dim"),
        **strides("v", cache.v, "block", "offset", "head", "dim"),
        **strides("tables", block_tables, "row", "block"),
        **strides("lens", context_lens, "row"),
        **strides("out", out, "token", "head", "dim"),
    }


def attention_constants(
    cache: PagedKV, groups: HeadGroups, window: int | None, softcap: float | None
) -> dict[str, int | float]:
    """Name the constants that both kernels take."""
    return {
        "BLOCK_SIZE": cache.block_size,
        "HEAD_DIM": cache.head_dim,
        "CHUNK": cache.chunk,
        "VALUE_ALIGNMENT": _value_alignment(cache),
        "GROUP_SIZE": groups.size,
        "GROUP_ROWS": groups.rows,
        "GROUP_TILES": groups.tiles,
        "WINDOW": window or 0,
        "SOFTCAP": (softcap or 0.0) * _LOG2_E,
        "DIM_TILE": max(_SMALLEST_DOT, triton.next_power_of_2(cache.head_dim)),
    }


def _value_alignment(cache: PagedKV) -> int:
    """Elements of which every run of a block's values along its tokens starts at a multiple; 1 where nothing is known.

    With key chunks a block's tokens lie side by side, so runs start where blocks do: all other strides are multiples
    of the block size. A tile of keys begins at a multiple of 16 tokens.
    """
    block_size: int = cache.block_size
    is_power = block_size & (block_size - 1) == 0
    others = [stride for dim, stride in enumerate(cache.v.stride()) if dim != 1]
    if cache.v.stride(1) != 1 or not is_power or any(stride % block_size for stride in others):
        return 1
    return min(block_size, _SMALLEST_DOT)


@triton.jit
def load_keys_and_values(
    k_ptr,
    v_ptr,
    table_ptr,
    kv_head,
    position,
    first_seen,
    end,
    stride_k_block,
    stride_k_offset,
    stride_k_head,
    stride_k_chunk,
    stride_k_dim,
    stride_v_block,
    stride_v_offset,
    stride_v_head,
    stride_v_dim,
    stride_tables_block,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CHUNK: tl.constexpr,
    VALUE_ALIGNMENT: tl.constexpr,
    DIM_TILE: tl.constexpr,
    TYPE: tl.constexpr,
):
    """Keys and values of some positions, [positions, dimensions], in the type of the queries; 0 for those not seen.

    Seen are `first_seen .. end - 1`. The block id is loaded for every position, so a tile's length has nothing to do
    with a block's. int64: offsets pass 2**31 at 2.1 M slots of 1,024 elements.
    """
    logical = position // BLOCK_SIZE
    # Whole blocks are asked for, so that Triton sees that the positions of a block share one id.
    in_block = (logical * BLOCK_SIZE < end) & (logical * BLOCK_SIZE + BLOCK_SIZE > first_seen)
    block = tl.load(table_ptr + logical * stride_tables_block, mask=in_block, other=0).to(tl.int64)[:, None]
    offset = (position % BLOCK_SIZE)[:, None]
    dim = tl.arange(0, DIM_TILE)[None, :]
    is_dim = dim < HEAD_DIM
    seen = ((position >= first_seen) & (position < end))[:, None]
    k_place = key_offsets(
        block, offset, kv_head, dim, stride_k_block, stride_k_offset, stride_k_head, stride_k_chunk, stride_k_dim,
        CHUNK, CHUNK < HEAD_DIM,
    )  # fmt: skip
    v_place = value_offsets(
        block, offset, kv_head, dim, stride_v_block, stride_v_offset, stride_v_head, stride_v_dim, VALUE_ALIGNMENT
    )
    k = tl.load(k_ptr + k_place, mask=seen & is_dim, other=0.0)
    if CHUNK < HEAD_DIM:
        # Values of one dimension lie together: loads run along the positions, which a mask by position would cut up.
        v = tl.load(v_ptr + v_place, mask=in_block[:, None] & is_dim, other=0.0)
        v = tl.where(seen, v, 0.0)
    else:
        v = tl.load(v_ptr + v_place, mask=seen & is_dim, other=0.0)
    return k.to(TYPE), v.to(TYPE)


@triton.jit
def softmax_step(q, k, v, visible, scale, highest, total, acc, SOFTCAP: tl.constexpr):
    """Fold one tile of keys into the running softmax of every query row; `scale` and `SOFTCAP` include log2(e).

    "ieee": without it a GPU would round float32 operands to 10 bits of mantissa. Source: Milakov and Gimelshein 2018,
    arXiv:1805.02867.
    """
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if SOFTCAP > 0.0:
        scores = soft_capped(scores, SOFTCAP)
    scores = tl.where(visible, scores, float("-inf"))
    new_highest = tl.maximum(highest, tl.max(scores, 1))
    # A row that has seen no key yet stays at -inf, and -inf - -inf is nan.
    base = tl.where(new_highest == float("-inf"), 0.0, new_highest)
    weights = tl.exp2(scores - base[:, None])
    kept = tl.exp2(highest - base)
    total = total * kept + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * kept[:, None], input_precision="ieee")
    return new_highest, total, acc


@triton.jit
def soft_capped(scores, SOFTCAP: tl.constexpr):
    """`SOFTCAP * tanh(scores / SOFTCAP)`, by a power that is at most 1: the interpreter has no tanh."""
    power = tl.exp2(tl.abs(scores) * (-2.0 * LOG2_E / SOFTCAP))
    size = SOFTCAP * (1.0 - power) / (1.0 + power)
    return tl.where(scores < 0, -size, size)


@triton.jit
def head_scale(scale_ptr, kv_head):
    """The scale of a head; 1 where the cache has none."""
    scale = 1.0
    if scale_ptr is not None:
        scale = tl.load(scale_ptr + kv_head)
    return scale
