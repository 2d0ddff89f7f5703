"""Attention without paging: each request has its own reserved row of the cache. A baseline, for equal lengths only."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvengine.attention.host_cache import HostCache
from kvengine.batch import ForwardBatch
from kvengine.model_config.decoder import DecoderConfig, GroupedAttention


class ContiguousBackend:
    """One [2, batch, num_kv_heads, max_len, head_dim] tensor a layer, all requests equally long; nothing is gathered.

    It is what paged attention would cost if blocks lay side by side in the order they are read.
    """

    name = "contiguous"

    def __init__(
        self, config: DecoderConfig, *, batch: int, max_len: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.device = device
        self.dtype = dtype
        attention = config.layers[0].attention
        assert isinstance(attention, GroupedAttention), "latent rows need a paged cache"
        self.value_size = attention.head_dim
        self._attention = attention
        self._batch = batch
        self._start = 0
        self._end = 0
        shape = (2, batch, attention.num_kv_heads, max_len, attention.head_dim)
        self._caches = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_layers)]

    @property
    def cache_bytes(self) -> int:
        """Bytes allocated for all layers."""
        return sum(cache.nbytes for cache in self._caches)

    def plan(self, batch: ForwardBatch) -> None:
        """Take the step's place in the sequences from its first row; all rows are alike."""
        self._end = int(batch.host_context_lens[0])
        self._start = self._end - int(batch.host_query_start_loc[1])

    def store_kv(self, layer: int, k: Tensor, v: Tensor | None) -> None:
        """Write the new keys and values behind the old ones."""
        assert v is not None, "latent rows need a paged cache"
        cache = self._caches[layer][:, :, :, self._start : self._end]
        cache[0], cache[1] = self._by_request(k), self._by_request(v)

    def decode(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Attend from one token of each request; the query heads of one KV head are the query rows of SDPA."""
        k, v = self._caches[layer][:, :, :, : self._end]
        queries = q.view(self._batch, self._attention.num_kv_heads, -1, self._attention.head_dim)
        out.copy_(scaled_dot_product_attention(queries, k, v).view_as(out))

    def prefill(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Attend from the prompts."""
        k, v = self._caches[layer][:, :, :, : self._end]
        attended = scaled_dot_product_attention(self._by_request(q), k, v, is_causal=True, enable_gqa=True)
        out.copy_(attended.transpose(1, 2).flatten(0, 1))

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """There are no blocks."""
        raise NotImplementedError(f"a contiguous cache has no blocks to copy: {copies}")

    def host_cache(self, num_blocks: int) -> HostCache:
        """Swap nothing."""
        raise NotImplementedError(f"no swapping: {num_blocks} blocks were asked for")

    def _by_request(self, x: Tensor) -> Tensor:
        """From packed tokens to [batch, heads, tokens, head_dim]."""
        return x.view(self._batch, -1, *x.shape[1:]).transpose(1, 2)
