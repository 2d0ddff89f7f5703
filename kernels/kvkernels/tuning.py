"""Tile sizes, warps and stages of the attention kernels: one table, chosen by what fits, not yet by measurement.

No autotuning: it needs a driver, also where kernels are only interpreted or compiled, and a choice that depends on
timing would let the same request give other bits on another day.
"""

from dataclasses import dataclass

import torch

DECODE_PART_TOKENS = 256
"""Tokens of one part of a decode context. It must not depend on the batch; changing it changes results by rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """How much one program works on at a time."""

    keys: int
    """Keys and values of one step of its loop."""
    num_warps: int
    num_stages: int
    """Steps whose loads are in flight."""
    query_rows: int = 16
    """Rows (token and head) of prefill; decode has as many as a KV head has query heads, 16 at least."""


def decode_tile(head_dim: int, group_rows: int, dtype: torch.dtype, *, has_key_chunks: bool) -> Tile:
    """Give the tile of the decode kernel for the query heads that one program takes; parts are whole tiles."""
    if dtype.itemsize == 4:
        return _FLOAT32
    # 64 keys spill on sm_100 beside 64 query heads, and take 176 registers where keys of 128 lie in chunks.
    is_heavy = head_dim > 128 or group_rows > 32 or (has_key_chunks and head_dim > 64)
    return Tile(keys=32 if is_heavy else 64, num_warps=4, num_stages=3)


def prefill_tile(head_dim: int, dtype: torch.dtype) -> Tile:
    """Give the tile of the prefill kernel."""
    if dtype.itemsize == 4:
        return _FLOAT32
    # With 4 warps, 128 dimensions spill on sm_80.
    return Tile(keys=32 if head_dim > 128 else 64, num_warps=8 if head_dim > 64 else 4, num_stages=2, query_rows=64)


_FLOAT32 = Tile(keys=16, num_warps=4, num_stages=2)
"""Products of float32 are scalar and keep their operands in registers: 32 keys of 128 dimensions spill."""
