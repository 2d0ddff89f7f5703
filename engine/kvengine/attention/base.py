"""What a model needs from attention over a paged cache, whatever the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from kvengine.attention.host_cache import HostCache
from kvengine.batch import ForwardBatch
from kvengine.spec import KVCacheSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAttention:
    """What one layer attends to, and where its part of a block lies."""

    group: int = 0
    """Whose block table it follows."""
    place: int
    """Which page of a block is its own; layers of other groups have the same one in other blocks."""
    window: int | None = None
    """Tokens that are attended to, the current one included; None for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAttention:
    """What a model asks of attention; a backend is made for one model."""

    num_heads: int
    """Query heads."""
    value_size: int
    """Elements of an attended head; of a latent row, which has no value beside it, the leading ones are the value."""
    scale: float
    """What the products of queries and keys are multiplied by."""
    softcap: float | None = None
    """Scores are squeezed into (-softcap, softcap) by tanh."""
    layers: tuple[LayerAttention, ...]

    @classmethod
    def plain(cls, spec: KVCacheSpec, *, num_heads: int) -> "ModelAttention":
        """Every layer attends to every token, with the usual scale."""
        return cls(
            num_heads=num_heads,
            value_size=spec.head_dim_v,
            scale=spec.head_dim**-0.5,
            layers=tuple(LayerAttention(place=layer) for layer in range(spec.num_layers)),
        )


class AttentionBackend(Protocol):
    """Owns the cache pools, their layout and the way attention is computed over them.

    A step is: `copy_blocks`, `plan`, then for each layer `store_kv` and `prefill` and `decode` for their parts of the
    batch. What depends on the batch alone (masks, workspaces, split counts) is made once, in `plan`; the calls of
    the layers read it. A backend is used by one runner, a step at a time.
    """

    @property
    def name(self) -> str:
        """What it is called in reports."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the pools are, and where q, k and v must be."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Type of q, k and v; the cache may keep another."""
        ...

    @property
    def value_size(self) -> int:
        """Elements of an attended head."""
        ...

    @property
    def cache_bytes(self) -> int:
        """Bytes really allocated for the pools of all layers."""
        ...

    def plan(self, batch: ForwardBatch) -> None:
        """Prepare a step; the calls below belong to this batch until the next one is planned."""
        ...

    def store_kv(self, layer: int, k: Tensor, v: Tensor | None) -> None:
        """Write a layer's new keys and values into their slots; latent rows have no values.

        Shapes:
            k, v: [num_tokens, num_kv_heads, head_dim]
        """
        ...

    def decode(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Attend from the rows with a single token.

        Shapes:
            q: [num_decodes, num_heads, head_dim]
            out: [num_decodes, num_heads, value_size]
        """
        ...

    def prefill(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Attend from the rows with longer chunks, causally over their context or the layer's window of it.

        Shapes:
            q: [num_tokens - num_decodes, num_heads, head_dim]
            out: [num_tokens - num_decodes, num_heads, value_size]
        """
        ...

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy (source, destination) blocks in all layers, before anything of the step is stored."""
        ...

    def host_cache(self, num_blocks: int) -> HostCache:
        """Make room on the host for what so many blocks hold in all layers."""
        ...


@runtime_checkable
class RotatingBackend(Protocol):
    """A backend that turns queries and keys by their positions on the way into the cache."""

    def store_rotated(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Turn each pair (i, i + head_dim / 2) of queries and keys, and write a layer's new keys and values.

        Shapes:
            q: [num_tokens, num_heads, head_dim]
            k, v: [num_tokens, num_kv_heads, head_dim]
            rotation: cosines and sines, [num_tokens, 1, head_dim / 2] each

        Returns:
            The turned queries, [num_tokens, num_heads, head_dim].
        """
        ...


def attend(backend: AttentionBackend, layer: int, q: Tensor, k: Tensor, v: Tensor | None, num_decodes: int) -> Tensor:
    """Store a layer's keys and values, then attend from every token of the planned batch.

    Shapes:
        q: [num_tokens, num_heads, head_dim], the first `num_decodes` of them from rows with a single token
        k, v: [num_tokens, num_kv_heads, head_dim]; no v where k are latent rows

    Returns:
        [num_tokens, num_heads, value_size]
    """
    backend.store_kv(layer, k, v)
    return attend_stored(backend, layer, q, num_decodes)


def attend_stored(backend: AttentionBackend, layer: int, q: Tensor, num_decodes: int) -> Tensor:
    """Attend from every token of the planned batch, whose keys and values are in the cache; as `attend`."""
    out = q.new_empty(*q.shape[:2], backend.value_size)
    if num_decodes:
        backend.decode(layer, q[:num_decodes], out[:num_decodes])
    if num_decodes < q.shape[0]:
        backend.prefill(layer, q[num_decodes:], out[num_decodes:])
    return out
