"""The kernels for what stands between attention and matrix products, by device: one place that asks, for all models.

On the CPU the ones compiled for its processor; on a GPU, and where `TRITON_INTERPRET=1` asks for it, the Triton ones.
What neither takes is computed by torch.
"""

import importlib.util
import os
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from kvengine.native.kernels import COMPUTE_TYPES, native_kernels


class DenseKernels(Protocol):
    """Kernels of one device."""

    @property
    def packed_only(self) -> bool:
        """Whether rows must be contiguous, and a norm's weight of their type."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, out: Tensor, *, epsilon: float) -> None:
        """Write `x / rms(x) * weight`.

        Shapes:
            x, out: [num_rows, size], of one type; or [num_rows, num_heads, size], if not only packed rows are taken
            weight: [size]
        """
        ...

    def swiglu(self, gate_up: Tensor, out: Tensor) -> None:
        """Write `silu(gate) * up`; [num_rows, 2 * size], the gates first, to [num_rows, size]."""
        ...


class TritonKernels:
    """The Triton kernels; any strides, any mixture of types."""

    packed_only = False

    def rms_norm(self, x: Tensor, weight: Tensor, out: Tensor, *, epsilon: float) -> None:
        """Norm rows or heads; see `DenseKernels`."""
        from kvkernels.rms_norm import rms_norm_launch

        rms_norm_launch(x, None, weight, out, eps=epsilon).run()

    def add_rms_norm(self, delta: Tensor, x: Tensor, weight: Tensor, *, epsilon: float) -> Tensor:
        """Add `delta` to x in place, [num_rows, size] both, and norm the sum in the same pass."""
        from kvkernels.rms_norm import add_rms_norm

        return add_rms_norm(delta, x, weight, eps=epsilon)

    def swiglu(self, gate_up: Tensor, out: Tensor) -> None:
        """Gate rows; see `DenseKernels`."""
        from kvkernels.swiglu import swiglu_launch

        swiglu_launch(gate_up, out).run()

    def sample(
        self, logits: Tensor, *, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
    ) -> Tensor:
        """Draw a token for each row; see `kvkernels.sampling.sample`, which takes narrower types than given here.

        Shapes:
            logits: [num_rows, vocab_size]
            temperature, top_k, top_p, min_p, uniform: [num_rows]

        Returns:
            [num_rows], int64
        """
        from kvkernels.sampling import sample

        # In float32 the largest float64 below 1 would be 1.
        below_one = uniform.to(torch.float32).clamp_max_(1 - 2**-24)
        return sample(
            logits,
            temperature=temperature.to(torch.float32),
            top_k=top_k.to(torch.int32),
            top_p=top_p.to(torch.float32),
            min_p=min_p.to(torch.float32),
            uniform=below_one,
        )


_TRITON = TritonKernels()


def kernels_for(tensor: Tensor) -> DenseKernels | None:
    """The kernels that take a tensor of this type on this device, if there are any."""
    if tensor.dtype not in COMPUTE_TYPES:
        return None
    return _kernels_on(tensor.device.type)


def triton_kernels_for(tensor: Tensor) -> TritonKernels | None:
    """The Triton kernels, where they are what this tensor's device has."""
    return _TRITON if kernels_for(tensor) is _TRITON else None


@cache
def _kernels_on(device_type: str) -> DenseKernels | None:
    # Triton itself looks at the variable once, when it is imported.
    interpreted = device_type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if (device_type == "cuda" or interpreted) and importlib.util.find_spec("triton") is not None:
        return _TRITON
    found = native_kernels() if device_type == "cpu" else "no kernels"
    return None if isinstance(found, str) else found
