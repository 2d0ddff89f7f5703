"""Attention by the Triton kernels: on a CUDA device, or interpreted on the CPU for tests.

All pools are one tensor [2 * num_layers, num_blocks, elements of a page], keys and values of a layer side by side, so
that copying a block copies it in all layers with one launch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvengine.batch import ForwardBatch
from kvengine.spec import KVCacheSpec
from kvkernels.copy_blocks import copy_blocks
from kvkernels.layout import KVLayout, page_shapes, paged_kv
from kvkernels.paged_decode import DecodePlan, paged_decode, plan_decode
from kvkernels.paged_prefill import paged_prefill, plan_prefill
from kvkernels.store_kv import store_kv


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prefill:
    """The rows with longer chunks, as a batch of their own."""

    block_tables: Tensor
    context_lens: Tensor
    query_start_loc: Tensor
    """Places among the tokens of these rows."""
    tiles: Tensor


class TritonBackend:
    """Pools of all layers, and the kernels that work on them.

    Args:
        spec: Geometry of the cache.
        num_blocks: Blocks in the pool, the null block included.
        num_heads: Query heads.
        dtype: Type of the cache, and of q, k and v.
        device: Where the pools are allocated.
        layout: How a block's elements are ordered.
    """

    name = "triton"

    def __init__(
        self,
        spec: KVCacheSpec,
        num_blocks: int,
        *,
        num_heads: int,
        dtype: torch.dtype,
        device: torch.device,
        layout: KVLayout = KVLayout.BLOCK_MAJOR,
    ) -> None:
        self.device = device
        self.dtype = dtype
        self._num_heads = num_heads
        self._num_kv_heads = spec.num_kv_heads
        self._head_dim = spec.head_dim
        self._scale = spec.head_dim**-0.5
        k_page, v_page = page_shapes(
            layout,
            block_size=spec.block_size,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            dtype=dtype,
        )
        page_size = spec.block_size * spec.num_kv_heads * spec.head_dim
        self._pool = torch.zeros(2 * spec.num_layers, num_blocks, page_size, dtype=dtype, device=device)
        self._layers = [
            paged_kv(layout, k.view(num_blocks, *k_page), v.view(num_blocks, *v_page))
            for k, v in zip(self._pool[::2], self._pool[1::2], strict=True)
        ]
        self._slots = torch.empty(0, dtype=torch.int64, device=device)
        self._decode_tables = self._decode_lens = torch.empty(0, dtype=torch.int32, device=device)
        self._decode_plan: DecodePlan | None = None
        self._prefill: _Prefill | None = None

    @property
    def cache_bytes(self) -> int:
        """Bytes allocated for the pools of all layers."""
        return self._pool.nbytes

    def plan(self, batch: ForwardBatch) -> None:
        """List the parts of the decode contexts and the tiles of the chunks; allocate the workspace of the parts."""
        decodes = batch.num_decodes
        self._slots = batch.slots
        self._decode_tables, self._decode_lens = batch.block_tables[:decodes], batch.context_lens[:decodes]
        self._decode_plan = plan_decode(
            batch.host_context_lens[:decodes], num_heads=self._num_heads, head_dim=self._head_dim, device=self.device
        )
        self._prefill = _Prefill(
            block_tables=batch.block_tables[decodes:],
            context_lens=batch.context_lens[decodes:],
            query_start_loc=batch.query_start_loc[decodes:] - decodes,
            tiles=plan_prefill(
                np.diff(batch.host_query_start_loc[decodes:]),
                num_heads=self._num_heads,
                num_kv_heads=self._num_kv_heads,
                head_dim=self._head_dim,
                dtype=self.dtype,
                device=self.device,
            ),
        )

    def store_kv(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write a layer's new keys and values into their slots."""
        store_kv(k, v, self._layers[layer], self._slots)

    def decode(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Attend from the rows with a single token."""
        assert self._decode_plan is not None, "a step is planned before its layers run"
        paged_decode(
            q,
            self._layers[layer],
            self._decode_tables,
            self._decode_lens,
            self._decode_plan,
            scale=self._scale,
            out=out,
        )

    def prefill(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Attend from the rows with longer chunks."""
        assert self._prefill is not None, "a step is planned before its layers run"
        paged_prefill(
            q,
            self._layers[layer],
            self._prefill.block_tables,
            self._prefill.context_lens,
            self._prefill.query_start_loc,
            self._prefill.tiles,
            scale=self._scale,
            out=out,
        )

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks in all layers."""
        copy_blocks(self._pool, self._pool, copies)
