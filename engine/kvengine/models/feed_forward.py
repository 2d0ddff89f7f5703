"""Feed-forward layers: one for all tokens, or experts of which each token gets some."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, silu

from kvengine.dense_kernels import kernels_for
from kvengine.model_config.decoder import Activation, DenseFeed, ExpertFeed, Feed, Scoring
from kvengine.models.linear import Linear
from kvengine.models.tensor_reader import TensorReader

_grouped_mm: Callable[..., Tensor] | None = getattr(torch.nn.functional, "grouped_mm", None)
"""Not in older versions of torch."""
_GROUPED_TYPES = (torch.bfloat16, torch.float16, torch.float32)


class FeedPart(Protocol):
    """The feed-forward part of one layer."""

    def __call__(self, hidden: Tensor, /) -> Tensor:
        """Transform every token; [num_tokens, hidden_size] to the same."""
        ...


def read_feed(config: Feed, reader: TensorReader, *, layer: int, hidden_size: int) -> FeedPart:
    """Read the feed-forward part of one layer."""
    name = f"model.layers.{layer}"
    if isinstance(config, DenseFeed):
        return _Gated(reader, f"{name}.mlp", config.intermediate_size, hidden_size, config.activation)
    return _Experts(config, reader, f"{name}.{config.names.block}", hidden_size)


class _Gated:
    """`down(activation(gate(x)) * up(x))`."""

    def __init__(self, reader: TensorReader, name: str, size: int, hidden_size: int, activation: Activation) -> None:
        self._gate_up = Linear(reader.stacked([(f"{name}.gate_proj", size), (f"{name}.up_proj", size)], hidden_size))
        self._down = Linear(reader.matrix(f"{name}.down_proj", hidden_size, size))
        self._activation = activation

    def __call__(self, hidden: Tensor, /) -> Tensor:
        return self._down(gated(self._gate_up(hidden), self._activation))


class _Experts:
    """Experts behind a router: tokens are sorted by expert, and each expert's run of tokens is one matrix product."""

    def __init__(self, config: ExpertFeed, reader: TensorReader, name: str, hidden_size: int) -> None:
        self._config = config
        experts, size, names = config.num_experts, config.intermediate_size, config.names
        # In float32: 8 bits of mantissa decide differently between experts that are nearly as good.
        wide = torch.promote_types(reader.dtype, torch.float32)
        self._router = reader.tensor(f"{name}.gate.weight", (experts, hidden_size), dtype=wide)
        self._bias: Tensor | None = None
        if config.selection_bias:
            self._bias = reader.tensor(f"{name}.gate.e_score_correction_bias", (experts,), dtype=wide)
        self._numbers = torch.arange(experts, device=reader.device)
        self._gate_up = torch.empty(experts, 2 * size, hidden_size, dtype=reader.dtype, device=reader.device)
        self._down = torch.empty(experts, hidden_size, size, dtype=reader.dtype, device=reader.device)
        for index in range(experts):
            expert = f"{name}.experts.{index}"
            reader.fill(self._gate_up[index], [(f"{expert}.{names.gate}", size), (f"{expert}.{names.up}", size)])
            reader.fill(self._down[index], [(f"{expert}.{names.down}", hidden_size)])
        self._shared: _Gated | None = None
        if config.shared_size:
            self._shared = _Gated(reader, f"{name}.shared_experts", config.shared_size, hidden_size, config.activation)

    def __call__(self, hidden: Tensor, /) -> Tensor:
        config = self._config
        weights, experts = choose_experts(linear(hidden.to(self._router.dtype), self._router), self._bias, config)
        chosen = experts.flatten()
        order = chosen.argsort(stable=True)
        # Found in the sorted list, not counted: counting would make the host wait for a GPU.
        ends = torch.searchsorted(chosen[order], self._numbers, right=True)
        inner = gated(grouped_linear(hidden[order // config.top_k], self._gate_up, ends), config.activation)
        sorted_outputs = grouped_linear(inner, self._down, ends)
        # Back in the tokens' order each adds up its own experts, always in the same order.
        outputs = torch.empty_like(sorted_outputs)
        outputs[order] = sorted_outputs
        outputs = outputs.view(*experts.shape, -1) * weights.to(hidden.dtype)[:, :, None]
        routed = outputs.sum(dim=1)
        return routed if self._shared is None else routed + self._shared(hidden)


def choose_experts(logits: Tensor, bias: Tensor | None, config: ExpertFeed) -> tuple[Tensor, Tensor]:
    """Choose the experts of each token.

    Args:
        logits: The router's, [num_tokens, num_experts].
        bias: Added to the scores for the choice alone, [num_experts].
        config: How many, of which groups, and how they are weighted.

    Returns:
        Weights and indices of the chosen experts, both [num_tokens, top_k].
    """
    scores = logits.softmax(dim=-1) if config.scoring is Scoring.SOFTMAX else logits.sigmoid()
    ranks = scores if bias is None else scores + bias
    if config.num_groups > 1:
        ranks = _only_best_groups(ranks, config)
    experts = ranks.topk(config.top_k, dim=-1).indices
    weights = scores.gather(1, experts)
    if config.normalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights * config.routed_scale, experts


def _only_best_groups(ranks: Tensor, config: ExpertFeed) -> Tensor:
    """Put the experts outside each token's best groups last.

    A group is as good as its best expert, or, where a bias spreads the load, as its two best together.
    """
    groups = ranks.view(len(ranks), config.num_groups, -1)
    num_best = 2 if config.selection_bias else 1
    best = groups.topk(num_best, dim=-1).values.sum(dim=-1).topk(config.top_groups, dim=-1).indices
    is_out = torch.ones(groups.shape[:2], dtype=torch.bool, device=ranks.device).scatter_(1, best, False)
    return groups.masked_fill(is_out[:, :, None], float("-inf")).flatten(1)


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """Multiply the activated first half of each row with its second half."""
    kernels = kernels_for(gate_up) if activation is Activation.SILU else None
    if kernels is not None:
        out = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
        kernels.swiglu(gate_up.contiguous(), out)
        return out
    gate, up = gate_up.chunk(2, dim=-1)
    return (silu(gate) if activation is Activation.SILU else gelu(gate, approximate="tanh")) * up


def grouped_linear(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Multiply runs of rows, each with a matrix of its own.

    Shapes:
        rows: [num_rows, columns]
        weights: [num_runs, size, columns]
        ends: [num_runs], whole numbers: where each run ends

    Returns:
        [num_rows, size]
    """
    if _grouped_mm is not None and rows.dtype in _GROUPED_TYPES:
        return _grouped_mm(rows, weights.transpose(1, 2), offs=ends.to(torch.int32))
    out = rows.new_empty(len(rows), weights.shape[1])
    first = 0
    for weight, end in zip(weights, ends.tolist(), strict=True):
        if end > first:
            torch.mm(rows[first:end], weight.t(), out=out[first:end])
        first = end
    return out
