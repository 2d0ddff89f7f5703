"""Attention on the CPU by kernels compiled for it, which read the blocks where they are."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvengine.attention.base import ModelAttention
from kvengine.attention.host_cache import HostCache
from kvengine.attention.pools import KVScales, PagedPools
from kvengine.batch import ForwardBatch
from kvengine.native.kernels import COMPUTE_TYPES, NativeKernels
from kvengine.spec import KVCacheSpec


def obstacle_to_native(dtype: torch.dtype, device: torch.device) -> str | None:
    """Say why the kernels do not take tensors of this type here; None where they do."""
    if device.type != "cpu":
        return f"the native kernels run on the CPU, not on {device.type}"
    return None if dtype in COMPUTE_TYPES else f"the native kernels do not compute in {dtype}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """A step, and what its query tokens see; those of rows with a single token come first."""

    batch: ForwardBatch
    rows: Tensor
    """[num_tokens], int32, whose block table each follows."""
    lengths: Tensor
    """[num_tokens], int32, tokens up to each and itself."""


class NativeBackend:
    """Pools of all layers, and the compiled kernels that work on them.

    Nothing that an earlier request left in a block is cleared: what is behind a query's own place is never read.

    Args:
        kernels: The library.
        spec: Geometry of the cache.
        num_blocks: Blocks in the pool, the null block included.
        model: What the model asks of attention.
        dtype: Type of q, k and v.
        cache_dtype: Type of the cache, if not that of q, k and v.
        scales: What each layer's cached values are multiplied by; None for 1.
    """

    name = "native"
    device = torch.device("cpu")

    def __init__(
        self,
        kernels: NativeKernels,
        spec: KVCacheSpec,
        num_blocks: int,
        *,
        model: ModelAttention,
        dtype: torch.dtype,
        cache_dtype: torch.dtype | None = None,
        scales: Sequence[KVScales] | None = None,
    ) -> None:
        self.dtype = dtype
        self.value_size = model.value_size
        self._model = model
        self._kernels = kernels
        self._pools = PagedPools(
            spec,
            num_blocks,
            model=model,
            dtype=dtype,
            cache_dtype=cache_dtype or dtype,
            device=self.device,
            scales=scales,
        )
        self._step: _Planned | None = None

    @property
    def cache_bytes(self) -> int:
        """Bytes allocated for the pools of all layers."""
        return self._pools.size_bytes

    def plan(self, batch: ForwardBatch) -> None:
        """Work out what each token sees."""
        starts = batch.host_query_start_loc
        counts = np.diff(starts)
        last_place = np.repeat(batch.host_context_lens - starts[1:], counts)
        self._step = _Planned(
            batch=batch,
            rows=torch.from_numpy(np.repeat(np.arange(len(counts), dtype=np.int32), counts)),
            lengths=torch.from_numpy((last_place + np.arange(1, starts[-1] + 1)).astype(np.int32)),
        )

    def store_kv(self, layer: int, k: Tensor, v: Tensor | None) -> None:
        """Write a layer's new keys and values."""
        slots = self._planned.batch.groups[self._model.layers[layer].group].slots
        parts = zip(self._pools.page(layer), (k,) if v is None else (k, v), self._pools.scales(layer), strict=False)
        for page, rows, scale in parts:
            self._kernels.store(_side_by_side(rows), slots, page, scale=scale)

    def decode(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Attend from the rows with a single token."""
        self._attend(layer, q, slice(0, self._planned.batch.num_decodes), out)

    def prefill(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Attend from the rows with longer chunks."""
        self._attend(layer, q, slice(self._planned.batch.num_decodes, None), out)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks in all layers."""
        self._pools.copy_blocks(copies)

    def host_cache(self, num_blocks: int) -> HostCache:
        """Make a host pool for each page's."""
        return self._pools.host_cache(num_blocks)

    @property
    def _planned(self) -> _Planned:
        assert self._step is not None, "a step is planned before it is computed"
        return self._step

    def _attend(self, layer: int, q: Tensor, tokens: slice, out: Tensor) -> None:
        planned, page, kind = self._planned, self._pools.page(layer), self._model.layers[layer]
        k_scale, v_scale = self._pools.scales(layer)
        self._kernels.attend(
            _side_by_side(q),
            page[0],
            page[-1],
            planned.batch.groups[kind.group].block_tables,
            planned.lengths[tokens],
            out,
            rows=planned.rows[tokens],
            scale=self._model.scale,
            window=kind.window,
            softcap=self._model.softcap,
            k_scale=k_scale,
            v_scale=v_scale if len(page) == 2 else k_scale,
        )


def _side_by_side(heads: Tensor) -> Tensor:
    """Heads of [num_tokens, num_heads, head_dim] as the kernels take them; tokens may be apart."""
    is_packed = heads.stride(2) == 1 and heads.stride(1) == heads.shape[2]
    return heads if is_packed else heads.contiguous()
