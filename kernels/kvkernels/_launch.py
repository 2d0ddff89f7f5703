"""A kernel launch as a value: it can be run here, or compiled for a GPU that is not there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel with its grid and everything that it is called with."""

    op: str
    """The public function that launches it; named in refusals."""
    kernel: Any
    """A `@triton.jit` function."""
    grid: tuple[int, ...]
    arguments: Mapping[str, Tensor | int | float | None]
    """Run-time arguments by name; Triton compiles None and 1 into the code, and knows which numbers 16 divides."""
    constants: Mapping[str, int | float]
    """`tl.constexpr` arguments by name."""
    num_warps: int = 4
    num_stages: int = 1
    """Pipeline stages of the kernel's loops."""

    def run(self) -> None:
        """Launch; nothing happens where the grid is empty.

        Raises:
            ValueError: The tensors are where the kernel cannot run.
            TypeError: bfloat16 tensors meet the interpreter.
        """
        check_launchable(self.op, *(value for value in self.arguments.values() if isinstance(value, Tensor)))
        if 0 not in self.grid:
            self.kernel[self.grid](
                **self.arguments, **self.constants, num_warps=self.num_warps, num_stages=self.num_stages
            )


def strides(name: str, tensor: Tensor, *dims: str) -> dict[str, int]:
    """Name a tensor's strides as kernels do: `stride_<name>_<dim>`, in elements."""
    return {f"stride_{name}_{dim}": stride for dim, stride in zip(dims, tensor.stride(), strict=True)}


def interpreting() -> bool:
    """Whether `TRITON_INTERPRET=1` was set when Triton was imported."""
    return bool(triton.knobs.runtime.interpret)


def check_launchable(op: str, *tensors: Tensor) -> None:
    """Refuse tensors that the kernel cannot run on, before Triton fails in its own words.

    Pinned memory of the host counts as lying on the GPU, which can address it.

    Raises:
        ValueError: The tensors lie on several devices, or on the CPU without the interpreter.
        TypeError: A bfloat16 tensor under the interpreter, which multiplies its bit patterns as integers without
            saying so (github.com/triton-lang/triton/issues/11584).
    """
    devices = {str(tensor.device) for tensor in tensors if not tensor.is_pinned()}
    if len(devices) != 1:
        raise ValueError(f"{op}: all tensors must lie on one device, got {', '.join(sorted(devices))}")
    if interpreting():
        if any(tensor.dtype is torch.bfloat16 for tensor in tensors):
            raise TypeError(f"{op}: Triton's interpreter computes bfloat16 wrongly; use float32 or float16 there")
    elif devices == {"cpu"}:
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
