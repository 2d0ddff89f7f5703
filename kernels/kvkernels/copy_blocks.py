# A compiled kernel is not Python: its body is excused from annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Copying whole blocks: inside a pool for copy-on-write, between two pools for swapping."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvkernels._launch import Launch, check_dtype, check_shape, strides
from kvkernels.reference import check_copies

_OP = "copy_blocks"
_WORD = torch.int32
_TILE = 1024


def copy_blocks(source: Tensor, destination: Tensor, copies: Sequence[tuple[int, int]]) -> None:
    """Copy blocks in all layers with one launch, as `reference.copy_blocks` does.

    The order of elements inside a block does not matter, so this serves every layout in which a block is contiguous.

    Shapes:
        source, destination: [num_layers, num_blocks, *page], one type; pages are contiguous and of one shape, the
            numbers of blocks may differ. One may be pinned memory of the host.

    Args:
        source: Where blocks are read.
        destination: Where they are written; the source itself for copy-on-write.
        copies: (source, destination) block ids; they run side by side.

    Raises:
        ValueError: The pairs depend on each other, shapes differ, or the tensors are where the kernel cannot run.
        TypeError: bfloat16 tensors meet the interpreter.
    """
    if not copies:
        return
    check_copies(copies, one_pool=source.data_ptr() == destination.data_ptr())
    device = destination.device if destination.is_cuda else source.device
    copy_blocks_launch(source, destination, torch.tensor(copies, dtype=torch.int64, device=device)).run()


def copy_blocks_launch(source: Tensor, destination: Tensor, copies: Tensor) -> Launch:
    """Prepare `copy_blocks`; `copies` is [num_copies, 2], int64, on the device."""
    check_dtype(_OP, "destination", destination, source.dtype)
    num_layers, _, *page = source.shape
    check_shape(_OP, "destination", destination, (num_layers, destination.shape[1], *page))
    source_words, destination_words = _as_words(source), _as_words(destination)
    page_words = source_words.shape[2]
    return Launch(
        op=_OP,
        kernel=_copy_blocks_kernel,
        grid=(copies.shape[0], num_layers, triton.cdiv(page_words, _TILE)),
        arguments={
            "source_ptr": source_words,
            "destination_ptr": destination_words,
            "copies_ptr": copies,
            "page_words": page_words,
            **strides("source", source_words, "layer", "block", "word"),
            **strides("destination", destination_words, "layer", "block", "word"),
            **strides("copies", copies, "copy", "end"),
        },
        constants={"TILE": _TILE},
    )


def _as_words(pool: Tensor) -> Tensor:
    """View pages as words of 4 bytes, or of one element where that does not go: bits are copied, not numbers."""
    flat = pool.view(*pool.shape[:2], -1)
    if flat.shape[2] * flat.element_size() % _WORD.itemsize == 0:
        return flat.view(_WORD)
    return flat.view({1: torch.int8, 2: torch.int16}[flat.element_size()])


@triton.jit
def _copy_blocks_kernel(
    source_ptr,
    destination_ptr,
    copies_ptr,
    page_words,
    stride_source_layer,
    stride_source_block,
    stride_source_word,
    stride_destination_layer,
    stride_destination_block,
    stride_destination_word,
    stride_copies_copy,
    stride_copies_end,
    TILE: tl.constexpr,
):
    """destination[l, copies[c, 1], :] = source[l, copies[c, 0], :].

    One program a copy, layer and tile of the page. int64: offsets pass 2**31 at 8 GiB of words.
    """
    copy = tl.program_id(0).to(tl.int64)
    layer = tl.program_id(1).to(tl.int64)
    word = tl.program_id(2) * TILE + tl.arange(0, TILE)
    inside = word < page_words
    source_block = tl.load(copies_ptr + copy * stride_copies_copy)
    destination_block = tl.load(copies_ptr + copy * stride_copies_copy + stride_copies_end)
    source_place = layer * stride_source_layer + source_block * stride_source_block + word * stride_source_word
    words = tl.load(source_ptr + source_place, mask=inside)
    place = layer * stride_destination_layer + destination_block * stride_destination_block
    tl.store(destination_ptr + place + word * stride_destination_word, words, mask=inside)
