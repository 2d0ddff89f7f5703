"""Every kernel as real models and caches call it, to be compiled where there is no GPU.

The tensors are on torch's `meta` device: they have shapes, strides and types, and no memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from kvkernels._launch import Launch
from kvkernels.copy_blocks import copy_blocks_launch
from kvkernels.layout import FP8, KVLayout, PagedKV, page_shapes, paged_kv
from kvkernels.paged_decode import DecodePlan, paged_decode_launches
from kvkernels.paged_prefill import paged_prefill_launch
from kvkernels.rms_norm import rms_norm_launch
from kvkernels.rope_store import rope_store_launch
from kvkernels.sampling import sample_launch
from kvkernels.slot_mapping import slot_mapping_launch
from kvkernels.store_kv import store_kv_launch
from kvkernels.swiglu import swiglu_launch

_FIRST_CAPABILITY = 80
_FIRST_WITH_FP8 = 89
"""Triton compiles e4m3 from here on."""
_THREE_PROGRAMS = 168
"""With so many registers a thread, three programs of 128 threads share the 65,536 of a multiprocessor: while one waits
for memory the others compute."""
_TWO_PROGRAMS = 192
"""Two programs of 128 threads, or one of 256: enough where tensor cores, not memory, set the pace."""
_ROWS = 64
_BLOCKS = 1000
_PARTS = 256
_TYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", FP8: "fp8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One kernel, called in one way."""

    op: str
    case: str
    """Model, types and cache."""
    build: Callable[[], Launch]
    is_matrix: bool = False
    """Whether it is meant to use tensor cores and to load while it computes."""
    max_registers: int = _THREE_PROGRAMS
    """Of a thread."""
    first_capability: int = _FIRST_CAPABILITY


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A model's heads and its cache."""

    model: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype = torch.bfloat16
    cache_dtype: torch.dtype = torch.bfloat16
    block_size: int = 16
    layout: KVLayout = KVLayout.BLOCK_MAJOR
    window: int | None = None
    softcap: float | None = None

    @property
    def name(self) -> str:
        parts = [f"{self.model} {self.num_heads}/{self.num_kv_heads}x{self.head_dim}", _TYPE_NAMES[self.dtype]]
        if self.cache_dtype is not self.dtype:
            parts.append(f"{_TYPE_NAMES[self.cache_dtype]} cache")
        if self.block_size != 16:
            parts.append(f"block {self.block_size}")
        if self.layout is KVLayout.KEY_CHUNKS:
            parts.append("key chunks")
        if self.window is not None:
            parts.append(f"window {self.window}")
        if self.softcap is not None:
            parts.append("soft-capped")
        return ", ".join(parts)

    @property
    def first_capability(self) -> int:
        return _FIRST_WITH_FP8 if self.cache_dtype is FP8 else _FIRST_CAPABILITY


_LLAMA = _Case(model="Llama 8B", num_heads=32, num_kv_heads=8, head_dim=128)
_LLAMA_CHUNKS = replace(_LLAMA, layout=KVLayout.KEY_CHUNKS)
_LLAMA_FP8 = replace(_LLAMA, cache_dtype=FP8)
_SMOL = _Case(model="SmolLM2", num_heads=9, num_kv_heads=3, head_dim=64)
_ATTENTION = (
    _LLAMA,
    replace(_LLAMA, dtype=torch.float16, cache_dtype=torch.float16),
    replace(_LLAMA, dtype=torch.float32, cache_dtype=torch.float32),
    replace(_LLAMA, block_size=1),
    replace(_LLAMA, block_size=128),
    _LLAMA_CHUNKS,
    replace(_LLAMA_CHUNKS, block_size=8),
    _LLAMA_FP8,
    replace(_LLAMA_FP8, layout=KVLayout.KEY_CHUNKS),
    _SMOL,
    _Case(model="Gemma 2 2B", num_heads=8, num_kv_heads=4, head_dim=256, window=4096, softcap=50.0),
    _Case(model="Phi 2", num_heads=32, num_kv_heads=32, head_dim=80),
    _Case(model="Falcon 7B", num_heads=71, num_kv_heads=1, head_dim=64),
    _Case(model="StarCoder", num_heads=48, num_kv_heads=1, head_dim=128),
)


def variants() -> list[Variant]:
    """List all of them."""
    return [*_attention_variants(), *_cache_variants(), *_dense_variants()]


def _attention_variants() -> Iterator[Variant]:
    for op, build, max_registers in (("decode", _decode, _THREE_PROGRAMS), ("prefill", _prefill, _TWO_PROGRAMS)):
        for case in _ATTENTION:
            yield Variant(
                op=op,
                case=case.name,
                build=partial(build, case),
                is_matrix=case.dtype is not torch.float32,
                max_registers=max_registers,
                first_capability=case.first_capability,
            )
    yield Variant(op="decode sum", case=_LLAMA.name, build=partial(_decode_sum, _LLAMA))


def _cache_variants() -> Iterator[Variant]:
    for op, build in (("store", _store), ("rope and store", _rope_store)):
        for case in (_LLAMA, _SMOL, _LLAMA_CHUNKS, _LLAMA_FP8):
            yield Variant(op=op, case=case.name, build=partial(build, case), first_capability=case.first_capability)
    yield Variant(op="slot mapping", case="block 16", build=_slot_mapping)
    yield Variant(op="copy blocks", case="Llama 8B, 32 layers, block 16, bf16", build=_copy_blocks)


