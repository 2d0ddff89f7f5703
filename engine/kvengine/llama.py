"""A Llama-type decoder on packed tokens: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from kvengine.attention.base import AttentionBackend, attend
from kvengine.batch import ForwardBatch
from kvengine.errors import ConfigError
from kvengine.llama_config import LlamaConfig, RopeConfig, RopeKind
from kvengine.weights import ROPE_FREQS, WeightSource

__all__ = ["LlamaConfig", "LlamaModel", "apply_rope", "rope_frequencies"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """Weights of one layer; projections that read the same input are one matrix."""

    attention_norm: Tensor
    qkv: Tensor
    """[(num_heads + 2 * num_kv_heads) * head_dim, hidden_size]"""
    attention_out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    """[2 * intermediate_size, hidden_size]"""
    down: Tensor


class LlamaModel:
    """Weights on a device, and the forward pass of one step.

    Args:
        config: Geometry.
        source: Where the tensors come from; each is read once, checked against the geometry and converted.
        dtype: Type to compute in.
        device: Where the weights go.

    Raises:
        ConfigError: A tensor is missing or has another shape than the geometry says.
    """

    def __init__(self, config: LlamaConfig, source: WeightSource, *, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        reader = _Reader(source, dtype, device)
        hidden, vocab = config.hidden_size, config.vocab_size
        _refuse_biases(source)
        self._embedding = reader.matrix("model.embed_tokens", vocab, hidden)
        self._layers = [_read_layer(reader, config, index) for index in range(config.num_layers)]
        self._final_norm = reader.vector("model.norm", hidden)
        tied = config.tie_word_embeddings
        self._head = self._embedding if tied else reader.matrix("lm_head", vocab, hidden)
        frequencies = rope_frequencies(config.rope, config.head_dim)
        if ROPE_FREQS in source.names:
            frequencies = frequencies / reader.raw(ROPE_FREQS, (config.head_dim // 2,)).to(torch.float64)
        self._frequencies = frequencies.to(torch.float32).to(device)

    def forward(self, batch: ForwardBatch, attention: AttentionBackend) -> Tensor:
        """Compute a planned step; K/V go to the cache through the backend.

        Returns:
            [num_sampled, vocab_size], logits of the tokens in `batch.sampled_tokens`, in the model's type.
        """
        hidden = self._embedding[batch.token_ids]
        angles = batch.positions[:, None].to(torch.float32) * self._frequencies
        cos, sin = angles.cos().to(self.dtype)[:, None], angles.sin().to(self.dtype)[:, None]
        for index, layer in enumerate(self._layers):
            hidden = hidden + self._attention(index, layer, hidden, cos, sin, batch, attention)
            hidden = hidden + self._mlp(layer, hidden)
        return linear(self._norm(hidden[batch.sampled_tokens], self._final_norm), self._head)

    def _attention(
        self,
        index: int,
        layer: _Layer,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        batch: ForwardBatch,
        attention: AttentionBackend,
    ) -> Tensor:
        heads, kv_heads = self.config.num_heads, self.config.num_kv_heads
        qkv = linear(self._norm(hidden, layer.attention_norm), layer.qkv)
        qkv = qkv.view(-1, heads + 2 * kv_heads, self.config.head_dim)
        rotated = apply_rope(qkv[:, : heads + kv_heads], cos, sin)
        attended = attend(
            attention, index, rotated[:, :heads], rotated[:, heads:], qkv[:, heads + kv_heads :], batch.num_decodes
        )
        return linear(attended.flatten(1), layer.attention_out)

    def _mlp(self, layer: _Layer, hidden: Tensor) -> Tensor:
        gate, up = linear(self._norm(hidden, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
        return linear(silu(gate) * up, layer.down)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(hidden, weight.shape, weight, self.config.rms_norm_eps)


def rope_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position of each pair of dimensions: `theta ** (-2i / head_dim)`, scaled for long contexts.

    `linear` divides all by the factor. `llama3` divides those that turn less than `low_freq_factor` times within the
    original context, keeps those that turn more than `high_freq_factor` times, and blends in between.

    Returns:
        [head_dim / 2], float64.

    Source: arXiv:2104.09864; for `llama3` the Llama 3.1 release, github.com/meta-llama/llama-models.
    """
    frequencies = rope.theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if rope.kind is RopeKind.DEFAULT:
        return frequencies
    if rope.kind is RopeKind.LINEAR:
        return frequencies / rope.factor
    turns = rope.original_max_model_len * frequencies / (2 * math.pi)
    span = rope.high_freq_factor - rope.low_freq_factor
    kept = ((turns - rope.low_freq_factor) / span).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / rope.factor)


def apply_rope(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + head_dim / 2) of every head by its token's angle.

    Shapes:
        heads: [num_tokens, num_heads, head_dim]
        cos, sin: [num_tokens, 1, head_dim / 2]

    Returns:
        [num_tokens, num_heads, head_dim]
    """
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _read_layer(reader: "_Reader", config: LlamaConfig, index: int) -> _Layer:
    name = f"model.layers.{index}"
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return _Layer(
        attention_norm=reader.vector(f"{name}.input_layernorm", hidden),
        qkv=torch.cat(
            [
                reader.matrix(f"{name}.self_attn.q_proj", q_size, hidden),
                reader.matrix(f"{name}.self_attn.k_proj", kv_size, hidden),
                reader.matrix(f"{name}.self_attn.v_proj", kv_size, hidden),
            ]
        ),
        attention_out=reader.matrix(f"{name}.self_attn.o_proj", hidden, q_size),
        mlp_norm=reader.vector(f"{name}.post_attention_layernorm", hidden),
        gate_up=torch.cat(
            [
                reader.matrix(f"{name}.mlp.gate_proj", inner, hidden),
                reader.matrix(f"{name}.mlp.up_proj", inner, hidden),
            ]
        ),
        down=reader.matrix(f"{name}.mlp.down_proj", hidden, inner),
    )


def _refuse_biases(source: WeightSource) -> None:
    biases = sorted(name for name in source.names if name.endswith(".bias"))
    if biases:
        raise ConfigError(f"biases are not supported, and there is {biases[0]!r}", where=source.where)


class _Reader:
    """Reads tensors, checks their shapes, and converts them."""

    def __init__(self, source: WeightSource, dtype: torch.dtype, device: torch.device) -> None:
        self._source = source
        self._dtype = dtype
        self._device = device

    def matrix(self, name: str, rows: int, columns: int) -> Tensor:
        return self.raw(f"{name}.weight", (rows, columns)).to(device=self._device, dtype=self._dtype)

    def vector(self, name: str, size: int) -> Tensor:
        return self.raw(f"{name}.weight", (size,)).to(device=self._device, dtype=self._dtype)

    def raw(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._source.tensor(name)
        if tuple(tensor.shape) != shape:
            message = f"tensor {name!r} has shape {list(tensor.shape)}; the geometry says {list(shape)}"
            raise ConfigError(message, where=self._source.where)
        return tensor
