"""The two kinds of attention as a decoder sees them: projections around what a backend computes over the cache."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from kvengine.attention.base import AttentionBackend, RotatingBackend, attend, attend_stored
from kvengine.model_config.decoder import Attention, GroupedAttention, LatentAttention
from kvengine.models.linear import Linear
from kvengine.models.norm import RMSNorm, identity
from kvengine.models.rope import Rotation, apply_rope
from kvengine.models.tensor_reader import TensorReader

_LATENT_EPS = 1e-6
"""Of the norms on compressed queries and latent vectors, whatever the model's other norms have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What the layers of a model share while one step is computed."""

    backend: AttentionBackend
    """Planned for this step."""
    rotation: list[Rotation]
    """Of the tokens, for each kind of rotary positions."""
    num_decodes: int
    """Leading tokens that are alone in their rows."""
    rotating: RotatingBackend | None = None
    """The backend, if it turns queries and keys itself."""


class NormMaker(Protocol):
    """Reads the weight of one of a model's norms."""

    def __call__(self, name: str, size: int, /) -> RMSNorm:
        """Read `name.weight`, [size]."""
        ...


class Heads(NamedTuple):
    """What a backend takes, each [num_tokens, heads, size]; turned by their positions unless it does that itself."""

    q: Tensor
    k: Tensor
    v: Tensor | None
    """None where k are latent rows."""


class AttentionPart(Protocol):
    """The attention of one layer; only `attend` depends on more of a step than its tokens and their positions."""

    def project(self, hidden: Tensor, step: Step, /) -> Heads:
        """Make queries, keys and values of [num_tokens, hidden_size]."""
        ...

    def attend(self, heads: Heads, step: Step, /) -> Tensor:
        """Attend from every token of a step; [num_tokens, num_heads, value_size]."""
        ...

    def output(self, attended: Tensor, /) -> Tensor:
        """Bring what was attended to back to [num_tokens, hidden_size]."""
        ...


def read_attention(
    config: Attention, reader: TensorReader, norm: NormMaker, *, layer: int, hidden_size: int, rotation: int
) -> AttentionPart:
    """Read the attention of one layer.

    Args:
        config: Its kind.
        reader: Of the weights.
        norm: Makes norms of heads.
        layer: Its index.
        hidden_size: Width of the model.
        rotation: Which of the step's rotary positions it takes.
    """
    if isinstance(config, GroupedAttention):
        return _GroupedPart(config, reader, norm, layer=layer, hidden_size=hidden_size, rotation=rotation)
    return _LatentPart(config, reader, layer=layer, hidden_size=hidden_size, rotation=rotation)


class _GroupedPart:
    """Grouped-query attention."""

    def __init__(
        self,
        config: GroupedAttention,
        reader: TensorReader,
        norm: NormMaker,
        *,
        layer: int,
        hidden_size: int,
        rotation: int,
    ) -> None:
        self._config = config
        self._layer = layer
        self._rotation = rotation
        name = f"model.layers.{layer}.self_attn"
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        parts = [(f"{name}.q_proj", q_size), (f"{name}.k_proj", kv_size), (f"{name}.v_proj", kv_size)]
        qkv, out = reader.stacked(parts, hidden_size), reader.matrix(f"{name}.o_proj", hidden_size, q_size)
        self._qkv = Linear(qkv, reader.biases(parts) if config.qkv_bias else None)
        self._out = Linear(out, reader.biases([(f"{name}.o_proj", hidden_size)]) if config.out_bias else None)
        self._q_norm = norm(f"{name}.q_norm", config.head_dim) if config.qk_norm else identity
        self._k_norm = norm(f"{name}.k_norm", config.head_dim) if config.qk_norm else identity

    def project(self, hidden: Tensor, step: Step, /) -> Heads:
        heads, kv_heads = self._config.num_heads, self._config.num_kv_heads
        qkv = self._qkv(hidden).view(-1, heads + 2 * kv_heads, self._config.head_dim)
        q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
        if step.rotating is not None:
            return Heads(self._q_norm(q), self._k_norm(k), v)
        if self._config.qk_norm:
            rotated = torch.cat((self._q_norm(q), self._k_norm(k)), dim=1)
        else:
            rotated = qkv[:, : heads + kv_heads]
        rotated = apply_rope(rotated, step.rotation[self._rotation])
        return Heads(rotated[:, :heads], rotated[:, heads:], v)

    def attend(self, heads: Heads, step: Step, /) -> Tensor:
        q, k, v = heads
        if step.rotating is None:
            return attend(step.backend, self._layer, q, k, v, step.num_decodes)
        assert v is not None, "only latent rows have no values"
        q = step.rotating.store_rotated(self._layer, q, k, v, step.rotation[self._rotation])
        return attend_stored(step.backend, self._layer, q, step.num_decodes)

    def output(self, attended: Tensor, /) -> Tensor:
        return self._out(attended.flatten(1))


