"""Attention in plain torch, on any device: gather the blocks into a reused workspace, then SDPA.

A layer's pool is one tensor [2, num_blocks, num_kv_heads, block_size, head_dim] (K, then V). Heads stand before
offsets, so that gathering whole (block, head) lines yields contiguous [num_kv_heads, context, head_dim]. Gathered
results go to a kept buffer: a fresh one costs page faults, five times the copy itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvengine.batch import ForwardBatch
from kvengine.spec import KVCacheSpec
from kvengine.units import cdiv, round_up
from kvkernels.reference import copy_blocks

_QUERY_TILE = 512
"""Most query tokens attended at once; bounds the mask."""
_GROUP_BYTES = 4 * 2**20
"""Size of the gathered keys and values of one decode group, to be read again while still in the processor's cache:
a layer of 32 requests of 1,024 tokens takes 7.9 ms with it, 11.3 ms in one piece (9/3 heads of 64, float32, Zen 4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecodeGroup:
    """Rows of similar length that are attended together, padded to the longest of them."""

    rows: Tensor | None
    """Their places in the batch; None when they are all its decode rows, in order."""
    num_rows: int
    num_blocks: int
    """Blocks of the longest row."""
    lines: Tensor
    """[num_rows * num_kv_heads * num_blocks], int64, lines of the pool to gather."""
    mask: Tensor
    """[num_rows, 1, 1, num_blocks * block_size], 0 or -inf, added to the scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PrefillRow:
    """One chunk: which query tokens, and what they may see."""

    first: int
    """Place of the first query token among those of all chunks."""
    num_tokens: int
    context_len: int
    lines: Tensor


class TorchBackend:
    """Pools of all layers, and attention over them by gather and SDPA.

    Args:
        spec: Geometry of the cache.
        num_blocks: Blocks in the pool, the null block included.
        num_heads: Query heads.
        dtype: Type of the cache, and of q, k and v.
        device: Where the pools are allocated.
    """

    name = "torch"

    def __init__(
        self, spec: KVCacheSpec, num_blocks: int, *, num_heads: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.device = device
        self.dtype = dtype
        self._block_size = spec.block_size
        self._num_heads = num_heads
        self._num_kv_heads = spec.num_kv_heads
        self._head_dim = spec.head_dim
        self._scale = spec.head_dim**-0.5
        shape = (2, num_blocks, spec.num_kv_heads, spec.block_size, spec.head_dim)
        # Zeros, not garbage: what a mask hides is still multiplied by 0, and 0 * nan is nan. Block 0 stays so.
        self._pools = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(spec.num_layers)]
        self._heads = torch.arange(spec.num_kv_heads, device=device)
        self._workspace = torch.empty(0, dtype=dtype, device=device)
        self._causal_mask = torch.empty(_QUERY_TILE, 0, dtype=dtype, device=device)
        self._store_lines = torch.empty(0, dtype=torch.int64, device=device)
        self._begun_blocks = torch.empty(0, dtype=torch.int64, device=device)
        self._groups: list[_DecodeGroup] = []
        self._prefills: list[_PrefillRow] = []

    @property
    def cache_bytes(self) -> int:
        """Bytes allocated for the pools of all layers."""
        return sum(pool.nbytes for pool in self._pools)

    def plan(self, batch: ForwardBatch) -> None:
        """Work out which lines each part of the batch reads and writes, and the decode masks."""
        tables = batch.block_tables.long()
        block, offset = batch.slots // self._block_size, batch.slots % self._block_size
        self._store_lines = ((block * self._num_kv_heads)[:, None] + self._heads).mul_(self._block_size)
        self._store_lines = self._store_lines.add_(offset[:, None]).flatten()
        # A block of one slot has no rest that an earlier owner could have left something in.
        self._begun_blocks = block[offset == 0] if self._block_size > 1 else block[:0]
        self._groups = [
            self._decode_group(tables, rows, batch.host_context_lens, all_rows=len(rows) == batch.num_decodes)
            for rows in self._similar_rows(batch.host_context_lens[: batch.num_decodes])
        ]
        first_token = batch.host_query_start_loc - batch.num_decodes
        self._prefills = [
            self._prefill_row(tables[row], int(first_token[row]), int(first_token[row + 1]), int(context_len))
            for row, context_len in enumerate(batch.host_context_lens)
            if row >= batch.num_decodes
        ]
        longest = max((row.context_len for row in self._prefills), default=0)
        self._grow_causal_mask(longest)

    def store_kv(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write a layer's new keys and values; one line of `head_dim` per token and head.

        A block is cleared when its first slot is written: an inf or nan left in it by an earlier request would pass
        through the mask of the slots that are not written yet.
        """
        for pool, values in zip(self._pools[layer], (k, v), strict=True):
            pool.index_fill_(0, self._begun_blocks, 0)
            pool.view(-1, self._head_dim).index_copy_(0, self._store_lines, values.reshape(-1, self._head_dim))

    def decode(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Attend group by group; the query heads of one KV head are the query rows of SDPA."""
        group_size = self._num_heads // self._num_kv_heads
        for group in self._groups:
            k, v = self._gather(layer, group.lines, group.num_rows)
            queries = q if group.rows is None else q[group.rows]
            attended = scaled_dot_product_attention(
                queries.view(group.num_rows, self._num_kv_heads, group_size, self._head_dim),
                k,
                v,
                attn_mask=group.mask,
                scale=self._scale,
            ).view(group.num_rows, self._num_heads, self._head_dim)
            if group.rows is None:
                out.copy_(attended)
            else:
                out[group.rows] = attended

    def prefill(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Attend chunk by chunk, each in tiles of queries that see the context up to their own end."""
        for row in self._prefills:
            k, v = self._gather(layer, row.lines, 1)
            history = row.context_len - row.num_tokens
            for start in range(0, row.num_tokens, _QUERY_TILE):
                end = min(start + _QUERY_TILE, row.num_tokens)
                queries = q[row.first + start : row.first + end].transpose(0, 1)
                visible = history + end
                attended = scaled_dot_product_attention(
                    queries[None],
                    k[:, :, :visible],
                    v[:, :, :visible],
                    attn_mask=self._causal(end - start, visible),
                    scale=self._scale,
                    enable_gqa=True,
                )
                out[row.first + start : row.first + end] = attended[0].transpose(0, 1)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks in all layers."""
        for pool in self._pools:
            copy_blocks(pool, pool, copies, block_dim=1)

    def _similar_rows(self, context_lens: NDArray[np.int32]) -> Iterator[NDArray[np.int64]]:
        """Split decode rows by length, so that padding at most doubles what is gathered, and by the group's size."""
        order = np.argsort(context_lens, kind="stable")
        row_bytes = 2 * self._num_kv_heads * self._head_dim * self.dtype.itemsize
        start = 0
        for place in range(1, len(order) + 1):
            if place < len(order):
                longest = int(context_lens[order[place]])
                fits = (place - start + 1) * longest * row_bytes <= _GROUP_BYTES
                if fits and longest <= 2 * context_lens[order[start]] + 64:
                    continue
            yield np.sort(order[start:place])
            start = place

    def _decode_group(
        self, tables: Tensor, rows: NDArray[np.int64], context_lens: NDArray[np.int32], *, all_rows: bool
    ) -> _DecodeGroup:
        num_blocks = cdiv(int(context_lens[rows].max()), self._block_size)
        index = torch.from_numpy(rows).to(self.device)
        lengths = torch.from_numpy(context_lens[rows]).to(self.device)
        # Where a row has no block, the null block is gathered: it is never written and never another request's.
        no_block = torch.arange(num_blocks, device=self.device) * self._block_size >= lengths[:, None]
        blocks = tables[index, :num_blocks].masked_fill_(no_block, 0)
        hidden = torch.arange(num_blocks * self._block_size, device=self.device) >= lengths[:, None]
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device).masked_fill_(hidden, float("-inf"))
        return _DecodeGroup(
            rows=None if all_rows else index,
            num_rows=len(rows),
            num_blocks=num_blocks,
            lines=self._lines(blocks),
            mask=mask[:, None, None, :],
        )

    def _prefill_row(self, table: Tensor, first: int, end: int, context_len: int) -> _PrefillRow:
        num_blocks = cdiv(context_len, self._block_size)
        return _PrefillRow(
            first=first,
            num_tokens=end - first,
            context_len=context_len,
            lines=self._lines(table[None, :num_blocks]),
        )

    def _lines(self, tables: Tensor) -> Tensor:
        """Lines of a pool seen as [num_blocks * num_kv_heads, ...], by request, then head, then block."""
        return (tables[:, None, :] * self._num_kv_heads + self._heads[:, None]).flatten()

    def _gather(self, layer: int, lines: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
        """Read keys and values as [num_rows, num_kv_heads, num_blocks * block_size, head_dim]."""
        line_size = self._block_size * self._head_dim
        size = lines.shape[0] * line_size
        if self._workspace.shape[0] < 2 * size:
            self._workspace = torch.empty(3 * size, dtype=self.dtype, device=self.device)
        gathered = self._workspace[: 2 * size].view(2, lines.shape[0], line_size)
        for pool, target in zip(self._pools[layer], gathered, strict=True):
            torch.index_select(pool.view(-1, line_size), 0, lines, out=target)
        k, v = gathered.view(2, num_rows, self._num_kv_heads, -1, self._head_dim)
        return k, v

    def _grow_causal_mask(self, context_len: int) -> None:
        """Keep one wide causal mask, of which every tile's mask is a window."""
        width = self._causal_mask.shape[1]
        if width < context_len + _QUERY_TILE:
            width = round_up(context_len + _QUERY_TILE, 1024)
            hidden = torch.ones(_QUERY_TILE, width, dtype=torch.bool, device=self.device).triu_(width - _QUERY_TILE + 1)
            zeros = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
            self._causal_mask = zeros.masked_fill_(hidden, float("-inf"))

    def _causal(self, num_queries: int, context_len: int) -> Tensor:
        """The mask of the last `num_queries` positions of a context: position i sees keys 0 .. i."""
        history = context_len - num_queries
        first = self._causal_mask.shape[1] - _QUERY_TILE - history
        return self._causal_mask[:num_queries, first : first + context_len]
