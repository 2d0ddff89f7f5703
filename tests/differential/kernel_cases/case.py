"""What the cases share: tolerances, random tensors, caches in both layouts."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Case = Callable[[str], None]
"""Runs on a device; raises AssertionError where kernel and reference differ."""

TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Largest error of results near 1, against references in float64; the types keep 24, 11 and 8 bits."""

NAN = float("nan")


def dtypes_on(device: str) -> Sequence[torch.dtype]:
    """The interpreter multiplies the bit patterns of bfloat16, so that type is for GPUs."""
    return tuple(TOLERANCES) if device == "cuda" else (torch.float32, torch.float16)


def each_dtype(run: Callable[[str, torch.dtype], None]) -> Case:
    """A case that runs once in each type."""

    def case(device: str) -> None:
        for dtype in dtypes_on(device):
            try:
                run(device, dtype)
            except AssertionError as error:
                raise AssertionError(f"{dtype}: {error}") from None

    return case


def float16_only(run: Callable[[str, torch.dtype], None]) -> Case:
    """A case of many tiles: those of float16 are four times as large as those of float32."""
    return lambda device: run(device, torch.float16)


def normal(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers, the same ones in every type up to rounding."""
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def assert_close(got: Tensor, known: Tensor, dtype: torch.dtype) -> None:
    """Compare a result with its reference in float64, to the type's tolerance."""
    assert torch.isfinite(got).all(), "not all results are finite"
    tolerance = TOLERANCES[dtype]
    known = known.to(got.device)
    error = (got.double() - known).abs()
    excess = (error - tolerance * (1 + known.abs())).max().item() if error.numel() else 0.0
    assert excess <= 0, f"off by {error.max().item():.2e}, tolerance {tolerance}"