class _LatentPart:
    """Multi-head latent attention, absorbed: queries are brought into the space of the cached latent vectors.

    A head's key is `[up_k @ latent, rotated]`, so `q . k = (up_k.T @ q_nope) . latent + q_rotated . rotated`; its value
    is `up_v @ latent`, taken of the attended latent vector. No key or value of a single head is ever made.
    """

    def __init__(
        self, config: LatentAttention, reader: TensorReader, *, layer: int, hidden_size: int, rotation: int
    ) -> None:
        self._config = config
        self._layer = layer
        self._rotation = rotation
        name = f"model.layers.{layer}.self_attn"
        heads, head_dim = config.num_heads, config.nope_head_dim + config.rope_head_dim
        row_size = config.kv_lora_rank + config.rope_head_dim
        self._q_size = config.q_lora_rank or heads * head_dim
        first = f"{name}.q_a_proj" if config.q_lora_rank else f"{name}.q_proj"
        down = reader.stacked([(first, self._q_size), (f"{name}.kv_a_proj_with_mqa", row_size)], hidden_size)
        q_up: Tensor | None = None
        if config.q_lora_rank:
            self._q_norm = _latent_norm(reader, f"{name}.q_a_layernorm", config.q_lora_rank)
            q_up = reader.matrix(f"{name}.q_b_proj", heads * head_dim, config.q_lora_rank)
        self._kv_norm = _latent_norm(reader, f"{name}.kv_a_layernorm", config.kv_lora_rank)
        up_size = config.nope_head_dim + config.value_head_dim
        up = reader.matrix(f"{name}.kv_b_proj", heads * up_size, config.kv_lora_rank).view(heads, up_size, -1)
        self._k_up, self._v_up = up[:, : config.nope_head_dim], up[:, config.nope_head_dim :]
        self._out = Linear(reader.matrix(f"{name}.o_proj", hidden_size, heads * config.value_head_dim))
        queries = down[: self._q_size] if q_up is None else q_up
        _pair_halves(queries.view(heads, head_dim, -1)[:, config.nope_head_dim :])
        _pair_halves(down[None, self._q_size + config.kv_lora_rank :])
        self._down, self._q_up = Linear(down), None if q_up is None else Linear(q_up)

    def project(self, hidden: Tensor, step: Step, /) -> Heads:
        config, rotation = self._config, step.rotation[self._rotation]
        down = self._down(hidden)
        q, latent_end = down[:, : self._q_size], self._q_size + config.kv_lora_rank
        latent, key = down[:, self._q_size : latent_end], down[:, latent_end:]
        if self._q_up is not None:
            q = self._q_up(self._q_norm(q))
        q = q.reshape(len(q), config.num_heads, -1)
        q_nope, q_rotated = q[..., : config.nope_head_dim], q[..., config.nope_head_dim :]
        rows = torch.cat((self._kv_norm(latent)[:, None], apply_rope(key[:, None], rotation)), dim=-1)
        q_latent = torch.matmul(q_nope.transpose(0, 1), self._k_up).transpose(0, 1)
        return Heads(torch.cat((q_latent, apply_rope(q_rotated, rotation)), dim=-1), rows, None)

    def attend(self, heads: Heads, step: Step, /) -> Tensor:
        return attend(step.backend, self._layer, *heads, step.num_decodes)

    def output(self, attended: Tensor, /) -> Tensor:
        values = torch.matmul(attended.transpose(0, 1), self._v_up.transpose(1, 2)).transpose(0, 1)
        return self._out(values.flatten(1))


def _latent_norm(reader: TensorReader, name: str, size: int) -> RMSNorm:
    return RMSNorm(reader.tensor(f"{name}.weight", (size,)), eps=_LATENT_EPS)


def _pair_halves(rows: Tensor) -> None:
    """Reorder rows, [..., n, columns], from pairs (0, 1), (2, 3), ... to pairs (0, n / 2), (1, n / 2 + 1), ..."""
    rows.copy_(torch.cat((rows[..., 0::2, :], rows[..., 1::2, :]), dim=-2))
