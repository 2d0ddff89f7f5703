"""The compiled kernels on torch's tensors: shapes and types are checked by the callers, here they become pointers."""

import ctypes
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from kvengine.native.build import load_library

_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float8_e4m3fn: 3}
COMPUTE_TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Types of q, k, v and of everything but a cache, which may also be float8 e4m3."""

_TYPE, _SIZE, _REAL, _POINTER = ctypes.c_int, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
_ARGUMENTS: dict[str, Sequence[type]] = {
    "kv_attend": (
        *(_TYPE, _TYPE, _POINTER, _SIZE, _SIZE, _POINTER, _POINTER, _POINTER, _SIZE, _POINTER, _POINTER),
        *(_SIZE, _SIZE, _SIZE, _SIZE, _SIZE, _REAL, _SIZE, _REAL, _POINTER, _POINTER, _POINTER),
    ),
    "kv_store": (_TYPE, _TYPE, _POINTER, _SIZE, _POINTER, _SIZE, _SIZE, _SIZE, _SIZE, _POINTER, _POINTER),
    "kv_rms_norm": (_TYPE, _POINTER, _POINTER, _POINTER, _SIZE, _SIZE, _REAL),
    "kv_swiglu": (_TYPE, _POINTER, _POINTER, _SIZE, _SIZE),
    "kv_rope": (_TYPE, _POINTER, _SIZE, _SIZE, _SIZE, _SIZE, _POINTER, _POINTER, _SIZE),
}


@cache
def native_kernels() -> "NativeKernels | str":
    """The kernels, or why there are none."""
    library = load_library()
    return library if isinstance(library, str) else NativeKernels(library)


def kernels_for(tensor: Tensor) -> "NativeKernels | None":
    """The kernels, if they take a tensor of this type and on this device and there are any."""
    if tensor.device.type != "cpu" or tensor.dtype not in COMPUTE_TYPES:
        return None
    found = native_kernels()
    return None if isinstance(found, str) else found


class NativeKernels:
    """Calls into the library. Tensors are on the CPU; innermost dimensions are contiguous."""

    packed_only = True

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None
        self._library = library

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        block_tables: Tensor,
        lengths: Tensor,
        out: Tensor,
        *,
        scale: float,
        rows: Tensor | None = None,
        window: int | None = None,
        softcap: float | None = None,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
    ) -> None:
        """Attend from query tokens, each to the beginning of a request up to its own place.

        Shapes:
            q: [num_queries, num_heads, head_dim], heads side by side
            keys, values: [num_blocks, num_kv_heads, block_size, head_dim], contiguous; the same for latent rows
            block_tables: [num_rows, max_blocks], int32; what stands behind a row's context, or before its window, is
                not read
            lengths: [num_queries], int32, how many tokens each sees; with 0 it gets zeros
            rows: [num_queries], int32, whose table each follows; None where each query has its own row
            out: [num_queries, num_heads, value_size], contiguous; values count up to `value_size`
            k_scale, v_scale: [num_kv_heads], float32, by which what is stored is multiplied; None for 1

        Args:
            scale: What products of queries and keys are multiplied by.
            window: Most tokens seen, the query's own included; None for all.
            softcap: Bound of the scores, `softcap * tanh(score / softcap)`; None for none.
        """
        _, num_kv_heads, block_size, head_dim = keys.shape
        num_queries, num_heads, _ = q.shape
        self._library.kv_attend(
            *(_TYPES[q.dtype], _TYPES[keys.dtype], q.data_ptr(), q.stride(0), num_queries),
            *(keys.data_ptr(), values.data_ptr(), block_tables.data_ptr(), block_tables.stride(0)),
            *(_pointer(rows), lengths.data_ptr(), num_heads, num_kv_heads, head_dim, out.shape[2], block_size),
            *(scale, window or 0, softcap or 0.0, _pointer(k_scale), _pointer(v_scale), out.data_ptr()),
        )

    def store(self, rows: Tensor, slots: Tensor, pool: Tensor, *, scale: Tensor | None = None) -> None:
        """Write keys or values into their slots, over their head's scale; negative slots are skipped.

        Shapes:
            rows: [num_tokens, num_kv_heads, head_dim], heads side by side
            slots: [num_tokens], int64
            pool: [num_blocks, num_kv_heads, block_size, head_dim], contiguous
            scale: [num_kv_heads], float32; None for 1
        """
        _, num_kv_heads, block_size, head_dim = pool.shape
        self._library.kv_store(
            *(_TYPES[rows.dtype], _TYPES[pool.dtype], rows.data_ptr(), rows.stride(0), slots.data_ptr()),
            *(slots.shape[0], num_kv_heads, head_dim, block_size, _pointer(scale), pool.data_ptr()),
        )

    def rms_norm(self, x: Tensor, weight: Tensor, out: Tensor, *, epsilon: float) -> None:
        """Write `x / rms(x) * weight`.

        Shapes:
            x, out: [num_rows, size], contiguous, of one type
            weight: [size]
        """
        self._library.kv_rms_norm(
            *(_TYPES[x.dtype], x.data_ptr(), weight.data_ptr(), out.data_ptr(), *x.shape, epsilon)
        )

    def swiglu(self, gate_up: Tensor, out: Tensor) -> None:
        """Write `silu(gate) * up`.

        Shapes:
            gate_up: [num_rows, 2 * size], contiguous, the gates first
            out: [num_rows, size], contiguous
        """
        self._library.kv_swiglu(_TYPES[out.dtype], gate_up.data_ptr(), out.data_ptr(), *out.shape)

    def rope(self, heads: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Turn each pair (i, i + half) of every head in place; dimensions from 2 * half on stay as they are.

        Shapes:
            heads: [num_tokens, num_heads, head_dim], tokens and heads any distance apart
            cos, sin: [num_tokens, half], contiguous, of the same type
        """
        num_tokens, num_heads, _ = heads.shape
        self._library.kv_rope(
            *(_TYPES[heads.dtype], heads.data_ptr(), heads.stride(0), heads.stride(1), num_tokens, num_heads),
            *(cos.data_ptr(), sin.data_ptr(), cos.shape[1]),
        )


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
