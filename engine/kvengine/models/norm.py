"""Root-mean-square normalisation."""

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from kvengine.dense_kernels import kernels_for, triton_kernels_for


class RMSNorm:
    """`x / sqrt(mean(x * x) + eps) * weight` over the last dimension.

    Args:
        weight: In another type than its input for a norm that is computed in that type.
        eps: Keeps the root away from 0.
    """

    def __init__(self, weight: Tensor, *, eps: float) -> None:
        self._weight = weight
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """Norm rows; the result has their type."""
        weight, kernels = self._weight, kernels_for(x)
        if kernels is None or (kernels.packed_only and x.dtype != weight.dtype):
            return rms_norm(x.to(weight.dtype), weight.shape, weight, self._eps).to(x.dtype)
        rows = x.reshape(-1, x.shape[-1]).contiguous() if kernels.packed_only else x
        out = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
        kernels.rms_norm(rows, weight, out, epsilon=self._eps)
        return out.view(x.shape)

    def add_and_norm(self, x: Tensor, delta: Tensor | None) -> Tensor:
        """Add `delta`, if there is one, to x in place, [num_rows, size] both and contiguous, and norm the sum."""
        if delta is None:
            return self(x)
        kernels = triton_kernels_for(x)
        return (
            self(x.add_(delta)) if kernels is None else kernels.add_rms_norm(delta, x, self._weight, epsilon=self._eps)
        )


def identity(x: Tensor) -> Tensor:
    """The norm of a place that has none."""
    return x


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """The type to norm in where 16 bits are too few."""
    return torch.promote_types(dtype, torch.float32)
