"""Attention in plain torch, on any device: gather the blocks into a reused workspace, then SDPA."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvengine.attention.base import ModelAttention
from kvengine.attention.chunks import Chunk, ChunkAttention
from kvengine.attention.host_cache import HostCache
from kvengine.attention.pools import KVScales, PagedPools, Writes
from kvengine.attention.sdpa import attend_gathered
from kvengine.batch import ForwardBatch
from kvengine.spec import KVCacheSpec

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
    lines: Tensor
    """[num_rows * num_kv_heads * num_blocks], int64, lines of the pool to gather, as many blocks as the longest has."""
    mask: Tensor
    """[num_rows, 1, 1, num_blocks * block_size], 0 or -inf, added to the scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """What layers with one block table and one window have in common in a step."""

    writes: Writes
    decodes: list[_DecodeGroup]
    chunks: list[Chunk]


class TorchBackend:
    """Pools of all layers, and attention over them by gather and SDPA.

    Args:
        spec: Geometry of the cache.
        num_blocks: Blocks in the pool, the null block included.
        model: What the model asks of attention.
        dtype: Type of q, k and v.
        device: Where the pools are allocated.
        cache_dtype: Type of the cache, if not that of q, k and v.
        scales: What each layer's cached values are multiplied by; None for 1.
    """

    name = "torch"

    def __init__(
        self,
        spec: KVCacheSpec,
        num_blocks: int,
        *,
        model: ModelAttention,
        dtype: torch.dtype,
        device: torch.device,
        cache_dtype: torch.dtype | None = None,
        scales: Sequence[KVScales] | None = None,
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.value_size = model.value_size
        self._model = model
        self._keys = [(layer.group, layer.window) for layer in model.layers]
        self._pools = PagedPools(
            spec, num_blocks, model=model, dtype=dtype, cache_dtype=cache_dtype or dtype, device=device, scales=scales
        )
        self._chunks = ChunkAttention(model, self._pools)
        self._views: dict[_Key, _View] = {}

    @property
    def cache_bytes(self) -> int:
        """Bytes allocated for the pools of all layers."""
        return self._pools.size_bytes

    def plan(self, batch: ForwardBatch) -> None:
        """Work out which lines each part of the batch reads and writes, and the decode masks."""
        self._views = {(group, window): self._view(batch, group, window) for group, window in dict.fromkeys(self._keys)}

    def store_kv(self, layer: int, k: Tensor, v: Tensor | None) -> None:
        """Write a layer's new keys and values."""
        self._pools.write(layer, self._views[self._keys[layer]].writes, k, v)

    def decode(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Attend group by group; the query heads of one KV head are the query rows of SDPA."""
        kv_heads = self._pools.num_kv_heads
        for group in self._views[self._keys[layer]].decodes:
            k, v = self._pools.gather(layer, group.lines, group.num_rows)
            queries = q if group.rows is None else q[group.rows]
            queries = queries.reshape(group.num_rows, kv_heads, -1, self._pools.head_dim)
            attended = attend_gathered(self._model, queries, k, v, group.mask)
            attended = attended.view(group.num_rows, self._model.num_heads, self.value_size)
            if group.rows is None:
                out.copy_(attended)
            else:
                out[group.rows] = attended

    def prefill(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Attend chunk by chunk."""
        self._chunks.attend(layer, self._views[self._keys[layer]].chunks, q, out)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks in all layers."""
        self._pools.copy_blocks(copies)

    def host_cache(self, num_blocks: int) -> HostCache:
        """Make a host pool for each page's."""
        return self._pools.host_cache(num_blocks)

    def _view(self, batch: ForwardBatch, group: int, window: int | None) -> _View:
        tables = batch.groups[group].block_tables.long()
        decode_lens = batch.host_context_lens[: batch.num_decodes]
        return _View(
            writes=self._pools.writes(batch.groups[group].slots),
            decodes=[
                self._decode_group(tables, rows, decode_lens, window, all_rows=len(rows) == batch.num_decodes)
                for rows in self._similar_rows(np.minimum(decode_lens, window or decode_lens))
            ],
            chunks=self._chunks.plan(batch, tables, window),
        )

    def _similar_rows(self, seen_lens: NDArray[np.int32]) -> Iterator[NDArray[np.int64]]:
        """Split decode rows by length, so that padding at most doubles what is gathered, and by the group's size."""
        order = np.argsort(seen_lens, kind="stable")
        row_bytes = 2 * self._pools.num_kv_heads * self._pools.head_dim * self.dtype.itemsize
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
        block_size, device = self._pools.block_size, self.device
        lens = context_lens[rows].astype(np.int64)
        seen_from = np.zeros_like(lens) if window is None else np.maximum(lens - window, 0)
        first_blocks = seen_from // block_size
        num_blocks = int((-(-lens // block_size) - first_blocks).max())
        index, length, start = (torch.from_numpy(values).to(device)[:, None] for values in (rows, lens, seen_from))
        logical = torch.from_numpy(first_blocks).to(device)[:, None] + torch.arange(num_blocks, device=device)
        # Where a row has no block, the null block is gathered: it is never written and never another request's.
        no_block = logical * block_size >= length
        blocks = tables[index, logical.clamp_max(tables.shape[1] - 1)].masked_fill_(no_block, 0)
        position = (logical[:, :, None] * block_size + torch.arange(block_size, device=device)).flatten(1)
        hidden = (position >= length) | (position < start)
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=device).masked_fill_(hidden, float("-inf"))
        return _DecodeGroup(
            rows=None if all_rows else index[:, 0],
            num_rows=len(rows),
            lines=self._pools.lines(blocks),
            mask=mask[:, None, None, :],
        )
