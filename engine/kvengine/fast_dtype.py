"""Which type a model computes fastest in on this machine, found by a short probe."""

import time
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from kvengine.models.linear import Linear
from kvengine.spec import KVDtype

_ROWS, _SIZE = 32, 1024
_ROUNDS, _PRODUCTS = 7, 8
_WORTH_IT = 1.1
"""Times faster that 16 bits must be to be worth their rounding."""


class FastDtype(NamedTuple):
    """The type, and what it was chosen by."""

    dtype: KVDtype
    reason: str


@cache
def fastest_dtype(device_type: str) -> FastDtype:
    """Give bfloat16 or float32, asked once a process; on the CPU some 90 ms of processor time.

    A GPU that the engine runs on has tensor cores, which multiply bfloat16 faster.
    """
    if device_type != "cpu":
        return FastDtype(KVDtype.BFLOAT16, f"bfloat16, as {device_type} devices multiply it fastest")
    wide, narrow = _cpu_seconds((torch.float32, torch.bfloat16))
    gain = wide / narrow
    what = f"bfloat16 is {gain:.1f} times as fast as float32 in products of {_ROWS} rows"
    return FastDtype(KVDtype.BFLOAT16 if gain >= _WORTH_IT else KVDtype.FLOAT32, what)


@torch.inference_mode()
def _cpu_seconds(dtypes: Sequence[torch.dtype]) -> list[float]:
    """The quickest of some rounds in each type, which take turns; processor time, as others may be at work too.

    Several matrices are multiplied in a round, so that they come from memory as a model's do.
    """
    layers = [[Linear(torch.full((_SIZE, _SIZE), 0.5, dtype=dtype)) for _ in range(_PRODUCTS)] for dtype in dtypes]
    rows = [torch.full((_ROWS, _SIZE), 0.5, dtype=dtype) for dtype in dtypes]
    rounds = [[_round(*pair) for pair in zip(layers, rows, strict=True)] for _ in range(_ROUNDS)]
    return [min(times) for times in zip(*rounds, strict=True)]


def _round(layers: list[Linear], x: Tensor) -> float:
    start = time.process_time()
    for layer in layers:
        layer(x)
    return time.process_time() - start
