# A compiled kernel is not Python: its body is excused from annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""RMSNorm, alone or fused with the addition that stands before it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvkernels._launch import Launch, check_shape, strides

_OP = "rms_norm"
_ELEMENTS_PER_WARP = 1024


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Normalise each row, as `reference.rms_norm` does.

    Shapes:
        x: [num_tokens, size] or [num_tokens, num_heads, size], any strides
        weight: [size]

    Returns:
        As x, contiguous.

    Raises:
        ValueError: Shapes do not go together, or the tensors are where the kernel cannot run.
        TypeError: bfloat16 tensors meet the interpreter.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rms_norm_launch(x, None, weight, out, eps=eps).run()
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Add x to the residual stream, in place, and normalise the sum: what every layer does twice.

    Shapes:
        x, residual: [num_tokens, size]; the residual becomes the sum, rounded to its type
        weight: [size]

    Returns:
        [num_tokens, size], contiguous, x's type; normalised is the sum as it was rounded.

    Raises:
        ValueError: As for `rms_norm`.
        TypeError: As for `rms_norm`.
    """
    check_shape(_OP, "residual", residual, tuple(x.shape))
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rms_norm_launch(x, residual, weight, out, eps=eps).run()
    return out


def rms_norm_launch(x: Tensor, residual: Tensor | None, weight: Tensor, out: Tensor, *, eps: float) -> Launch:
    """Prepare either; rows of heads are the general case, and without heads each token has one."""
    if x.dim() == 2:
        x, out = x[:, None], out[:, None]
        residual = None if residual is None else residual[:, None]
    num_tokens, num_heads, size = x.shape
    check_shape(_OP, "weight", weight, (size,))
    return Launch(
        op=_OP,
        kernel=_rms_norm_kernel,
        grid=(num_tokens, num_heads),
        arguments={
            "x_ptr": x,
            "residual_ptr": residual,
            "weight_ptr": weight,
            "out_ptr": out,
            "eps": eps,
            **strides("x", x, "token", "head", "dim"),
            **strides("r", x if residual is None else residual, "token", "head", "dim"),
            **strides("weight", weight, "dim"),
            **strides("out", out, "token", "head", "dim"),
        },
        constants={"SIZE": size, "TILE": triton.next_power_of_2(size)},
        num_warps=min(16, max(1, triton.next_power_of_2(size) // _ELEMENTS_PER_WARP)),
    )


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    eps,
    stride_x_token,
    stride_x_head,
    stride_x_dim,
    stride_r_token,
    stride_r_head,
    stride_r_dim,
    stride_weight_dim,
    stride_out_token,
    stride_out_head,
    stride_out_dim,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """out[t, :] = y / sqrt(mean(y ** 2) + eps) * weight, with y = x[t, :], or y = residual[t, :] += x[t, :].

    One program a row.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    dim = tl.arange(0, TILE)
    inside = dim < SIZE
    x_place = token * stride_x_token + head * stride_x_head + dim * stride_x_dim
    y = tl.load(x_ptr + x_place, mask=inside, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        r_place = token * stride_r_token + head * stride_r_head + dim * stride_r_dim
        y += tl.load(residual_ptr + r_place, mask=inside, other=0.0).to(tl.float32)
        y = y.to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + r_place, y, mask=inside)
        y = y.to(tl.float32)
    weight = tl.load(weight_ptr + dim * stride_weight_dim, mask=inside, other=0.0).to(tl.float32)
    normed = y * tl.rsqrt(tl.sum(y * y, 0) / SIZE + eps) * weight
    out_place = token * stride_out_token + head * stride_out_head + dim * stride_out_dim
    tl.store(out_ptr + out_place, normed, mask=inside)
