# A compiled kernel is not Python: its body is excused from annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""The place and the form of one element of the cache, as every kernel that touches it needs them."""

import triton
import triton.language as tl


@triton.jit
def key_offsets(
    block,
    offset,
    head,
    dim,
    stride_block,
    stride_offset,
    stride_head,
    stride_chunk,
    stride_dim,
    CHUNK: tl.constexpr,
    ARE_ALIGNED: tl.constexpr,
):
    """Where the element `dim` of a key lies; block, offset and dim broadcast, and at least one is int64.

    Said to be aligned, dimensions run along axis 1 from 0, and every chunk starts at a multiple of its length. Triton
    itself looks for strides that 16 divides; one of 8, as 16-bit chunks have, would be loaded element by element.
    """
    place = block * stride_block + offset * stride_offset + head * stride_head
    place = place + (dim // CHUNK) * stride_chunk + (dim % CHUNK) * stride_dim
    if ARE_ALIGNED:
        place = tl.multiple_of(place, (1, CHUNK))
    return place


@triton.jit
def value_offsets(
    block,
    offset,
    head,
    dim,
    stride_block,
    stride_offset,
    stride_head,
    stride_dim,
    ALIGNMENT: tl.constexpr,
):
    """Where the element `dim` of a value lies; runs of positions along axis 0 start at multiples of ALIGNMENT."""
    place = block * stride_block + offset * stride_offset + head * stride_head + dim * stride_dim
    if ALIGNMENT > 1:
        place = tl.multiple_of(place, (ALIGNMENT, 1))
    return place


@triton.jit
def to_cache(x, scale_ptr, head, NUM_HEADS: tl.constexpr, CACHE_TYPE: tl.constexpr):
    """x / scale[head], rounded to the cache's type; e4m3 takes its largest value for what lies beyond."""
    if scale_ptr is not None:
        x = tl.div_rn(x.to(tl.float32), tl.load(scale_ptr + head, mask=head < NUM_HEADS, other=1.0))
    if CACHE_TYPE.is_fp8e4nv():
        x = round_to_e4m3(x.to(tl.float32))
    return x.to(CACHE_TYPE)


@triton.jit
def round_to_e4m3(x):
    """The nearest value that e4m3 has, the even one of two, so that every later conversion is exact.

    The interpreter's own conversion rounds 7.9 to 4: it drops the carry from the mantissa into the exponent. Adding
    and subtracting 1.5 * 2**(exponent + 20) leaves 3 bits of mantissa; below the smallest exponent, -6, fewer.
    """
    x = tl.clamp(x, -448.0, 448.0)
    exponent = tl.maximum((x.to(tl.int32, bitcast=True) >> 23) & 0xFF, 127 - 6)
    magic = (((exponent + 20) << 23) | 0x400000).to(tl.float32, bitcast=True)
    return (x + magic) - magic
