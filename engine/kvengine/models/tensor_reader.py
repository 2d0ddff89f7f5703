"""Reading a model's tensors: shapes checked, types converted, matrices with one input laid into one."""

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from kvengine.errors import ConfigError
from kvengine.models.weights import WeightSource

_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_COMPUTED_ANYWAY = ("rotary_emb.inv_freq", "weight_scale_inv")
"""Endings of what old and quantised checkpoints hold besides weights."""


class TensorReader:
    """Reads each tensor once, onto a device.

    Args:
        source: Where they come from.
        dtype: Type to convert them to.
        device: Where they go.
    """

    def __init__(self, source: WeightSource, *, dtype: torch.dtype, device: torch.device) -> None:
        self._source = source
        self._read: set[str] = set()
        self.dtype = dtype
        self.device = device

    def has(self, name: str) -> bool:
        """Whether there is a tensor that a model may also lack."""
        return name in self._source.names

    def tensor(self, name: str, shape: tuple[int, ...], *, dtype: torch.dtype | None = None) -> Tensor:
        """Read one tensor.

        Raises:
            ConfigError: It is missing, or has another shape.
        """
        self._read.add(name)
        tensor = self._source.tensor(name, shape)
        if tuple(tensor.shape) != shape:
            message = f"tensor {name!r} has shape {list(tensor.shape)}; the geometry says {list(shape)}"
            raise ConfigError(message, where=self._source.where)
        return tensor.to(device=self.device, dtype=dtype or self.dtype)

    def matrix(self, name: str, rows: int, columns: int) -> Tensor:
        """Read the weight of a linear layer, [rows, columns]."""
        return self.tensor(f"{name}.weight", (rows, columns))

    def stacked(self, parts: Sequence[tuple[str, int]], columns: int) -> Tensor:
        """Read the weights of linear layers with one input as one matrix, [sum of rows, columns]."""
        stack = torch.empty(sum(rows for _, rows in parts), columns, dtype=self.dtype, device=self.device)
        self.fill(stack, parts)
        return stack

    def fill(self, target: Tensor, parts: Sequence[tuple[str, int]]) -> None:
        """Read the weights of linear layers into the rows of a matrix that is there."""
        first = 0
        for name, rows in parts:
            target[first : first + rows].copy_(self.matrix(name, rows, target.shape[1]))
            first += rows

    def biases(self, parts: Sequence[tuple[str, int]]) -> Tensor:
        """Read the biases of linear layers as one, [sum of rows]."""
        return torch.cat([self.tensor(f"{name}.bias", (rows,)) for name, rows in parts])

    def refuse_unread(self, num_layers: int) -> None:
        """Refuse weights that this model does not use: it would compute something else than what was trained.

        What lies behind the last layer is for drafts, and is left out.

        Raises:
            ConfigError: It names the first of them.
        """
        unread = sorted(name for name in set(self._source.names) - self._read if not _is_spare(name, num_layers))
        if unread:
            message = f"the tensor {unread[0]!r} has no place in this model as its configuration describes it"
            raise ConfigError(message, where=self._source.where)


def _is_spare(name: str, num_layers: int) -> bool:
    layer = _LAYER.match(name)
    return name.endswith(_COMPUTED_ANYWAY) or (layer is not None and int(layer[1]) >= num_layers)
