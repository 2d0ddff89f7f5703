"""Attention in plain torch, on any device: gather the blocks into a reused workspace, then SDPA.

A page's pool is one tensor [2, num_blocks, num_kv_heads, block_size, head_dim] (K, then V; latent rows have no V).
Heads stand before offsets, so that gathering whole (block, head) lines yields contiguous [num_kv_heads, context,
head_dim]. Gathered results go to a kept buffer: a fresh one costs page faults, five times the copy itself. Of a layer
with a window only the blocks that the window reaches into are gathered.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvengine.attention.base import ModelAttention
from kvengine.attention.host_cache import HostCache
from kvengine.batch import ForwardBatch
from kvengine.spec import KVCacheSpec
from kvengine.units import cdiv, round_up
from kvkernels.reference import copy_blocks

_QUERY_TILE = 512
"""Most query tokens attended at once; bounds the mask."""
_GROUP_BYTES = 4 * 2**20
"""Size of the gathered keys and values of one decode group, to be read again while still in the processor's cache:
a layer of 32 requests of 1,024 tokens takes 7.9 ms with it, 11.3 ms in one piece (9/3 heads of 64, float32, Zen 4)."""

_Key = tuple[int, int | None]
"""The group and the window of a layer."""


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
    history: int
    """Gathered tokens before the first query token."""
    lines: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """What layers with one block table and one window have in common in a step."""

    store_lines: Tensor
    """[num_tokens * num_kv_heads], int64, lines of `head_dim` to write."""
    begun_blocks: Tensor
    """Blocks whose first slot is written in this step."""
    window: int | None
    decodes: list[_DecodeGroup]
    prefills: list[_PrefillRow]


class TorchBackend:
    """Pools of all layers, and attention over them by gather and SDPA.

    Args:
        spec: Geometry of the cache.
        num_blocks: Blocks in the pool, the null block included.
        model: What the model asks of attention.
        dtype: Type of the cache, and of q, k and v.
        device: Where the pools are allocated.
    """

    name = "torch"

    def __init__(
        self, spec: KVCacheSpec, num_blocks: int, *, model: ModelAttention, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.device = device
        self.dtype = dtype
        self._block_size = spec.block_size
        self.value_size = model.value_size
        self._num_heads = model.num_heads
        self._num_kv_heads = spec.num_kv_heads
        self._head_dim = spec.head_dim
        self._scale = model.scale
        self._softcap = model.softcap
        self._places = [layer.place for layer in model.layers]
        self._keys = [(layer.group, layer.window) for layer in model.layers]
        shape = (2 if spec.head_dim_v else 1, num_blocks, spec.num_kv_heads, spec.block_size, spec.head_dim)
        # Zeros, not garbage: what a mask hides is still multiplied by 0, and 0 * nan is nan. Block 0 stays so.
        self._pools = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(spec.num_layers)]
        self._heads = torch.arange(spec.num_kv_heads, device=device)
        self._workspace = torch.empty(0, dtype=dtype, device=device)
        self._masks: dict[int | None, Tensor] = {}
        self._views: dict[_Key, _View] = {}

    @property
    def cache_bytes(self) -> int:
        """Bytes allocated for the pools of all layers."""
        return sum(pool.nbytes for pool in self._pools)

    def plan(self, batch: ForwardBatch) -> None:
        """Work out which lines each part of the batch reads and writes, and the decode masks."""
        self._views = {(group, window): self._view(batch, group, window) for group, window in dict.fromkeys(self._keys)}

    def store_kv(self, layer: int, k: Tensor, v: Tensor | None) -> None:
        """Write a layer's new keys and values; one line of `head_dim` per token and head.

        A block is cleared when its first slot is written: an inf or nan left in it by an earlier request would pass
        through the mask of the slots that are not written yet.
        """
        view = self._views[self._keys[layer]]
        for pool, values in zip(self._pools[self._places[layer]], (k,) if v is None else (k, v), strict=True):
            pool.index_fill_(0, view.begun_blocks, 0)
            pool.view(-1, self._head_dim).index_copy_(0, view.store_lines, values.reshape(-1, self._head_dim))

    def decode(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Attend group by group; the query heads of one KV head are the query rows of SDPA."""
        group_size = self._num_heads // self._num_kv_heads
        for group in self._views[self._keys[layer]].decodes:
            k, v = self._gather(layer, group.lines, group.num_rows)
            queries = q if group.rows is None else q[group.rows]
            queries = queries.view(group.num_rows, self._num_kv_heads, group_size, self._head_dim)
            attended = self._attend(queries, k, v, group.mask).view(group.num_rows, self._num_heads, self.value_size)
            if group.rows is None:
                out.copy_(attended)
            else:
                out[group.rows] = attended

    def prefill(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Attend chunk by chunk, each in tiles of queries that see the context, or a window of it, up to their end."""
        view = self._views[self._keys[layer]]
        for row in view.prefills:
            k, v = self._gather(layer, row.lines, 1)
            for start in range(0, row.num_tokens, _QUERY_TILE):
                end = min(start + _QUERY_TILE, row.num_tokens)
                queries = q[row.first + start : row.first + end].transpose(0, 1)
                visible = row.history + end
                first = 0 if view.window is None else max(0, row.history + start - view.window + 1)
                mask = self._causal(end - start, visible - first, view.window)
                attended = self._attend(queries[None], k[:, :, first:visible], v[:, :, first:visible], mask)
                out[row.first + start : row.first + end] = attended[0].transpose(0, 1)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks in all layers."""
        for pool in self._pools:
            copy_blocks(pool, pool, copies, block_dim=1)

    def host_cache(self, num_blocks: int) -> HostCache:
        """Make a host pool for each page's."""
        return HostCache(self._pools, num_blocks, copy=partial(copy_blocks, block_dim=1))

    def _view(self, batch: ForwardBatch, group: int, window: int | None) -> _View:
        tables, slots = batch.groups[group].block_tables.long(), batch.groups[group].slots
        block, offset = slots // self._block_size, slots % self._block_size
        store_lines = ((block * self._num_kv_heads)[:, None] + self._heads).mul_(self._block_size)
        decode_lens = batch.host_context_lens[: batch.num_decodes]
        first_token = batch.host_query_start_loc - batch.num_decodes
        return _View(
            store_lines=store_lines.add_(offset[:, None]).flatten(),
            # A block of one slot has no rest that an earlier owner could have left something in.
            begun_blocks=block[offset == 0] if self._block_size > 1 else block[:0],
            window=window,
            decodes=[
                self._decode_group(tables, rows, decode_lens, window, all_rows=len(rows) == batch.num_decodes)
                for rows in self._similar_rows(np.minimum(decode_lens, window or decode_lens))
            ],
            prefills=[
                self._prefill_row(tables[row], int(first_token[row]), int(first_token[row + 1]), int(length), window)
                for row, length in enumerate(batch.host_context_lens)
                if row >= batch.num_decodes
            ],
        )

    def _similar_rows(self, seen_lens: NDArray[np.int32]) -> Iterator[NDArray[np.int64]]:
        """Split decode rows by length, so that padding at most doubles what is gathered, and by the group's size."""
        order = np.argsort(seen_lens, kind="stable")
        row_bytes = 2 * self._num_kv_heads * self._head_dim * self.dtype.itemsize
        start = 0
        for place in range(1, len(order) + 1):
            if place < len(order):
                longest = int(seen_lens[order[place]])
                fits = (place - start + 1) * longest * row_bytes <= _GROUP_BYTES
                if fits and longest <= 2 * seen_lens[order[start]] + 64:
                    continue
            yield np.sort(order[start:place])
            start = place

    def _decode_group(
        self,
        tables: Tensor,
        rows: NDArray[np.int64],
        context_lens: NDArray[np.int32],
        window: int | None,
        *,
        all_rows: bool,
    ) -> _DecodeGroup:
        lens = context_lens[rows].astype(np.int64)
        seen_from = np.zeros_like(lens) if window is None else np.maximum(lens - window, 0)
        first_blocks = seen_from // self._block_size
        num_blocks = int((-(-lens // self._block_size) - first_blocks).max())
        index, length, start = (torch.from_numpy(values).to(self.device)[:, None] for values in (rows, lens, seen_from))
        logical = torch.from_numpy(first_blocks).to(self.device)[:, None] + torch.arange(num_blocks, device=self.device)
        # Where a row has no block, the null block is gathered: it is never written and never another request's.
        no_block = logical * self._block_size >= length
        blocks = tables[index, logical.clamp_max(tables.shape[1] - 1)].masked_fill_(no_block, 0)
        position = (
            logical[:, :, None] * self._block_size + torch.arange(self._block_size, device=self.device)
        ).flatten(1)
        hidden = (position >= length) | (position < start)
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device).masked_fill_(hidden, float("-inf"))
        return _DecodeGroup(
            rows=None if all_rows else index[:, 0],
            num_rows=len(rows),
            num_blocks=num_blocks,
            lines=self._lines(blocks),
            mask=mask[:, None, None, :],
        )

    def _prefill_row(self, table: Tensor, first: int, end: int, context_len: int, window: int | None) -> _PrefillRow:
        history = context_len - (end - first)
        first_block = 0 if window is None else max(0, history - window + 1) // self._block_size
        return _PrefillRow(
            first=first,
            num_tokens=end - first,
            history=history - first_block * self._block_size,
            lines=self._lines(table[None, first_block : cdiv(context_len, self._block_size)]),
        )

    def _lines(self, tables: Tensor) -> Tensor:
        """Lines of a pool seen as [num_blocks * num_kv_heads, ...], by request, then head, then block."""
        return (tables[:, None, :] * self._num_kv_heads + self._heads[:, None]).flatten()

    def _gather(self, layer: int, lines: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
        """Read keys and values as [num_rows, num_kv_heads, num_blocks * block_size, head_dim or value_size]."""
        pools = self._pools[self._places[layer]]
        line_size = self._block_size * self._head_dim
        size = len(pools) * lines.shape[0] * line_size
        if self._workspace.shape[0] < size:
            self._workspace = torch.empty(3 * size // 2, dtype=self.dtype, device=self.device)
        gathered = self._workspace[:size].view(len(pools), lines.shape[0], line_size)
        for pool, target in zip(pools, gathered, strict=True):
            torch.index_select(pool.view(-1, line_size), 0, lines, out=target)
        parts = gathered.view(len(pools), num_rows, self._num_kv_heads, -1, self._head_dim)
        return parts[0], parts[-1][..., : self.value_size]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """Attention of one group or tile; the query heads may be a multiple of those of keys and values."""
        if self._softcap is None:
            shared = q.shape[1] != k.shape[1]
            return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self._scale, enable_gqa=shared)
        repeats = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        scores = torch.tanh(q @ k.transpose(-1, -2) * (self._scale / self._softcap)) * self._softcap
        return (scores + mask).softmax(dim=-1, dtype=torch.promote_types(self.dtype, torch.float32)).to(self.dtype) @ v

    def _causal(self, num_queries: int, num_keys: int, window: int | None) -> Tensor:
        """The mask of the last `num_queries` of some positions: position i sees keys 0 .. i, or a window of them."""
        history = num_keys - num_queries
        mask = self._masks.get(window)
        if mask is None or mask.shape[1] < num_keys + _QUERY_TILE:
            mask = self._masks[window] = self._wide_mask(num_keys, window)
        first = mask.shape[1] - _QUERY_TILE - history
        return mask[:num_queries, first : first + num_keys]

    def _wide_mask(self, num_keys: int, window: int | None) -> Tensor:
        """One wide mask, of which every tile's mask is a part."""
        width = round_up(num_keys + _QUERY_TILE, 1024)
        shift = width - _QUERY_TILE
        everything = torch.ones(_QUERY_TILE, width, dtype=torch.bool, device=self.device)
        hidden = everything.triu(shift + 1)
        if window is not None:
            hidden |= everything.tril(shift - window)
        return torch.zeros(hidden.shape, dtype=self.dtype, device=self.device).masked_fill_(hidden, float("-inf"))
