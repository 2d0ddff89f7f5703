"""Attention by the Triton kernels: on a CUDA device, or interpreted on the CPU for tests.

All pools are one tensor [2 * layers of a block, num_blocks, elements of a page], keys and values of a layer side by
side, so that copying a block copies it in all layers with one launch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvengine.attention.base import ModelAttention
from kvengine.attention.host_cache import HostCache
from kvengine.attention.pools import KVScales
from kvengine.batch import ForwardBatch
from kvengine.spec import KVCacheSpec
from kvengine.units import cdiv
from kvkernels.copy_blocks import copy_blocks
from kvkernels.layout import KVLayout, page_shapes, paged_kv
from kvkernels.paged_decode import (
    DecodePlan,
    decode_parts,
    keep_decode_plan,
    paged_decode,
    plan_decode,
    refill_decode_plan,
)
from kvkernels.paged_prefill import paged_prefill, plan_prefill
from kvkernels.rope_store import rope_store
from kvkernels.store_kv import store_kv
from kvkernels.tuning import DECODE_PART_TOKENS

_Key = tuple[int, int | None]
"""The group and the window of a layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prefill:
    """The rows with longer chunks, as a batch of their own."""

    block_tables: Tensor
    context_lens: Tensor
    query_start_loc: Tensor
    """Places among the tokens of these rows."""
    tiles: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """What layers with one block table and one window have in common in a step."""

    slots: Tensor
    decode_tables: Tensor
    decode_lens: Tensor
    decode_plan: DecodePlan
    prefill: _Prefill


KeptPlan = dict[_Key, _View]
"""A plan for decode rows whose tensors stay where they are."""


