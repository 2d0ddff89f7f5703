"""Attention from chunks of several tokens: gather a row's context, then SDPA over tiles of queries.

Of a layer with a window only the blocks that the window reaches into are gathered.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvengine.attention.base import ModelAttention
from kvengine.attention.pools import PagedPools
from kvengine.attention.sdpa import attend_gathered
from kvengine.batch import ForwardBatch
from kvengine.units import cdiv, round_up

_QUERY_TILE = 512
"""Most query tokens attended at once; bounds the mask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One row's chunk: which query tokens, and what they may see."""

    first: int
    """Place of the first query token among those of all chunks."""
    num_tokens: int
    history: int
    """Gathered tokens before the first query token."""
    lines: Tensor


class ChunkAttention:
    """Causal attention over a paged context.

    Args:
        model: What the model asks of attention.
        pools: Where keys and values are.
    """

    def __init__(self, model: ModelAttention, pools: PagedPools) -> None:
        self._model = model
        self._pools = pools
        self._masks: dict[int | None, Tensor] = {}

    def plan(self, batch: ForwardBatch, tables: Tensor, window: int | None) -> list[Chunk]:
        """Work out what each chunk of a step reads in layers with these block tables and this window."""
        first_token = (batch.host_query_start_loc - batch.num_decodes).tolist()
        lengths = batch.host_context_lens.tolist()
        return [
            self._chunk(tables[row], first_token[row], first_token[row + 1], lengths[row], window)
            for row in range(batch.num_decodes, len(lengths))
        ]

    def attend(self, layer: int, chunks: list[Chunk], q: Tensor, out: Tensor) -> None:
        """Attend chunk by chunk, each in tiles of queries that see the context, or a window of it, up to their end.

        Shapes:
            q: [num_tokens, num_heads, head_dim], of all chunks
            out: [num_tokens, num_heads, value_size]
        """
        window = self._model.layers[layer].window
        for chunk in chunks:
            k, v = self._pools.gather(layer, chunk.lines, 1)
            for start in range(0, chunk.num_tokens, _QUERY_TILE):
                end = min(start + _QUERY_TILE, chunk.num_tokens)
                queries = q[chunk.first + start : chunk.first + end].transpose(0, 1)
                visible = chunk.history + end
                first = 0 if window is None else max(0, chunk.history + start - window + 1)
                mask = self._causal(end - start, visible - first, window)
                attended = attend_gathered(
                    self._model, queries[None], k[:, :, first:visible], v[:, :, first:visible], mask
                )
                out[chunk.first + start : chunk.first + end] = attended[0].transpose(0, 1)

    def _chunk(self, table: Tensor, first: int, end: int, context_len: int, window: int | None) -> Chunk:
        history, block_size = context_len - (end - first), self._pools.block_size
        first_block = 0 if window is None else max(0, history - window + 1) // block_size
        return Chunk(
            first=first,
            num_tokens=end - first,
            history=history - first_block * block_size,
            lines=self._pools.lines(table[None, first_block : cdiv(context_len, block_size)]),
        )

    def _causal(self, num_queries: int, num_keys: int, window: int | None) -> Tensor:
        """The mask of the last `num_queries` of some positions: position i sees keys 0 .. i, or a window of them."""
        history = num_keys - num_queries
        mask = self._masks.get(window)
        if mask is None or mask.shape[1] < num_keys + _QUERY_TILE:
            mask = self._masks[window] = self._wide_mask(num_keys, window)
        first = mask.shape[1] - _QUERY_TILE - history
        return mask[:num_queries, first : first + num_keys]

    def _wide_mask(self, num_keys: int, window: int | None) -> Tensor:
        """One wide mask, of which every tile's mask is a part."""
        width = round_up(num_keys + _QUERY_TILE, 1024)
        shift = width - _QUERY_TILE
        everything = torch.ones(_QUERY_TILE, width, dtype=torch.bool, device=self._pools.device)
        hidden = everything.triu(shift + 1)
        if window is not None:
            hidden |= everything.tril(shift - window)
        zeros = torch.zeros(hidden.shape, dtype=self._pools.dtype, device=self._pools.device)
        return zeros.masked_fill_(hidden, float("-inf"))
