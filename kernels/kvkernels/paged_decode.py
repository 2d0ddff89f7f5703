# A compiled kernel is not Python: its body is excused from annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Decode attention over a paged cache: one query token a request, long contexts split over several programs.

A context is cut into parts of a fixed number of tokens, so what is added up in which order depends on the request
alone: its result is the same, to the bit, whoever shares the batch. The parts of a step are listed on the host, so
that no program is launched for a part that is not there, and the workspace has a line for every part that is.
"""

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from kvkernels._launch import Launch, check_shape, strides
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
from kvkernels.tuning import DECODE_PART_TOKENS, decode_tile

_OP = "paged_decode"
_REDUCE_TILE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeParts:
    """The parts of all contexts of a step, in order of rows; every row has one at least."""

    parts: NDArray[np.int32]
    """[num_parts, 2]: the row, and which part of its context."""
    row_starts: NDArray[np.int32]
    """[num_rows + 1]: row i has parts `row_starts[i] .. row_starts[i + 1] - 1`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePlan:
    """The parts of a step on the device, and the workspace for their results; the layers of a step share it."""

    parts: Tensor
    """[num_parts, 2], int32: the row, and which part of its context; a negative row is padding."""
    row_starts: Tensor
    """[num_rows + 1], int32."""
    partial: Tensor
    """[num_parts, num_heads, head_dim], float32; the attention over each part alone."""
    logsum: Tensor
    """[num_parts, num_heads], float32; log2 of each part's summed weights."""
    is_split: bool
    """Whether any row has more than one part."""


