# A compiled kernel is not Python: its body is excused from annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Slot mapping on the device: from block tables and positions to cache slots."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvkernels._launch import Launch, check_dtype, check_shape, strides

_OP = "slot_mapping"
_TILE = 256


def slot_mapping(block_tables: Tensor, query_start_loc: Tensor, positions: Tensor, *, block_size: int) -> Tensor:
    """Give the cache slot of every token of a packed batch, as `reference.slot_mapping` does.

    Shapes:
        block_tables: [num_requests, max_blocks], int32; entries past a request's positions are not read
        query_start_loc: [num_requests + 1], int32, ascending; request i owns tokens `loc[i] .. loc[i + 1] - 1`
        positions: [num_tokens], int64; tokens from `loc[-1]` on are padding

    Returns:
        [num_tokens], int64; padding tokens get -1.

    Raises:
        ValueError: Shapes do not go together, or the tensors are where the kernel cannot run.
        TypeError: A tensor has another type.
    """
    slots = torch.empty_like(positions)
    slot_mapping_launch(block_tables, query_start_loc, positions, slots, block_size=block_size).run()
    return slots


def slot_mapping_launch(
    block_tables: Tensor, query_start_loc: Tensor, positions: Tensor, slots: Tensor, *, block_size: int
) -> Launch:
    """Prepare `slot_mapping`."""
    num_requests = block_tables.shape[0]
    check_shape(_OP, "query_start_loc", query_start_loc, (num_requests + 1,))
    check_dtype(_OP, "block_tables", block_tables, torch.int32)
    check_dtype(_OP, "query_start_loc", query_start_loc, torch.int32)
    check_dtype(_OP, "positions", positions, torch.int64)
    return Launch(
        op=_OP,
        kernel=_slot_mapping_kernel,
        grid=(num_requests + 1,) if positions.numel() else (0,),
        arguments={
            "tables_ptr": block_tables,
            "loc_ptr": query_start_loc,
            "positions_ptr": positions,
            "slots_ptr": slots,
            "num_tokens": positions.shape[0],
            "num_requests": num_requests,
            **strides("tables", block_tables, "request", "block"),
            **strides("loc", query_start_loc, "request"),
            **strides("positions", positions, "token"),
            **strides("slots", slots, "token"),
        },
        constants={"BLOCK_SIZE": block_size, "TILE": _TILE},
    )


@triton.jit(
    do_not_specialize=("num_tokens", "num_requests", "stride_tables_request"),
    do_not_specialize_on_alignment=("tables_ptr", "loc_ptr", "positions_ptr"),
)
def _slot_mapping_kernel(
    tables_ptr,
    loc_ptr,
    positions_ptr,
    slots_ptr,
    num_tokens,
    num_requests,
    stride_tables_request,
    stride_tables_block,
    stride_loc_request,
    stride_positions_token,
    stride_slots_token,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """slots[t] = tables[r, p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE, with p = positions[t], t of request r.

    One program a request; one more writes -1 behind the last request. int64: a slot passes 2**31 at 134 M blocks of
    16, an offset into the tables at 16 K requests of 131,072 blocks.
    """
    request = tl.program_id(0).to(tl.int64)
    is_padding = request == num_requests
    first = tl.load(loc_ptr + request * stride_loc_request)
    end = tl.load(loc_ptr + (request + 1) * stride_loc_request, mask=request < num_requests, other=0)
    end = tl.where(is_padding, num_tokens, end)
    for start in range(first, end, TILE):
        token = (start + tl.arange(0, TILE)).to(tl.int64)
        inside = token < end
        position = tl.load(positions_ptr + token * stride_positions_token, mask=inside, other=0)
        block = tl.load(
            tables_ptr + request * stride_tables_request + (position // BLOCK_SIZE) * stride_tables_block,
            mask=inside & (request < num_requests),
            other=0,
        ).to(tl.int64)
        slot = tl.where(is_padding, -1, block * BLOCK_SIZE + position % BLOCK_SIZE)
        tl.store(slots_ptr + token * stride_slots_token, slot, mask=inside)
