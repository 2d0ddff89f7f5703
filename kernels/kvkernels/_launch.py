"""What every Triton wrapper asks before it launches."""

import torch
import triton
from torch import Tensor


def interpreting() -> bool:
    """Whether `TRITON_INTERPRET=1` was set when Triton was imported."""
    return bool(triton.knobs.runtime.interpret)


def check_launchable(op: str, *tensors: Tensor) -> None:
    """Refuse tensors that the kernel cannot run on, before Triton fails in its own words.

    Raises:
        ValueError: The tensors lie on several devices, or on the CPU without the interpreter.
        TypeError: A bfloat16 tensor under the interpreter, which multiplies its bit patterns as integers without
            saying so (github.com/triton-lang/triton/issues/11584).
    """
    devices = {str(tensor.device) for tensor in tensors}
    if len(devices) != 1:
        raise ValueError(f"{op}: all tensors must lie on one device, got {', '.join(sorted(devices))}")
    if interpreting():
        if any(tensor.dtype is torch.bfloat16 for tensor in tensors):
            raise TypeError(f"{op}: Triton's interpreter computes bfloat16 wrongly; use float32 or float16 there")
    elif not tensors[0].is_cuda:
        raise ValueError(f"{op}: the kernel needs CUDA tensors, or TRITON_INTERPRET=1 before Triton is imported")


def check_shape(op: str, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse a tensor of another shape.

    Raises:
        ValueError: The shapes differ.
    """
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{op}: expected {name} of shape {list(shape)}, got {list(tensor.shape)}")


def check_dtype(op: str, name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """Refuse a tensor of another type.

    Raises:
        TypeError: The types differ.
    """
    if tensor.dtype is not dtype:
        raise TypeError(f"{op}: expected {name} in {dtype}, got {tensor.dtype}")
