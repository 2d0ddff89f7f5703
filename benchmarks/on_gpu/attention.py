"""The attention kernels against memory bandwidth, and torch's own attention on a contiguous cache beside them."""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.on_gpu.timing import median_s
from kvkernels.layout import FP8, KVLayout, PagedKV, page_shapes, paged_kv
from kvkernels.paged_decode import paged_decode, plan_decode
from kvkernels.paged_prefill import paged_prefill, plan_prefill

_DISTINCT_BYTES = 512 * 2**20
"""Ten times the second-level cache of an H100."""
_MAX_LAYERS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One batch of equally long requests, and the cache that it reads."""

    batch: int
    context: int
    block_size: int = 16
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    dtype: torch.dtype = torch.bfloat16
    cache_dtype: torch.dtype = torch.bfloat16
    layout: KVLayout = KVLayout.BLOCK_MAJOR
    distinct_bytes: int = _DISTINCT_BYTES
    """Keys and values of one measurement, spread over layers."""

    @property
    def kv_bytes(self) -> int:
        """Keys and values of one layer."""
        return 2 * self.batch * self.context * self.num_kv_heads * self.head_dim * self.cache_dtype.itemsize

    @property
    def num_layers(self) -> int:
        """Caches that take turns, so that none is still in the GPU's second-level cache."""
        return max(1, min(_MAX_LAYERS, -(-self.distinct_bytes // self.kv_bytes)))

    @property
    def pool_bytes(self) -> int:
        """What a measurement allocates."""
        blocks = -(-self.context // self.block_size) * self.batch
        return self.num_layers * blocks * self.block_size * self.kv_bytes // (self.batch * self.context)


LLAMA = Shape(batch=1, context=1)
"""Heads of Llama-3.1-8B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFigure:
    """One measured point."""

    kernel: str
    batch: int
    context: int
    block_size: int | None
    """None for a contiguous cache."""
    cache: str
    """Type and layout."""
    seconds: float | None
    """Of one layer; None where it was skipped."""
    kv_bytes: int
    bytes_per_s: float | None
    """Keys and values read, over the time."""
    tflops: float | None = None
    """Of prefill: 4 * queries * visible keys * heads * head_dim, over the time."""
    skipped: str = ""


Measurement = Callable[[Shape, torch.device, int], AttentionFigure]
"""Measures one point, if what it allocates is no more than so many bytes."""


def decode_figure(shape: Shape, device: torch.device, free_bytes: int) -> AttentionFigure:
    """Time one layer's decode attention, split and sum included."""
    if shape.pool_bytes > free_bytes:
        return _too_large("decode", shape, free_bytes)
    caches, tables, lens, q = _inputs(shape, shape.batch, device)
    plan = plan_decode(
        np.full(shape.batch, shape.context, dtype=np.int32),
        num_heads=shape.num_heads,
        head_dim=shape.head_dim,
        device=device,
    )
    out = torch.empty_like(q)

    def layers() -> None:
        for cache in caches:
            paged_decode(q, cache, tables, lens, plan, scale=shape.head_dim**-0.5, out=out)

    return _figure("decode", shape, median_s(layers, device) / len(caches))


def contiguous_decode_figure(shape: Shape, device: torch.device, free_bytes: int) -> AttentionFigure:
    """Time torch's attention over a contiguous cache of the same size: no block table, no gather."""
    if shape.pool_bytes > free_bytes:
        return _too_large("torch SDPA, contiguous", shape, free_bytes, paged=False)
    size = (shape.batch, shape.num_kv_heads, shape.context, shape.head_dim)
    caches = [
        tuple(torch.randn(size, dtype=shape.dtype, device=device) for _ in range(2)) for _ in range(shape.num_layers)
    ]
    q = torch.randn(shape.batch, shape.num_heads, 1, shape.head_dim, dtype=shape.dtype, device=device)

    def layers() -> None:
        for k, v in caches:
            scaled_dot_product_attention(q, k, v, enable_gqa=True)

    return _figure("torch SDPA, contiguous", shape, median_s(layers, device) / len(caches), paged=False)


def prefill_figure(shape: Shape, device: torch.device, free_bytes: int, *, chunk: int) -> AttentionFigure:
    """Time one layer's attention of the last `chunk` tokens of each request."""
    if shape.pool_bytes > free_bytes:
        return _too_large(f"prefill of {chunk}", shape, free_bytes)
    caches, tables, lens, q = _inputs(shape, shape.batch * chunk, device)
    starts = torch.arange(shape.batch + 1, dtype=torch.int32, device=device) * chunk
    tiles = plan_prefill(
        np.full(shape.batch, chunk, dtype=np.int64),
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        dtype=shape.dtype,
        device=device,
    )
    out = torch.empty_like(q)

    def layers() -> None:
        for cache in caches:
            paged_prefill(q, cache, tables, lens, starts, tiles, scale=shape.head_dim**-0.5, out=out)

    seconds = median_s(layers, device) / len(caches)
    # Query i of a chunk sees context - chunk + i + 1 keys.
    visible = shape.batch * (chunk * (shape.context - chunk) + chunk * (chunk + 1) // 2)
    tflops = 4 * visible * shape.num_heads * shape.head_dim / seconds / 1e12
    return _figure(f"prefill of {chunk}", shape, seconds, tflops=tflops)


def flashinfer_decode_figure(shape: Shape, device: torch.device, free_bytes: int) -> AttentionFigure:
    """Time FlashInfer's decode kernel on the same paged cache.

    Raises:
        ImportError: FlashInfer is not installed.
    """
    flashinfer = importlib.import_module("flashinfer")
    if shape.pool_bytes > free_bytes:
        return _too_large("FlashInfer", shape, free_bytes)
    caches, tables, _, q = _inputs(shape, shape.batch, device)
    blocks = tables.shape[1]
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(128 * 2**20, dtype=torch.uint8, device=device), "NHD", use_tensor_cores=True
    )
    wrapper.plan(
        torch.arange(shape.batch + 1, dtype=torch.int32, device=device) * blocks,
        tables.flatten(),
        torch.full((shape.batch,), (shape.context - 1) % shape.block_size + 1, dtype=torch.int32, device=device),
        shape.num_heads,
        shape.num_kv_heads,
        shape.head_dim,
        shape.block_size,
        q_data_type=shape.dtype,
        kv_data_type=shape.cache_dtype,
    )

    def layers() -> None:
        for cache in caches:
            wrapper.run(q, (cache.k.squeeze(3), cache.v))

    return _figure("FlashInfer", shape, median_s(layers, device) / len(caches))


def decode_shapes(
    *, batches: Sequence[int], contexts: Sequence[int], block_sizes: Sequence[int], model: Shape = LLAMA
) -> list[Shape]:
    """List the points, those first that say most: every batch and context at blocks of 16; layouts and fp8 in the
    middle; then the other block sizes, in the middle first."""
    grid = [replace(model, batch=batch, context=context) for context in contexts for batch in batches]
    middle = replace(model, batch=batches[len(batches) // 2], context=contexts[len(contexts) // 2])
    sizes = [size for size in block_sizes if size != model.block_size]
    return [
        *grid,
        replace(middle, layout=KVLayout.KEY_CHUNKS),
        replace(middle, cache_dtype=FP8),
        replace(middle, cache_dtype=FP8, layout=KVLayout.KEY_CHUNKS),
        *(replace(middle, block_size=size) for size in sizes),
        *(replace(point, block_size=size) for size in sizes for point in grid if point != middle),
    ]


def attention_figures(
    shapes: Sequence[Shape],
    device: torch.device,
    free_bytes: Callable[[], int],
    *,
    chunks: Sequence[int],
    seconds_left: Callable[[], float],
) -> Iterator[AttentionFigure]:
    """Measure prefill and every shape, with torch beside the plain ones, FlashInfer where it is installed.

    A point that fails, or that the time does not suffice for, is skipped and says so.
    """
    longest = max(shape.context for shape in shapes)
    points: list[tuple[str, Shape, Measurement]] = []
    for chunk in chunks:
        for context in sorted({chunk, longest}):
            if context >= chunk:
                shape = replace(shapes[0], batch=1, context=context)
                points.append((f"prefill of {chunk}", shape, partial(prefill_figure, chunk=chunk)))
    has_flashinfer = importlib.util.find_spec("flashinfer") is not None
    for shape in shapes:
        points.append(("decode", shape, decode_figure))
        if shape.cache_dtype is shape.dtype and shape.block_size == 16 and shape.layout is KVLayout.BLOCK_MAJOR:
            points.append(("torch SDPA, contiguous", shape, contiguous_decode_figure))
            if has_flashinfer:
                points.append(("FlashInfer", shape, flashinfer_decode_figure))
    for kernel, shape, measure in points:
        if seconds_left() <= 0:
            yield _skipped(kernel, shape, "out of time")
            continue
        try:
            yield measure(shape, device, free_bytes())
        except (RuntimeError, ValueError, TypeError, ImportError, AttributeError) as error:
            yield _skipped(kernel, shape, f"failed: {str(error).partition(chr(10))[0]}")


def _inputs(shape: Shape, num_queries: int, device: torch.device) -> tuple[list[PagedKV], Tensor, Tensor, Tensor]:
    """Caches of all layers with their blocks in random order, tables, lengths and queries."""
    blocks_per_request = -(-shape.context // shape.block_size)
    num_blocks = blocks_per_request * shape.batch
    pages = page_shapes(
        shape.layout,
        block_size=shape.block_size,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        dtype=shape.cache_dtype,
    )
    scale = torch.ones(shape.num_kv_heads, device=device) if shape.cache_dtype is FP8 else None
    caches = []
    for _ in range(shape.num_layers):
        k, v = (torch.empty(num_blocks, *page, dtype=shape.dtype, device=device).normal_() for page in pages)
        kept = (k.to(shape.cache_dtype), v.to(shape.cache_dtype))
        caches.append(paged_kv(shape.layout, *kept, k_scale=scale, v_scale=scale))
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0)).to(torch.int32)
    tables = order.view(shape.batch, blocks_per_request).to(device)
    lens = torch.full((shape.batch,), shape.context, dtype=torch.int32, device=device)
    q = torch.randn(num_queries, shape.num_heads, shape.head_dim, dtype=shape.dtype, device=device)
    return caches, tables, lens, q


def _figure(
    kernel: str, shape: Shape, seconds: float, *, paged: bool = True, tflops: float | None = None
) -> AttentionFigure:
    return AttentionFigure(
        kernel=kernel,
        batch=shape.batch,
        context=shape.context,
        block_size=shape.block_size if paged else None,
        cache=_cache_name(shape, paged=paged),
        seconds=seconds,
        kv_bytes=shape.kv_bytes,
        bytes_per_s=shape.kv_bytes / seconds,
        tflops=tflops,
    )


def _too_large(kernel: str, shape: Shape, free_bytes: int, *, paged: bool = True) -> AttentionFigure:
    return _skipped(kernel, shape, f"needs {shape.pool_bytes} bytes, {free_bytes} may be taken", paged=paged)


def _skipped(kernel: str, shape: Shape, why: str, *, paged: bool = True) -> AttentionFigure:
    return AttentionFigure(
        kernel=kernel,
        batch=shape.batch,
        context=shape.context,
        block_size=shape.block_size if paged else None,
        cache=_cache_name(shape, paged=paged),
        seconds=None,
        kv_bytes=shape.kv_bytes,
        bytes_per_s=None,
        skipped=why,
    )


def _cache_name(shape: Shape, *, paged: bool) -> str:
    dtype = str(shape.cache_dtype).removeprefix("torch.")
    return f"{dtype}, {shape.layout.value}" if paged else f"{dtype}, contiguous"
