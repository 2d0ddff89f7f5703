# A compiled kernel is not Python: its body is excused from annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""The gated activation of the feed-forward layers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvkernels._launch import Launch, strides

_OP = "swiglu"
_TILE = 1024


def swiglu(gate_up: Tensor) -> Tensor:
    """Compute `silu(gate) * up`, as `reference.swiglu` does.

    Shapes:
        gate_up: [num_tokens, 2 * size], gate first, any strides

    Returns:
        [num_tokens, size], contiguous.

    Raises:
        ValueError: The row is no two halves, or the tensors are where the kernel cannot run.
        TypeError: bfloat16 tensors meet the interpreter.
    """
    num_tokens, width = gate_up.shape
    if width % 2:
        raise ValueError(f"{_OP}: gate and up are halves of a row, got a row of {width}")
    out = torch.empty(num_tokens, width // 2, dtype=gate_up.dtype, device=gate_up.device)
    swiglu_launch(gate_up, out).run()
    return out


def swiglu_launch(gate_up: Tensor, out: Tensor) -> Launch:
    """Prepare `swiglu`."""
    num_tokens, size = out.shape
    return Launch(
        op=_OP,
        kernel=_swiglu_kernel,
        grid=(num_tokens, triton.cdiv(size, _TILE)),
        arguments={
            "gate_ptr": gate_up,
            "up_ptr": gate_up[:, size:],
            "out_ptr": out,
            "size": size,
            **strides("in", gate_up, "token", "dim"),
            **strides("out", out, "token", "dim"),
        },
        constants={"TILE": _TILE},
    )


@triton.jit
def _swiglu_kernel(
    gate_ptr,
    up_ptr,
    out_ptr,
    size,
    stride_in_token,
    stride_in_dim,
    stride_out_token,
    stride_out_dim,
    TILE: tl.constexpr,
):
    """out[t, i] = gate[t, i] / (1 + exp(-gate[t, i])) * up[t, i].

    One program a token and tile of its row.
    """
    token = tl.program_id(0).to(tl.int64)
    dim = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = dim < size
    place = token * stride_in_token + dim * stride_in_dim
    gate = tl.load(gate_ptr + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * stride_out_token + dim * stride_out_dim, gate * tl.sigmoid(gate) * up, mask=inside)
