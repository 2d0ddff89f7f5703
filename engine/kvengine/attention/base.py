"""What a model needs from attention over a paged cache, whatever the device."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from kvengine.batch import ForwardBatch


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
    def cache_bytes(self) -> int:
        """Bytes really allocated for the pools of all layers."""
        ...

    def plan(self, batch: ForwardBatch) -> None:
        """Prepare a step; the calls below belong to this batch until the next one is planned."""
        ...

    def store_kv(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write a layer's new keys and values into their slots.

        Shapes:
            k, v: [num_tokens, num_kv_heads, head_dim]
        """
        ...

    def decode(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Attend from the rows with a single token.

        Shapes:
            q, out: [num_decodes, num_heads, head_dim]
        """
        ...

    def prefill(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Attend from the rows with longer chunks, causally over their whole context.

        Shapes:
            q, out: [num_tokens - num_decodes, num_heads, head_dim]
        """
        ...

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy (source, destination) blocks in all layers, before anything of the step is stored."""
        ...


def attend(backend: AttentionBackend, layer: int, q: Tensor, k: Tensor, v: Tensor, num_decodes: int) -> Tensor:
    """Store a layer's keys and values, then attend from every token of the planned batch.

    Shapes:
        q: [num_tokens, num_heads, head_dim], the first `num_decodes` of them from rows with a single token
        k, v: [num_tokens, num_kv_heads, head_dim]

    Returns:
        [num_tokens, num_heads, head_dim]
    """
    backend.store_kv(layer, k, v)
    out = torch.empty_like(q)
    if num_decodes:
        backend.decode(layer, q[:num_decodes], out[:num_decodes])
    if num_decodes < q.shape[0]:
        backend.prefill(layer, q[num_decodes:], out[num_decodes:])
    return out
