"""K/V of swapped-out requests in the host's memory."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kvengine.errors import DeviceError
from kvengine.units import format_bytes

CopyBlocks = Callable[[Tensor, Tensor, Sequence[tuple[int, int]]], None]
"""Copies (source, destination) blocks from one pool to another; dimension 1 counts blocks in both."""


class HostCache:
    """A pool on the host for each of the device's, with room for other numbers of blocks.

    Args:
        pools: The device's; dimension 1 counts blocks.
        num_blocks: Blocks of the host's.
        copy: Copies between the two.

    Raises:
        DeviceError: The host's memory does not suffice.
    """

    def __init__(self, pools: Sequence[Tensor], num_blocks: int, *, copy: CopyBlocks) -> None:
        self._pools = pools
        self._copy = copy
        try:
            # Pinned, so that a GPU reads and writes it directly.
            self._host = [
                torch.zeros((pool.shape[0], num_blocks, *pool.shape[2:]), dtype=pool.dtype, pin_memory=pool.is_cuda)
                for pool in pools
            ]
        except (RuntimeError, MemoryError) as error:
            size = format_bytes(sum(pool[:, :1].nbytes for pool in pools) * num_blocks)
            raise DeviceError(
                f"cannot allocate {num_blocks} blocks ({size}) on the host: {str(error).splitlines()[0]}",
                hint="set a smaller swap_space",
            ) from None

    @property
    def cache_bytes(self) -> int:
        """Bytes allocated on the host."""
        return sum(pool.nbytes for pool in self._host)

    def swap_out(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copy (device, host) blocks to the host, in all layers."""
        for pool, host in zip(self._pools, self._host, strict=True):
            self._copy(pool, host, moves)

    def swap_in(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copy (host, device) blocks back, in all layers."""
        for pool, host in zip(self._pools, self._host, strict=True):
            self._copy(host, pool, moves)