def _dense_variants() -> Iterator[Variant]:
    for size in (576, 4096, 16384):
        yield Variant(op="add and RMSNorm", case=f"{size}, bf16", build=partial(_add_rms_norm, size))
    yield Variant(
        op="add and RMSNorm", case="2304, bf16, fp32 weight", build=partial(_add_rms_norm, 2304, torch.float32)
    )
    yield Variant(op="RMSNorm of heads", case="32x128, bf16", build=_head_norm)
    yield Variant(op="SwiGLU", case="14336, bf16", build=_swiglu)
    yield Variant(op="sample", case="128256, bf16", build=_sample)


def _decode(case: _Case) -> Launch:
    return _decode_launches(case)[0]


def _decode_sum(case: _Case) -> Launch:
    return _decode_launches(case)[1]


def _decode_launches(case: _Case) -> list[Launch]:
    plan = DecodePlan(
        parts=_empty(_PARTS, 2, dtype=torch.int32),
        row_starts=_empty(_ROWS + 1, dtype=torch.int32),
        partial=_empty(_PARTS, case.num_heads, case.head_dim, dtype=torch.float32),
        logsum=_empty(_PARTS, case.num_heads, dtype=torch.float32),
        is_split=True,
    )
    q, _, _ = _fused_qkv(case)
    tables, lens = _tables()
    return paged_decode_launches(
        q,
        _cache(case),
        tables,
        lens,
        plan,
        scale=0.1,
        window=case.window,
        softcap=case.softcap,
        out=_empty(*q.shape, dtype=q.dtype),
    )


def _prefill(case: _Case) -> Launch:
    q, _, _ = _fused_qkv(case)
    tables, lens = _tables()
    return paged_prefill_launch(
        q,
        _cache(case),
        tables,
        lens,
        _empty(_ROWS + 1, dtype=torch.int32),
        _empty(_ROWS, 2, dtype=torch.int32),
        scale=0.1,
        window=case.window,
        softcap=case.softcap,
        out=_empty(*q.shape, dtype=q.dtype),
    )


def _store(case: _Case) -> Launch:
    _, k, v = _fused_qkv(case)
    return store_kv_launch(k, v, _cache(case), _empty(_ROWS, dtype=torch.int64))


def _rope_store(case: _Case) -> Launch:
    q, k, v = _fused_qkv(case)
    angles = _empty(_ROWS, case.head_dim // 2)
    slots = _empty(_ROWS, dtype=torch.int64)
    return rope_store_launch(q, k, v, angles, angles, _cache(case), slots, out=_empty(*q.shape))


def _slot_mapping() -> Launch:
    tables, _ = _tables()
    positions = _empty(_ROWS, dtype=torch.int64)
    starts = _empty(_ROWS + 1, dtype=torch.int32)
    return slot_mapping_launch(tables, starts, positions, positions, block_size=16)


def _copy_blocks() -> Launch:
    pool = _empty(64, _BLOCKS, 16, 8, 128)
    return copy_blocks_launch(pool, pool, _empty(_ROWS, 2, dtype=torch.int64))


def _add_rms_norm(size: int, weight_dtype: torch.dtype = torch.bfloat16) -> Launch:
    x = _empty(_ROWS, size)
    return rms_norm_launch(x, x, _empty(size, dtype=weight_dtype), x, eps=1e-5)


def _head_norm() -> Launch:
    q, _, _ = _fused_qkv(_LLAMA)
    return rms_norm_launch(q, None, _empty(128), _empty(*q.shape), eps=1e-5)


def _swiglu() -> Launch:
    return swiglu_launch(_empty(_ROWS, 2 * 14336), _empty(_ROWS, 14336))


def _sample() -> Launch:
    setting = _empty(_ROWS, dtype=torch.float32)
    top_k, chosen = _empty(_ROWS, dtype=torch.int32), _empty(_ROWS, dtype=torch.int64)
    return sample_launch(_empty(_ROWS, 128256), setting, top_k, setting, setting, setting, chosen)


def _fused_qkv(case: _Case) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as the model hands them over: parts of one projection."""
    heads, kv_heads = case.num_heads, case.num_kv_heads
    fused = _empty(_ROWS, heads + 2 * kv_heads, case.head_dim, dtype=case.dtype)
    return fused[:, :heads], fused[:, heads : heads + kv_heads], fused[:, heads + kv_heads :]


def _cache(case: _Case) -> PagedKV:
    k_page, v_page = page_shapes(
        case.layout,
        block_size=case.block_size,
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim,
        dtype=case.cache_dtype,
    )
    scale = _empty(case.num_kv_heads, dtype=torch.float32) if case.cache_dtype is FP8 else None
    k_cache, v_cache = (_empty(_BLOCKS, *page, dtype=case.cache_dtype) for page in (k_page, v_page))
    return paged_kv(case.layout, k_cache, v_cache, k_scale=scale, v_scale=scale)


def _tables() -> tuple[Tensor, Tensor]:
    return _empty(_ROWS, 512, dtype=torch.int32), _empty(_ROWS, dtype=torch.int32)


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
