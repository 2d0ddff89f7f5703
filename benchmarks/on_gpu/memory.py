"""How fast the card copies: what every figure of the attention kernels is held against."""

import torch

from benchmarks.on_gpu.timing import median_s


def copy_bytes_per_s(device: torch.device, *, size_bytes: int) -> float:
    """Bytes read plus bytes written by a copy inside the device's memory; the size is far beyond any cache."""
    source = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size_bytes / median_s(lambda: target.copy_(source), device)
