"""Weights by chance: what a model of any size needs to be measured without its checkpoint."""

import math
from collections.abc import Collection
from zlib import crc32

import torch
from torch import Tensor


class RandomWeights:
    """Tensors made when they are asked for, in their final type and place: no wider copy ever exists.

    A matrix keeps the variance of what it multiplies, and a norm leaves it as it is. Each tensor depends on the seed
    and its own name alone.

    Args:
        dtype: Type of the tensors.
        device: Where they are made.
        seed: Of the whole model.
        norm_weight: What a norm's weights are: 1, less what the model adds to them.
    """

    where = "random weights"

    def __init__(self, *, dtype: torch.dtype, device: torch.device, seed: int = 0, norm_weight: float = 1.0) -> None:
        self._dtype = dtype
        self._device = device
        self._seed = seed
        self._norm_weight = norm_weight
        self._generator = torch.Generator(device=device)

    @property
    def names(self) -> Collection[str]:
        """None that a model may also lack."""
        return ()

    def tensor(self, name: str, shape: tuple[int, ...], /) -> Tensor:
        """Make one tensor."""
        if name.endswith("norm.weight"):
            return torch.full(shape, self._norm_weight, dtype=self._dtype, device=self._device)
        # 32 bits: the generator of the CPU takes no more of a seed.
        self._generator.manual_seed(crc32(f"{self._seed} {name}".encode()))
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
        return tensor.normal_(std=1 / math.sqrt(shape[-1]), generator=self._generator)
