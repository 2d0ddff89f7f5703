"""Root-mean-square normalisation."""

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from kvengine.native.kernels import kernels_for


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
        weight = self._weight
        if x.dtype != weight.dtype:
            return rms_norm(x.to(weight.dtype), weight.shape, weight, self._eps).to(x.dtype)
        kernels = kernels_for(x)
        if kernels is None:
            return rms_norm(x, weight.shape, weight, self._eps)
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        out = torch.empty_like(rows)
        kernels.rms_norm(rows, weight, out, epsilon=self._eps)
        return out.view(x.shape)


def identity(x: Tensor) -> Tensor:
    """The norm of a place that has none."""
    return x


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """The type to norm in where 16 bits are too few."""
    return torch.promote_types(dtype, torch.float32)
