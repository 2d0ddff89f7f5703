"""The block pools of all layers in plain torch: how keys and values get in, and how they are read in order.

A page's pool is one tensor [2, num_blocks, num_kv_heads, block_size, head_dim] (K, then V; latent rows have no V).
Heads stand before offsets, so that gathering whole (block, head) lines yields contiguous [num_kv_heads, context,
head_dim]. Gathered results go to a kept buffer: a fresh one costs page faults, five times the copy itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from kvengine.attention.base import ModelAttention
from kvengine.attention.host_cache import HostCache
from kvengine.spec import KVCacheSpec
from kvkernels.reference import copy_blocks, quantise


class KVScales(NamedTuple):
    """What a layer's stored keys and values are multiplied by, a number a KV head: [num_kv_heads], float32."""

    k: Tensor
    v: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Writes:
    """Where the tokens of a step go in one group."""

    lines: Tensor
    """[num_tokens * num_kv_heads], int64, lines of `head_dim` to write."""
    begun_blocks: Tensor
    """Blocks whose first slot is written in this step."""


class PagedPools:
    """Keys and values of all layers.

    Args:
        spec: Geometry of the cache.
        num_blocks: Blocks in the pool, the null block included.
        model: Where each layer's part of a block lies.
        dtype: Type of keys and values as they come and go.
        cache_dtype: Type that they are kept in.
        device: Where the pools are allocated.
        scales: Of each layer; None for 1.
    """

    def __init__(
        self,
        spec: KVCacheSpec,
        num_blocks: int,
        *,
        model: ModelAttention,
        dtype: torch.dtype,
        cache_dtype: torch.dtype,
        device: torch.device,
        scales: Sequence[KVScales] | None = None,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self.block_size = spec.block_size
        self.num_kv_heads = spec.num_kv_heads
        self.head_dim = spec.head_dim
        self._value_size = model.value_size
        self._scales = scales
        self._places = [layer.place for layer in model.layers]
        shape = (2 if spec.head_dim_v else 1, num_blocks, spec.num_kv_heads, spec.block_size, spec.head_dim)
        # Zeros, not garbage: what a mask hides is still multiplied by 0, and 0 * nan is nan. Block 0 stays so.
        self.pages = [torch.zeros(shape, dtype=cache_dtype, device=device) for _ in range(spec.num_layers)]
        # Torch moves 8-bit floats about as whole numbers only.
        self._raw = [page.view(torch.uint8) if page.itemsize == 1 else page for page in self.pages]
        self._heads = torch.arange(spec.num_kv_heads, device=device)
        self._workspace = torch.empty(0, dtype=self._raw[0].dtype, device=device)

    @property
    def size_bytes(self) -> int:
        """Bytes allocated."""
        return sum(page.nbytes for page in self.pages)

    def page(self, layer: int) -> Tensor:
        """Give a layer's pool, [1 or 2, num_blocks, num_kv_heads, block_size, head_dim]."""
        return self.pages[self._places[layer]]

    def scales(self, layer: int) -> tuple[Tensor | None, Tensor | None]:
        """Give a layer's scales; None for 1."""
        return (None, None) if self._scales is None else self._scales[layer]

    def writes(self, slots: Tensor) -> Writes:
        """Work out where a step's tokens go."""
        block, offset = slots // self.block_size, slots % self.block_size
        lines = ((block * self.num_kv_heads)[:, None] + self._heads).mul_(self.block_size)
        return Writes(
            lines=lines.add_(offset[:, None]).flatten(),
            # A block of one slot has no rest that an earlier owner could have left something in.
            begun_blocks=block[offset == 0] if self.block_size > 1 else block[:0],
        )

    def write(self, layer: int, writes: Writes, k: Tensor, v: Tensor | None) -> None:
        """Write a layer's new keys and values; one line of `head_dim` per token and head.

        A block is cleared when its first slot is written: an inf or nan left in it by an earlier request would pass
        through the mask of the slots that are not written yet.
        """
        place = self._places[layer]
        for page, raw, values, scale in zip(
            self.pages[place], self._raw[place], (k,) if v is None else (k, v), self.scales(layer), strict=False
        ):
            if page.dtype != values.dtype:
                values = quantise(values, scale, page.dtype).view(raw.dtype)
            raw.index_fill_(0, writes.begun_blocks, 0)
            raw.view(-1, self.head_dim).index_copy_(0, writes.lines, values.reshape(-1, self.head_dim))

    def lines(self, tables: Tensor) -> Tensor:
        """Lines of a pool seen as [num_blocks * num_kv_heads, ...], by request, then head, then block."""
        return (tables[:, None, :] * self.num_kv_heads + self._heads[:, None]).flatten()

    def gather(self, layer: int, lines: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
        """Read keys and values as [num_rows, num_kv_heads, num_blocks * block_size, head_dim or value size].

        What is returned belongs to the caller until the next call.
        """
        raw = self._raw[self._places[layer]]
        line_size = self.block_size * self.head_dim
        size = len(raw) * lines.shape[0] * line_size
        if self._workspace.shape[0] < size:
            self._workspace = torch.empty(3 * size // 2, dtype=raw.dtype, device=self.device)
        gathered = self._workspace[:size].view(len(raw), lines.shape[0], line_size)
        for pool, target in zip(raw, gathered, strict=True):
            torch.index_select(pool.view(-1, line_size), 0, lines, out=target)
        wide = self._widened(layer, gathered, num_rows)
        parts = wide.view(len(raw), num_rows, self.num_kv_heads, -1, self.head_dim)
        return parts[0], parts[-1][..., : self._value_size]

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks in all layers."""
        for raw in self._raw:
            copy_blocks(raw, raw, copies, block_dim=1)

    def host_cache(self, num_blocks: int) -> HostCache:
        """Make a host pool for each page's."""
        return HostCache(self._raw, num_blocks, copy=partial(copy_blocks, block_dim=1))

    def _widened(self, layer: int, gathered: Tensor, num_rows: int) -> Tensor:
        """Bring gathered lines from the cache's type to that of the model."""
        kept = self.pages[0].dtype
        if kept == self.dtype:
            return gathered
        wide = gathered.view(kept).to(torch.float32).view(len(gathered), num_rows, self.num_kv_heads, -1)
        for part, scale in zip(wide, self.scales(layer), strict=False):
            if scale is not None:
                part.mul_(scale[:, None])
        return wide.to(self.dtype)
