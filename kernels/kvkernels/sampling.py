# A compiled kernel is not Python: its body is excused from annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Choosing the next token: greedy, or drawn after temperature, min-p, top-k and top-p, without sorting.

The least logit that a filter keeps is found by bisection over the bit patterns of float32, which are ordered as the
numbers are: 32 passes over the row give it exactly, and a row of 128 Ki logits stays in the GPU's second-level cache.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvkernels._launch import Launch, check_dtype, check_shape, strides

_OP = "sample"
_LARGEST_TILE = 4096


def sample(
    logits: Tensor, *, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    """Choose a token for each row, as `reference.sample` does.

    A row's choice depends on its own inputs alone: give each request its own random numbers, and its tokens are the
    same whoever shares the batch. Sums are float32, in a fixed order, so a number within about 1e-6 of a border
    between two tokens may fall to the other side of it than in the reference.

    Shapes:
        logits: [num_rows, vocab_size], any float type and strides, no nan
        temperature: [num_rows], float32; 0 takes the most likely token, the lowest id of equal ones
        top_k: [num_rows], int32; 0 keeps all
        top_p, min_p: [num_rows], float32; 1 and 0 keep all
        uniform: [num_rows], float32, in [0, 1)

    Returns:
        [num_rows], int64

    Raises:
        ValueError: Shapes do not go together, or the tensors are where the kernel cannot run.
        TypeError: A tensor has another type, or bfloat16 tensors meet the interpreter.
    """
    chosen = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    sample_launch(logits, temperature, top_k, top_p, min_p, uniform, chosen).run()
    return chosen


def sample_launch(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor, chosen: Tensor
) -> Launch:
    """Prepare `sample`."""
    num_rows, vocab_size = logits.shape
    settings = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "uniform": uniform,
    }
    for name, tensor in settings.items():
        check_shape(_OP, name, tensor, (num_rows,))
        check_dtype(_OP, name, tensor, torch.int32 if name == "top_k" else torch.float32)
    return Launch(
        op=_OP,
        kernel=_sample_kernel,
        grid=(num_rows,),
        arguments={
            "logits_ptr": logits,
            **{f"{name}_ptr": tensor.contiguous() for name, tensor in settings.items()},
            "chosen_ptr": chosen,
            "vocab_size": vocab_size,
            **strides("logits", logits, "row", "token"),
        },
        constants={"TILE": min(_LARGEST_TILE, triton.next_power_of_2(vocab_size))},
        num_warps=8,
    )


@triton.jit
def _sample_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    uniform_ptr,
    chosen_ptr,
    vocab_size,
    stride_logits_row,
    stride_logits_token,
    TILE: tl.constexpr,
):
    """The first token t with w[0] + .. + w[t] > uniform * sum(w), where w[i] = exp((x[i] - max x) / temperature).

    w[i] is 0 where x[i] is less than the filters keep. One program a row.
    """
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * stride_logits_row
    highest, chosen = most_likely(row_ptr, vocab_size, stride_logits_token, TILE)
    temperature = tl.load(temperature_ptr + row)
    if temperature > 0:
        exponent = 1.4426950408889634 / temperature  # of 2
        least = float("-inf")
        top_k = tl.load(top_k_ptr + row)
        if (top_k > 0) & (top_k < vocab_size):
            wanted = top_k.to(tl.float32)
            least = least_kept(row_ptr, vocab_size, stride_logits_token, highest, exponent, least, wanted, TILE, True)
        min_p = tl.load(min_p_ptr + row)
        if min_p > 0:
            least = tl.maximum(least, highest + tl.log2(min_p) / exponent)
        top_p = tl.load(top_p_ptr + row)
        if top_p < 1:
            kept = kept_weight(row_ptr, vocab_size, stride_logits_token, highest, exponent, least, TILE, False)
            wanted = top_p * kept
            least = least_kept(row_ptr, vocab_size, stride_logits_token, highest, exponent, least, wanted, TILE, False)
        total = kept_weight(row_ptr, vocab_size, stride_logits_token, highest, exponent, least, TILE, False)
        border = tl.load(uniform_ptr + row) * total
        chosen = first_above(row_ptr, vocab_size, stride_logits_token, highest, exponent, least, border, TILE)
    tl.store(chosen_ptr + row, chosen.to(tl.int64))


@triton.jit
def load_logits(row_ptr, token, vocab_size, stride_token):
    """Logits in float32, -inf past the vocabulary."""
    inside = token < vocab_size
    return tl.load(row_ptr + token * stride_token, mask=inside, other=float("-inf")).to(tl.float32)


@triton.jit
def weights_of(x, highest, exponent, least):
    """Unnormalised probabilities; 0 for what is not kept."""
    return tl.where(x >= least, tl.exp2((x - highest) * exponent), 0.0)


@triton.jit
def most_likely(row_ptr, vocab_size, stride_token, TILE: tl.constexpr):
    """The highest logit, and the lowest token that has it."""
    highest = float("-inf")
    chosen = 0
    for start in range(0, vocab_size, TILE):
        token = start + tl.arange(0, TILE)
        x = load_logits(row_ptr, token, vocab_size, stride_token)
        tile_highest = tl.max(x, 0)
        if tile_highest > highest:
            highest = tile_highest
            chosen = tl.min(tl.where(x == tile_highest, token, vocab_size), 0)
    return highest, chosen


@triton.jit
def kept_weight(row_ptr, vocab_size, stride_token, highest, exponent, least, TILE: tl.constexpr, COUNT: tl.constexpr):
    """The summed weight of all that is kept, or how many that is."""
    total = 0.0
    for start in range(0, vocab_size, TILE):
        x = load_logits(row_ptr, start + tl.arange(0, TILE), vocab_size, stride_token)
        if COUNT:
            total += tl.sum((x >= least).to(tl.float32), 0)
        else:
            total += tl.sum(weights_of(x, highest, exponent, least), 0)
    return total


@triton.jit
def least_kept(
    row_ptr, vocab_size, stride_token, highest, exponent, least, wanted, TILE: tl.constexpr, COUNT: tl.constexpr
):
    """The greatest logit, `least` or above, such that what is not below it weighs `wanted` or more."""
    low = ordered(least)  # kept down to here, the weight suffices
    high = ordered(highest) + 1  # down to here, it does not
    while high - low > 1:
        middle = (low + high) // 2
        weight = kept_weight(row_ptr, vocab_size, stride_token, highest, exponent, from_ordered(middle), TILE, COUNT)
        if weight >= wanted:
            low = middle
        else:
            high = middle
    return from_ordered(low)


@triton.jit
def ordered(x):
    """A float32 as an integer, ordered as the numbers are; int64, for the sum of two of them."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def from_ordered(key):
    """The float32 of an ordered integer."""
    bits = key.to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def first_above(row_ptr, vocab_size, stride_token, highest, exponent, least, border, TILE: tl.constexpr):
    """The first kept token at which the summed weight exceeds the border; the last kept one if rounding leaves none."""
    before = 0.0
    chosen = vocab_size
    last = 0
    for start in range(0, vocab_size, TILE):
        token = start + tl.arange(0, TILE)
        weights = weights_of(load_logits(row_ptr, token, vocab_size, stride_token), highest, exponent, least)
        is_kept = weights > 0
        above = is_kept & (before + tl.cumsum(weights, 0) > border)
        chosen = tl.minimum(chosen, tl.min(tl.where(above, token, vocab_size), 0))
        last = tl.maximum(last, tl.max(tl.where(is_kept, token, 0), 0))
        before += tl.sum(weights, 0)
    return tl.where(chosen < vocab_size, chosen, last)