def decode_parts(context_lens: NDArray[np.int32], *, window: int | None = None) -> DecodeParts:
    """List the parts of every context that a token at its end sees.

    Shapes:
        context_lens: [num_rows], tokens; 0 for a padding row, which gets one part to write its zeros
    """
    first = 0 if window is None else np.maximum(context_lens - window, 0) // DECODE_PART_TOKENS
    end = np.maximum(-(-context_lens // DECODE_PART_TOKENS), first + 1)
    counts = end - first
    row_starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    rows = np.repeat(np.arange(len(counts)), counts)
    places = np.arange(row_starts[-1]) - np.repeat(row_starts[:-1] - first, counts)
    return DecodeParts(parts=np.stack((rows, places), axis=1).astype(np.int32), row_starts=row_starts)


def plan_decode(
    context_lens: NDArray[np.int32], *, num_heads: int, head_dim: int, device: torch.device, window: int | None = None
) -> DecodePlan:
    """List the parts of a step, and allocate their workspace on a device."""
    listed = decode_parts(context_lens, window=window)
    num_parts = len(listed.parts)
    return DecodePlan(
        parts=torch.from_numpy(listed.parts).to(device),
        row_starts=torch.from_numpy(listed.row_starts).to(device),
        partial=torch.empty(num_parts, num_heads, head_dim, dtype=torch.float32, device=device),
        logsum=torch.empty(num_parts, num_heads, dtype=torch.float32, device=device),
        is_split=num_parts > len(context_lens),
    )


def keep_decode_plan(num_rows: int, num_parts: int, *, partial: Tensor, logsum: Tensor) -> DecodePlan:
    """Make a plan of padding alone, in tensors that `refill_decode_plan` fills for one step after the other.

    Plans that take turns may share the workspace.

    Shapes:
        partial: [num_parts or more, num_heads, head_dim], float32
        logsum: [num_parts or more, num_heads], float32
    """
    device = partial.device
    return DecodePlan(
        parts=torch.full((num_parts, 2), -1, dtype=torch.int32, device=device),
        row_starts=torch.zeros(num_rows + 1, dtype=torch.int32, device=device),
        partial=partial[:num_parts],
        logsum=logsum[:num_parts],
        is_split=num_parts > num_rows,
    )


def refill_decode_plan(plan: DecodePlan, context_lens: NDArray[np.int32], *, window: int | None = None) -> None:
    """Write the parts of a step into a kept plan; what is left of it is padding.

    Raises:
        ValueError: They are more than it has room for.
    """
    listed, room = decode_parts(context_lens, window=window), plan.parts.shape[0]
    if len(listed.parts) > room:
        raise ValueError(f"{_OP}: {len(listed.parts)} parts do not fit into a plan of {room}")
    parts = np.full((room, 2), -1, dtype=np.int32)
    parts[: len(listed.parts)] = listed.parts
    plan.parts.copy_(torch.from_numpy(parts))
    plan.row_starts.copy_(torch.from_numpy(listed.row_starts))


def paged_decode(
    q: Tensor,
    cache: PagedKV,
    block_tables: Tensor,
    context_lens: Tensor,
    plan: DecodePlan,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attend from one query token a request, as `reference.paged_decode` does.

    Shapes:
        q: [num_rows, num_heads, head_dim], any strides; the query heads of one KV head lie side by side
        block_tables: [num_rows, max_blocks], int32; entries of blocks that the token does not see are not read
        context_lens: [num_rows], int32, tokens; 0 for a padding row
        plan: made from the same context lengths and window
        out: [num_rows, num_heads, head_dim], any strides; allocated where it is not given

    Returns:
        `out`, q's type, 0 for padding rows; softmax and sums are float32.

    Raises:
        ValueError: Shapes do not go together, or the tensors are where the kernel cannot run.
        TypeError: A tensor has another type, or bfloat16 tensors meet the interpreter.

    Source: Kwon et al. 2023, arXiv:2309.06180; split contexts after Dao et al. 2023, "Flash-Decoding".
    """
    out = torch.empty_like(q) if out is None else out
    for launch in paged_decode_launches(
        q, cache, block_tables, context_lens, plan, scale=scale, window=window, softcap=softcap, out=out
    ):
        launch.run()
    return out


def paged_decode_launches(
    q: Tensor,
    cache: PagedKV,
    block_tables: Tensor,
    context_lens: Tensor,
    plan: DecodePlan,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    out: Tensor,
) -> list[Launch]:
    """Prepare `paged_decode`: attention over the parts, then their sum where a row has several."""
    check_attention(_OP, q, cache, block_tables, context_lens, window)
    num_rows, num_heads, head_dim = q.shape
    check_shape(_OP, "context_lens", context_lens, (num_rows,))
    check_shape(_OP, "out", out, (num_rows, num_heads, head_dim))
    check_shape(_OP, "plan.row_starts", plan.row_starts, (num_rows + 1,))
    check_shape(_OP, "plan.partial", plan.partial, (plan.parts.shape[0], num_heads, head_dim))
    groups = head_groups(num_heads, cache.num_kv_heads)
    tile = decode_tile(head_dim, groups.rows, q.dtype, has_key_chunks=cache.chunk < head_dim)
    workspace: dict[str, Tensor | int] = {
        "row_starts_ptr": plan.row_starts,
        "partial_ptr": plan.partial,
        "logsum_ptr": plan.logsum,
        **strides("partial", plan.partial, "part", "head", "dim"),
        **strides("logsum", plan.logsum, "part", "head"),
    }
    attend = Launch(
        op=_OP,
        kernel=_decode_kernel,
        grid=(plan.parts.shape[0], cache.num_kv_heads * groups.tiles),
        arguments={
            **attention_arguments(q, cache, block_tables, context_lens, out, scale),
            "parts_ptr": plan.parts,
            **workspace,
        },
        constants={
            **attention_constants(cache, groups, window, softcap),
            "PART_TOKENS": DECODE_PART_TOKENS,
            "ROWS": max(16, triton.next_power_of_2(groups.rows)),
            "TILE": tile.keys,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    add_up = Launch(
        op=_OP,
        kernel=_reduce_kernel,
        grid=(num_rows, num_heads),
        arguments={"out_ptr": out, **strides("out", out, "token", "head", "dim"), **workspace},
        constants={
            "HEAD_DIM": head_dim,
            "DIM_TILE": triton.next_power_of_2(head_dim),
            "PARTS_TILE": _REDUCE_TILE,
        },
    )
    return [attend, add_up] if plan.is_split else [attend]


@triton.jit(do_not_specialize=PER_STEP_NUMBERS, do_not_specialize_on_alignment=PER_STEP_POINTERS)
def _decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    tables_ptr,
    lens_ptr,
    out_ptr,
    parts_ptr,
    row_starts_ptr,
    partial_ptr,
    logsum_ptr,
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
    stride_out_token,
    stride_out_head,
    stride_out_dim,
    stride_partial_part,
    stride_partial_head,
    stride_partial_dim,
    stride_logsum_part,
    stride_logsum_head,
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
    PART_TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """out[h, :] = sum_j softmax_j(scale * q[h, :] . k[j, :]) v[j, :] over the positions j of one part.

    One program a part and KV head: the query heads of the KV head are the rows of one product, so keys and values are
    read once for all of them. The only part of a row is its result; of several, each leaves its own attention and the
    log2 of its summed weights in the workspace.
    """
    part = tl.program_id(0).to(tl.int64)
    row = tl.load(parts_ptr + 2 * part).to(tl.int64)
    if row >= 0:
        place = tl.load(parts_ptr + 2 * part + 1)
        context_len = tl.load(lens_ptr + row * stride_lens_row)
        first_part = tl.load(row_starts_ptr + row)
        end_part = tl.load(row_starts_ptr + row + 1)

        kv_head = (tl.program_id(1) // GROUP_TILES).to(tl.int64)
        member = (tl.program_id(1) % GROUP_TILES) * GROUP_ROWS + tl.arange(0, ROWS)
        head = kv_head * GROUP_SIZE + member
        dim = tl.arange(0, DIM_TILE)
        is_row = (tl.arange(0, ROWS) < GROUP_ROWS) & (member < GROUP_SIZE)
        mask = is_row[:, None] & (dim < HEAD_DIM)[None, :]
        q_place = row * stride_q_token + head[:, None] * stride_q_head + dim[None, :] * stride_q_dim
        q = tl.load(q_ptr + q_place, mask=mask, other=0.0)
        score_scale = scale * head_scale(k_scale_ptr, kv_head)

        first_seen = 0
        if WINDOW:
            first_seen = tl.maximum(context_len - WINDOW, 0)
        end = tl.minimum((place + 1) * PART_TOKENS, context_len)
        start = tl.maximum(place * PART_TOKENS, first_seen // TILE * TILE)
        highest = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, DIM_TILE], tl.float32)
        for tile_start in range(start, end, TILE):
            position = tl.multiple_of(tile_start, TILE) + tl.arange(0, TILE)
            seen = (position >= first_seen) & (position < end)
            k, v = load_keys_and_values(
                k_ptr, v_ptr, tables_ptr + row * stride_tables_row, kv_head, position, first_seen, end,
                stride_k_block, stride_k_offset, stride_k_head, stride_k_chunk, stride_k_dim,
                stride_v_block, stride_v_offset, stride_v_head, stride_v_dim, stride_tables_block,
                BLOCK_SIZE, HEAD_DIM, CHUNK, VALUE_ALIGNMENT, DIM_TILE, q_ptr.dtype.element_ty,
            )  # fmt: skip
            highest, total, acc = softmax_step(q, k, v, seen[None, :], score_scale, highest, total, acc, SOFTCAP)

        # An empty row has no weights: its zeros are divided by 1.
        acc = acc / tl.where(total > 0, total, 1.0)[:, None] * head_scale(v_scale_ptr, kv_head)
        if end_part - first_part == 1:
            out_place = row * stride_out_token + head[:, None] * stride_out_head + dim[None, :] * stride_out_dim
            tl.store(out_ptr + out_place, acc, mask=mask)
        else:
            partial_place = (
                part * stride_partial_part + head[:, None] * stride_partial_head + dim[None, :] * stride_partial_dim
            )
            tl.store(partial_ptr + partial_place, acc, mask=mask)
            logsum = highest + tl.log2(total)
            tl.store(logsum_ptr + part * stride_logsum_part + head * stride_logsum_head, logsum, mask=is_row)


@triton.jit(do_not_specialize_on_alignment=PER_STEP_POINTERS)
def _reduce_kernel(
    out_ptr,
    row_starts_ptr,
    partial_ptr,
    logsum_ptr,
    stride_out_token,
    stride_out_head,
    stride_out_dim,
    stride_partial_part,
    stride_partial_head,
    stride_partial_dim,
    stride_logsum_part,
    stride_logsum_head,
    HEAD_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    PARTS_TILE: tl.constexpr,
):
    """out[h, :] = sum_p w[p] partial[p, h, :] / sum_p w[p], with w[p] = 2 ** logsum[p, h], over the parts p of a row.

    One program a row and head; a row of one part has its result already.
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    first = tl.load(row_starts_ptr + row)
    end = tl.load(row_starts_ptr + row + 1)
    if end - first > 1:
        dim = tl.arange(0, DIM_TILE)
        is_dim = dim < HEAD_DIM
        highest = float("-inf")
        total = 0.0
        acc = tl.zeros([DIM_TILE], tl.float32)
        for start in range(first, end, PARTS_TILE):
            part = (start + tl.arange(0, PARTS_TILE)).to(tl.int64)
            is_part = part < end
            logsum_place = part * stride_logsum_part + head * stride_logsum_head
            logsum = tl.load(logsum_ptr + logsum_place, mask=is_part, other=float("-inf"))
            place = part[:, None] * stride_partial_part + head * stride_partial_head + dim[None, :] * stride_partial_dim
            partial = tl.load(partial_ptr + place, mask=is_part[:, None] & is_dim[None, :], other=0.0)
            new_highest = tl.maximum(highest, tl.max(logsum, 0))
            weights = tl.exp2(logsum - new_highest)
            kept = tl.exp2(highest - new_highest)
            total = total * kept + tl.sum(weights, 0)
            acc = acc * kept + tl.sum(weights[:, None] * partial, 0)
            highest = new_highest
        out_place = row * stride_out_token + head * stride_out_head + dim * stride_out_dim
        tl.store(out_ptr + out_place, acc / total, mask=is_dim)