class TritonBackend:
    """Pools of all layers, and the kernels that work on them.

    Args:
        spec: Geometry of the cache.
        num_blocks: Blocks in the pool, the null block included.
        model: What the model asks of attention.
        dtype: Type of q, k and v.
        device: Where the pools are allocated.
        cache_dtype: Type of the cache, if not that of q, k and v.
        scales: What each layer's cached values are multiplied by; None for 1.
        layout: How a block's elements are ordered.
    """

    name = "triton"

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
        layout: KVLayout = KVLayout.BLOCK_MAJOR,
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.value_size = model.value_size
        self._num_heads = model.num_heads
        self._num_kv_heads = spec.num_kv_heads
        self._head_dim = spec.head_dim
        self._scale = model.scale
        kept = cache_dtype or dtype
        self._softcap = model.softcap
        k_page, v_page = page_shapes(
            layout,
            block_size=spec.block_size,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            dtype=kept,
        )
        page_size = spec.block_size * spec.num_kv_heads * spec.head_dim
        self._pool = torch.zeros(2 * spec.num_layers, num_blocks, page_size, dtype=kept, device=device)
        caches = [
            paged_kv(layout, k.view(num_blocks, *k_page), v.view(num_blocks, *v_page))
            for k, v in zip(self._pool[::2], self._pool[1::2], strict=True)
        ]
        self._caches = [caches[layer.place] for layer in model.layers]
        if scales is not None:
            pairs = zip(self._caches, scales, strict=True)
            self._caches = [replace(cache, k_scale=scale.k, v_scale=scale.v) for cache, scale in pairs]
        self._keys = [(layer.group, layer.window) for layer in model.layers]
        self._views: dict[_Key, _View] = {}
        self._partial = torch.empty(0, model.num_heads, spec.head_dim, dtype=torch.float32, device=device)
        self._logsum = torch.empty(0, model.num_heads, dtype=torch.float32, device=device)

    @property
    def cache_bytes(self) -> int:
        """Bytes allocated for the pools of all layers."""
        return self._pool.nbytes

    def plan(self, batch: ForwardBatch) -> None:
        """List the parts of the decode contexts and the tiles of the chunks; allocate the workspace of the parts."""
        decodes = batch.num_decodes
        tiles = plan_prefill(
            np.diff(batch.host_query_start_loc[decodes:]),
            num_heads=self._num_heads,
            num_kv_heads=self._num_kv_heads,
            head_dim=self._head_dim,
            dtype=self.dtype,
            device=self.device,
        )
        query_start_loc = batch.query_start_loc[decodes:] - decodes
        self._views = {
            (group, window): _View(
                slots=batch.groups[group].slots,
                decode_tables=batch.groups[group].block_tables[:decodes],
                decode_lens=batch.context_lens[:decodes],
                decode_plan=plan_decode(
                    batch.host_context_lens[:decodes],
                    num_heads=self._num_heads,
                    head_dim=self._head_dim,
                    device=self.device,
                    window=window,
                ),
                prefill=_Prefill(
                    block_tables=batch.groups[group].block_tables[decodes:],
                    context_lens=batch.context_lens[decodes:],
                    query_start_loc=query_start_loc,
                    tiles=tiles,
                ),
            )
            for group, window in dict.fromkeys(self._keys)
        }

    @property
    def part_tokens(self) -> int:
        """Tokens of a context that one program of decode attends to."""
        return DECODE_PART_TOKENS

    def num_parts(self, context_lens: NDArray[np.int32]) -> int:
        """Count the parts of these contexts, for the layers that have most."""
        return max(len(decode_parts(context_lens, window=window).parts) for _, window in dict.fromkeys(self._keys))

    def keep_plan(self, batch: ForwardBatch, num_parts: int) -> KeptPlan:
        """Allocate a plan for a batch of decode rows; the largest one's workspace serves all that follow."""
        if self._partial.shape[0] < num_parts:
            self._partial = self._partial.new_empty(num_parts, *self._partial.shape[1:])
            self._logsum = self._logsum.new_empty(num_parts, self._num_heads)
        nothing = torch.empty(0, 2, dtype=torch.int32, device=self.device)
        rows = batch.num_decodes
        return {
            (group, window): _View(
                slots=batch.groups[group].slots,
                decode_tables=batch.groups[group].block_tables,
                decode_lens=batch.context_lens,
                decode_plan=keep_decode_plan(
                    rows,
                    min(num_parts, rows * _most_parts(window, num_parts)),
                    partial=self._partial,
                    logsum=self._logsum,
                ),
                prefill=_Prefill(
                    block_tables=batch.groups[group].block_tables[:0],
                    context_lens=batch.context_lens[:0],
                    query_start_loc=batch.query_start_loc[:1],
                    tiles=nothing,
                ),
            )
            for group, window in dict.fromkeys(self._keys)
        }

    def refill_plan(self, plan: KeptPlan, context_lens: NDArray[np.int32]) -> None:
        """Write the parts of a step's contexts into a kept plan, and compute with it from now on."""
        for (_, window), view in plan.items():
            refill_decode_plan(view.decode_plan, context_lens, window=window)
        self._views = plan

    def store_kv(self, layer: int, k: Tensor, v: Tensor | None) -> None:
        """Write a layer's new keys and values into their slots."""
        assert v is not None, "latent rows are kept by the torch backend only"
        store_kv(k, v, self._caches[layer], self._views[self._keys[layer]].slots)

    def store_rotated(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Turn queries and keys, and write the new keys and values, in one launch."""
        cos, sin = rotation
        slots = self._views[self._keys[layer]].slots
        turned = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        rope_store(q, k, v, cos[:, 0], sin[:, 0], self._caches[layer], slots, out=turned)
        return turned

    def decode(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Attend from the rows with a single token."""
        key = self._keys[layer]
        view = self._views[key]
        paged_decode(
            q,
            self._caches[layer],
            view.decode_tables,
            view.decode_lens,
            view.decode_plan,
            scale=self._scale,
            window=key[1],
            softcap=self._softcap,
            out=out,
        )

    def prefill(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Attend from the rows with longer chunks."""
        key = self._keys[layer]
        prefill = self._views[key].prefill
        paged_prefill(
            q,
            self._caches[layer],
            prefill.block_tables,
            prefill.context_lens,
            prefill.query_start_loc,
            prefill.tiles,
            scale=self._scale,
            window=key[1],
            softcap=self._softcap,
            out=out,
        )

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks in all layers."""
        copy_blocks(self._pool, self._pool, copies)

    def host_cache(self, num_blocks: int) -> HostCache:
        """Make one host pool for all layers; the copy kernel reads and writes it."""
        return HostCache([self._pool], num_blocks, copy=copy_blocks)


def _most_parts(window: int | None, otherwise: int) -> int:
    """Parts of the longest context that a window lets a token see."""
    return otherwise if window is None else cdiv(window, DECODE_PART_TOKENS) + 1
