"""Scales for a cache in eight bits: how large a model's keys and values get, found by running it once.

e4m3 keeps four significant bits of what lies between 2^-6 and 448. A scale a layer and KV head, fixed before the first
request, moves what that head really produces into this range; so what a request reads never depends on others.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kvengine.attention.base import ModelAttention
from kvengine.attention.host_cache import HostCache
from kvengine.attention.pools import KVScales
from kvengine.batch import ForwardBatch, GroupBatch
from kvengine.models.decoder import Decoder
from kvkernels.reference import causal_attention, copy_blocks

CALIBRATION_TOKENS = 256
_HEADROOM = 2.0
"""What lies beyond the largest value seen by more than this is cut off."""
_LARGEST = torch.finfo(torch.float8_e4m3fn).max


@torch.inference_mode()
def calibrated_scales(model: Decoder, attention: ModelAttention) -> list[KVScales]:
    """Run random tokens, always the same, through a model, and scale each head by the largest values seen.

    Scales are powers of two, so that they round nothing by themselves.
    """
    watcher = _Watcher(attention, dtype=model.dtype, device=model.device)
    num_tokens = min(CALIBRATION_TOKENS, model.config.max_model_len)
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(model.config.vocab_size, (num_tokens,), generator=generator).to(model.device)
    model.forward(_one_chunk(token_ids, num_groups=1 + max(layer.group for layer in attention.layers)), watcher)
    return [KVScales(*map(_scale, watcher.largest[layer])) for layer in range(model.config.num_layers)]


def _scale(largest: Tensor) -> Tensor:
    needed = largest.to(torch.float32) * (_HEADROOM / _LARGEST)
    return torch.exp2(torch.log2(needed.clamp_min(torch.finfo(torch.float32).tiny)).ceil())


def _one_chunk(token_ids: Tensor, *, num_groups: int) -> ForwardBatch:
    """A single request whose tokens all come at once; nothing of it is paged."""
    count, device = len(token_ids), token_ids.device
    starts, lengths = np.array([0, count], dtype=np.int32), np.array([count], dtype=np.int32)
    unused = torch.empty(0, dtype=torch.int64, device=device)
    return ForwardBatch(
        num_decodes=0,
        token_ids=token_ids,
        positions=torch.arange(count, device=device),
        groups=(GroupBatch(slots=unused, block_tables=unused),) * num_groups,
        query_start_loc=torch.from_numpy(starts).to(device),
        context_lens=torch.from_numpy(lengths).to(device),
        host_query_start_loc=starts,
        host_context_lens=lengths,
        sampled_tokens=torch.tensor([count - 1], device=device),
        sampled_rows=(),
    )


class _Watcher:
    """A backend for one chunk without history: it keeps one layer's keys and values at a time, and notes how large.

    Attributes:
        largest: Of each layer so far, the largest key and value of each KV head.
    """

    name = "watcher"
    cache_bytes = 0

    def __init__(self, attention: ModelAttention, *, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self.value_size = attention.value_size
        self.largest: dict[int, tuple[Tensor, Tensor]] = {}
        self._attention = attention
        self._k = self._v = torch.empty(0)

    def plan(self, batch: ForwardBatch) -> None:
        """There is nothing to plan."""

    def store_kv(self, layer: int, k: Tensor, v: Tensor | None) -> None:
        """Note a layer's keys and values."""
        self._k, self._v = k, k[..., : self.value_size] if v is None else v
        largest = k.abs().amax(dim=(0, 2))
        self.largest[layer] = (largest, largest if v is None else v.abs().amax(dim=(0, 2)))

    def decode(self, layer: int, q: Tensor, out: Tensor) -> None:
        """No row has a single token."""
        raise NotImplementedError("calibration runs one chunk")

    def prefill(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Attend to what was just stored."""
        scale, softcap = self._attention.scale, self._attention.softcap
        window = self._attention.layers[layer].window
        out.copy_(causal_attention(q, self._k, self._v, scale=scale, window=window, softcap=softcap))

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """There are no blocks."""

    def host_cache(self, num_blocks: int) -> HostCache:
        """Nothing is kept that could be moved."""
        return HostCache([], num_blocks, copy=copy_blocks)
