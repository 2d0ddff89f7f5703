"""Rotary positions: the angle of each pair of dimensions at each position."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kvengine.model_config.decoder import RopeConfig, RopeKind
from kvengine.native.kernels import kernels_for

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of the tokens of a step, each [num_tokens, 1, head_dim / 2]."""


class Rotations:
    """The distinct kinds of rotary positions of a model; most have one, some another for layers with windows.

    Args:
        ropes: Each kind with the size of the heads that it turns.
        dtype: Type of the cosines and sines.
        device: Where they are computed.
        divisors: Divides all frequencies; [head_dim / 2], or None.
    """

    def __init__(
        self,
        ropes: Sequence[tuple[RopeConfig, int]],
        *,
        dtype: torch.dtype,
        device: torch.device,
        divisors: Tensor | None = None,
    ) -> None:
        self._dtype = dtype
        self._amplitudes = [rope.amplitude for rope, _ in ropes]
        frequencies = [rope_frequencies(rope, size) for rope, size in ropes]
        if divisors is not None:
            frequencies = [values / divisors.to(values) for values in frequencies]
        self._frequencies = [values.to(torch.float32).to(device) for values in frequencies]

    def at(self, positions: Tensor) -> list[Rotation]:
        """Cosines and sines of some positions, for each kind."""
        wide = positions[:, None].to(torch.float32)
        rotations = []
        for frequencies, amplitude in zip(self._frequencies, self._amplitudes, strict=True):
            angles = wide * frequencies
            cos, sin = angles.cos(), angles.sin()
            if amplitude != 1.0:
                cos, sin = cos * amplitude, sin * amplitude
            rotations.append((cos.to(self._dtype)[:, None], sin.to(self._dtype)[:, None]))
        return rotations


def rope_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position of each pair of dimensions: `theta ** (-2i / head_dim)`, scaled for long contexts.

    `linear` divides all by the factor. `llama3` and `yarn` divide those that turn few times within the original
    context, keep those that turn often, and blend in between: `llama3` evenly over the turns, `yarn` evenly over the
    dimensions.

    Returns:
        [head_dim / 2], float64.

    Source: arXiv:2104.09864; for `llama3` the Llama 3.1 release, github.com/meta-llama/llama-models; for `yarn`
    arXiv:2309.00071, section 3.2.
    """
    frequencies = rope.theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if rope.kind is RopeKind.DEFAULT:
        return frequencies
    if rope.kind is RopeKind.LINEAR:
        return frequencies / rope.factor
    kept = _kept_by_llama3(rope, frequencies) if rope.kind is RopeKind.LLAMA3 else _kept_by_yarn(rope, head_dim)
    return frequencies * (kept + (1 - kept) / rope.factor)


def apply_rope(heads: Tensor, rotation: Rotation) -> Tensor:
    """Turn each pair (i, i + head_dim / 2) of every head by its token's angle, where the heads are if that is faster.

    Shapes:
        heads: [num_tokens, num_heads, head_dim]

    Returns:
        [num_tokens, num_heads, head_dim]
    """
    cos, sin = rotation
    kernels = kernels_for(heads)
    if kernels is not None:
        kernels.rope(heads, cos[:, 0], sin[:, 0])
        return heads
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _kept_by_llama3(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    turns = rope.original_max_model_len * frequencies / (2 * math.pi)
    span = rope.high_freq_factor - rope.low_freq_factor
    return ((turns - rope.low_freq_factor) / span).clamp(0, 1)


def _kept_by_yarn(rope: RopeConfig, head_dim: int) -> Tensor:
    first, last = _yarn_dimension(rope, head_dim, rope.beta_fast), _yarn_dimension(rope, head_dim, rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    pairs = torch.arange(head_dim // 2, dtype=torch.float64)
    return 1 - ((pairs - first) / max(last - first, 1e-3)).clamp(0, 1)


def _yarn_dimension(rope: RopeConfig, head_dim: int, turns: float) -> float:
    """The pair of dimensions, as a fraction, that turns so many times within the original context."""
    per_turn = rope.original_max_model_len / (turns * 2 * math.pi)
    return head_dim * math.log(per_turn) / (2 * math.log(rope.theta))
