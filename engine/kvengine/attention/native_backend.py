"""Attention on the CPU by kernels compiled for it: single tokens read blocks where they are, chunks are gathered."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvengine.attention.base import ModelAttention
from kvengine.attention.chunks import Chunk, ChunkAttention
from kvengine.attention.host_cache import HostCache
from kvengine.attention.pools import KVScales, PagedPools
from kvengine.batch import ForwardBatch
from kvengine.native.kernels import COMPUTE_TYPES, NativeKernels
from kvengine.spec import KVCacheSpec

_Key = tuple[int, int | None]
"""The group and the window of a layer."""


def obstacle_to_native(dtype: torch.dtype, device: torch.device) -> str | None:
    """Say why the kernels do not take tensors of this type here; None where they do."""
    if device.type != "cpu":
        return f"the native kernels run on the CPU, not on {device.type}"
    return None if dtype in COMPUTE_TYPES else f"the native kernels do not compute in {dtype}"


class NativePools(PagedPools):
    """Pools whose lines the kernels write and gather, in the type of the cache."""

    def __init__(
        self,
        kernels: NativeKernels,
        spec: KVCacheSpec,
        num_blocks: int,
        *,
        model: ModelAttention,
        dtype: torch.dtype,
        cache_dtype: torch.dtype,
        scales: Sequence[KVScales] | None,
    ) -> None:
        super().__init__(
            spec,
            num_blocks,
            model=model,
            dtype=dtype,
            cache_dtype=cache_dtype,
            device=torch.device("cpu"),
            scales=scales,
        )
        self._kernels = kernels
        self._wide_workspace = torch.empty(0, dtype=dtype)

    def store(self, layer: int, slots: Tensor, k: Tensor, v: Tensor | None) -> None:
        """Write a layer's new keys and values into their slots.

        Nothing is cleared: what is behind a context is neither read nor gathered into what is attended to.
        """
        for page, rows, scale in zip(self.page(layer), (k,) if v is None else (k, v), self.scales(layer), strict=False):
            self._kernels.store(_side_by_side(rows), slots, page, scale=scale)

    def gather(self, layer: int, lines: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
        """Read keys and values as [num_rows, num_kv_heads, num_blocks * block_size, head_dim or value size]."""
        page, line_size = self.page(layer), self.block_size * self.head_dim
        size = len(page) * lines.shape[0] * line_size
        if self._wide_workspace.shape[0] < size:
            self._wide_workspace = torch.empty(3 * size // 2, dtype=self.dtype)
        gathered = self._wide_workspace[:size].view(len(page), lines.shape[0], line_size)
        for pool, target, scale in zip(page, gathered, self.scales(layer), strict=False):
            self._kernels.gather(pool, lines, target, scale=scale)
        return self._parts(gathered, num_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """What layers with one block table and one window have in common in a step."""

    slots: Tensor
    tables: Tensor
    """Of the rows with a single token."""
    context_lens: Tensor
    chunks: list[Chunk]


class NativeBackend:
    """Pools of all layers, and the compiled kernels that work on them.

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
        self._keys = [(layer.group, layer.window) for layer in model.layers]
        self._pools = NativePools(
            kernels, spec, num_blocks, model=model, dtype=dtype, cache_dtype=cache_dtype or dtype, scales=scales
        )
        self._chunks = ChunkAttention(model, self._pools)
        self._views: dict[_Key, _View] = {}

    @property
    def cache_bytes(self) -> int:
        """Bytes allocated for the pools of all layers."""
        return self._pools.size_bytes

    def plan(self, batch: ForwardBatch) -> None:
        """Take over the tables of single tokens, and work out what the chunks gather."""
        self._views = {
            (group, window): _View(
                slots=batch.groups[group].slots,
                tables=batch.groups[group].block_tables[: batch.num_decodes],
                context_lens=batch.context_lens[: batch.num_decodes],
                chunks=self._chunks.plan(batch, batch.groups[group].block_tables.long(), window),
            )
            for group, window in dict.fromkeys(self._keys)
        }

    def store_kv(self, layer: int, k: Tensor, v: Tensor | None) -> None:
        """Write a layer's new keys and values."""
        self._pools.store(layer, self._views[self._keys[layer]].slots, k, v)

    def decode(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Attend to the blocks where they are."""
        view, page = self._views[self._keys[layer]], self._pools.page(layer)
        k_scale, v_scale = self._pools.scales(layer)
        self._kernels.decode(
            _side_by_side(q),
            page[0],
            page[-1],
            view.tables,
            view.context_lens,
            out,
            scale=self._model.scale,
            window=self._model.layers[layer].window,
            softcap=self._model.softcap,
            k_scale=k_scale,
            v_scale=v_scale if len(page) == 2 else k_scale,
        )

    def prefill(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Attend chunk by chunk."""
        self._chunks.attend(layer, self._views[self._keys[layer]].chunks, q, out)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks in all layers."""
        self._pools.copy_blocks(copies)

    def host_cache(self, num_blocks: int) -> HostCache:
        """Make a host pool for each page's."""
        return self._pools.host_cache(num_blocks)


def _side_by_side(heads: Tensor) -> Tensor:
    """Heads of [num_tokens, num_heads, head_dim] as the kernels take them; tokens may be apart."""
    is_packed = heads.stride(2) == 1 and heads.stride(1) == heads.shape[2]
    return heads if is_packed else heads.contiguous()
