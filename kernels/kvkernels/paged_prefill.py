# A compiled kernel is not Python: its body is excused from annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Causal attention of a ragged batch of chunks over their paged history: prefill, and every later part of one.

The queries of a chunk are cut into tiles; the tiles of a step are listed on the host, so that chunks of 1 and of
8,192 tokens can share a batch without programs that have nothing to do.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from kvkernels._launch import Launch, check_dtype, check_shape, strides
from kvkernels.attention_tile import (
    PER_STEP_NUMBERS,
    PER_STEP_POINTERS,
    attention_arguments,
    attention_constants,
    check_attention,
    head_groups,
    head_scale,
    load_keys_and_values,
    softmax_step,
)
from kvkernels.layout import PagedKV
from kvkernels.tuning import prefill_tile

_OP = "paged_prefill"


def plan_prefill(
    query_lens: NDArray[np.int64],
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """List the query tiles of a step; its layers share the list.

    Shapes:
        query_lens: [num_rows], tokens of each chunk

    Returns:
        [num_tiles, 2], int32, on the device: the row, and the tile's first token in its chunk.
    """
    tokens = _tile_tokens(num_heads, num_kv_heads, head_dim, dtype)
    counts = -(-query_lens // tokens)
    starts = np.cumsum(counts) - counts
    rows = np.repeat(np.arange(len(counts)), counts)
    first = (np.arange(len(rows)) - np.repeat(starts, counts)) * tokens
    return torch.from_numpy(np.stack((rows, first), axis=1).astype(np.int32)).to(device)


def paged_prefill(
    q: Tensor,
    cache: PagedKV,
    block_tables: Tensor,
    context_lens: Tensor,
    query_start_loc: Tensor,
    tiles: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attend from the last tokens of each context, as `reference.paged_prefill` does.

    Shapes:
        q: [num_tokens, num_heads, head_dim], any strides; the query heads of one KV head lie side by side
        block_tables: [num_rows, max_blocks], int32; entries of blocks that no token sees are not read
        context_lens: [num_rows], int32, tokens with those of this step
        query_start_loc: [num_rows + 1], int32, places in q
        tiles: what `plan_prefill` lists for the same heads and chunks
        out: [num_tokens, num_heads, head_dim], any strides; allocated, with zeros, where it is not given

    Returns:
        `out`, q's type; tokens from `query_start_loc[-1]` on are not written; softmax and sums are float32.

    Raises:
        ValueError: Shapes do not go together, or the tensors are where the kernel cannot run.
        TypeError: A tensor has another type, or bfloat16 tensors meet the interpreter.

    Source: Kwon et al. 2023, arXiv:2309.06180; tiles as in Dao 2023, arXiv:2307.08691.
    """
    out = torch.zeros_like(q) if out is None else out
    paged_prefill_launch(
        q,
        cache,
        block_tables,
        context_lens,
        query_start_loc,
        tiles,
        scale=scale,
        window=window,
        softcap=softcap,
        out=out,
    ).run()
    return out


def paged_prefill_launch(
    q: Tensor,
    cache: PagedKV,
    block_tables: Tensor,
    context_lens: Tensor,
    query_start_loc: Tensor,
    tiles: Tensor,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    out: Tensor,
) -> Launch:
    """Prepare `paged_prefill`."""
    check_attention(_OP, q, cache, block_tables, context_lens, window)
    check_shape(_OP, "out", out, tuple(q.shape))
    check_shape(_OP, "query_start_loc", query_start_loc, (block_tables.shape[0] + 1,))
    check_dtype(_OP, "query_start_loc", query_start_loc, torch.int32)
    check_dtype(_OP, "tiles", tiles, torch.int32)
    num_heads, head_dim = q.shape[1:]
    groups = head_groups(num_heads, cache.num_kv_heads)
    tile = prefill_tile(head_dim, q.dtype)
    return Launch(
        op=_OP,
        kernel=_prefill_kernel,
        grid=(tiles.shape[0], cache.num_kv_heads * groups.tiles),
        arguments={
            **attention_arguments(q, cache, block_tables, context_lens, out, scale),
            "loc_ptr": query_start_loc,
            "tiles_ptr": tiles,
            **strides("loc", query_start_loc, "row"),
        },
        constants={
            **attention_constants(cache, groups, window, softcap),
            "TOKENS": _tile_tokens(num_heads, cache.num_kv_heads, head_dim, q.dtype),
            "ROWS": _tile_rows(groups.rows, head_dim, q.dtype),
            "TILE": tile.keys,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def _tile_rows(group_rows: int, head_dim: int, dtype: torch.dtype) -> int:
    rows: int = triton.next_power_of_2(group_rows)
    return max(prefill_tile(head_dim, dtype).query_rows, rows)


def _tile_tokens(num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Whole tokens, all their query heads of one KV head, that fit the rows of a tile."""
    group_rows = head_groups(num_heads, num_kv_heads).rows
    return _tile_rows(group_rows, head_dim, dtype) // group_rows


@triton.jit(do_not_specialize=PER_STEP_NUMBERS, do_not_specialize_on_alignment=PER_STEP_POINTERS)
def _prefill_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    tables_ptr,
    lens_ptr,
    loc_ptr,
    tiles_ptr,
    out_ptr,
    scale,
    stride_q_token,
    stride_q_head,
    stride_q_dim,
    stride_k_block,
    stride_k_offset,
    stride_k_head,
    stride_k_chunk,
    stride_k_dim,
    stride_v_block,
    stride_v_offset,
    stride_v_head,
    stride_v_dim,
    stride_tables_row,
    stride_tables_block,
    stride_lens_row,
    stride_loc_row,
    stride_out_token,
    stride_out_head,
    stride_out_dim,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    CHUNK: tl.constexpr,
    VALUE_ALIGNMENT: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    GROUP_TILES: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    DIM_TILE: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """out[t, h, :] = sum_j softmax_j(scale * q[t, h, :] . k[j, :]) v[j, :] over the positions j <= p(t).

    p(t) is the token's own position; with a window also j > p(t) - WINDOW. One program a tile of TOKENS tokens and KV
    head: the rows of its products are (token, query head), so keys and values are read once for all heads of a group.
    """
    row = tl.load(tiles_ptr + 2 * tl.program_id(0)).to(tl.int64)
    first_token = tl.load(tiles_ptr + 2 * tl.program_id(0) + 1)
    query_start = tl.load(loc_ptr + row * stride_loc_row)
    query_len = tl.load(loc_ptr + (row + 1) * stride_loc_row) - query_start
    context_len = tl.load(lens_ptr + row * stride_lens_row)
    history = context_len - query_len

    kv_head = (tl.program_id(1) // GROUP_TILES).to(tl.int64)
    line = tl.arange(0, ROWS)
    token = first_token + line // GROUP_ROWS
    member = (tl.program_id(1) % GROUP_TILES) * GROUP_ROWS + line % GROUP_ROWS
    head = kv_head * GROUP_SIZE + member
    is_row = (line < TOKENS * GROUP_ROWS) & (token < query_len) & (member < GROUP_SIZE)
    dim = tl.arange(0, DIM_TILE)
    mask = is_row[:, None] & (dim < HEAD_DIM)[None, :]
    place = (query_start + token).to(tl.int64)[:, None]
    q_place = place * stride_q_token + head[:, None] * stride_q_head + dim[None, :] * stride_q_dim
    q = tl.load(q_ptr + q_place, mask=mask, other=0.0)
    score_scale = scale * head_scale(k_scale_ptr, kv_head)

    query_position = history + token
    first_seen = 0
    if WINDOW:
        first_seen = tl.maximum(history + first_token - WINDOW + 1, 0)
    end = tl.minimum(history + first_token + TOKENS, context_len)
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM_TILE], tl.float32)
    for tile_start in range(first_seen // TILE * TILE, end, TILE):
        position = tl.multiple_of(tile_start, TILE) + tl.arange(0, TILE)
        k, v = load_keys_and_values(
            k_ptr, v_ptr, tables_ptr + row * stride_tables_row, kv_head, position, first_seen, end,
            stride_k_block, stride_k_offset, stride_k_head, stride_k_chunk, stride_k_dim,
            stride_v_block, stride_v_offset, stride_v_head, stride_v_dim, stride_tables_block,
            BLOCK_SIZE, HEAD_DIM, CHUNK, VALUE_ALIGNMENT, DIM_TILE, q_ptr.dtype.element_ty,
        )  # fmt: skip
        visible = position[None, :] <= query_position[:, None]
        if WINDOW:
            visible = visible & (position[None, :] > query_position[:, None] - WINDOW)
        highest, total, acc = softmax_step(q, k, v, visible, score_scale, highest, total, acc, SOFTCAP)

    acc = acc / tl.where(total > 0, total, 1.0)[:, None] * head_scale(v_scale_ptr, kv_head)
    out_place = place * stride_out_token + head[:, None] * stride_out_head + dim[None, :] * stride_out_dim
    tl.store(out_ptr + out_place, acc, mask=mask)
