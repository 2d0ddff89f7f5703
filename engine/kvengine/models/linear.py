"""Linear layers, their weights laid out once for the products to come."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

_EXPECTED_ROWS = 32
"""For which the layout is chosen; it serves others too: from 1 to 2,048 rows it beats the plain one."""


class Linear:
    """`x @ weight.T + bias`.

    On a CPU that oneDNN serves, the weight is kept in its order alone. 120 products as in a SmolLM2-135M, 32 rows each,
    on two cores of a Zen 5: 24 ms instead of 57 in float32, 13 instead of 20 in bfloat16.

    Args:
        weight: [num_outputs, num_inputs]
        bias: [num_outputs], or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        packed = _packed(weight)
        self._weight = weight if packed is None else packed
        self._product: Callable[..., Tensor] = _plain if packed is None else _from_packed
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it to rows, [num_rows, num_inputs] to [num_rows, num_outputs]."""
        return self._product(x, self._weight, self._bias)


def _plain(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return linear(x, weight, bias)


def _from_packed(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Any = torch.ops.mkldnn._linear_pointwise
    result: Tensor = product(x, weight, bias, "none", [], "")
    return result


def _packed(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's own order; None where it does not serve this type on this device."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.enabled or not _is_served(weight.dtype):
        return None
    reorder: Any = torch.ops.mkldnn._reorder_linear_weight
    packed: Tensor = reorder(weight.contiguous(), _EXPECTED_ROWS)
    return packed


def _is_served(dtype: torch.dtype) -> bool:
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    match dtype:
        case torch.float32:
            return True
        case torch.bfloat16:
            return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        case torch.float16:
            return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
        case _:
            return False
