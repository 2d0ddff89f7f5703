"""Running an attention backend through whole steps of a paged case."""

import numpy as np
import torch
from torch import Tensor

from kvengine.attention.base import AttentionBackend, attend
from kvengine.batch import ForwardBatch, GroupBatch
from kvengine.spec import KVCacheSpec, KVDtype
from kvkernels import reference
from tests.differential.paged_case import PagedCase


def a_spec(case: PagedCase, *, num_layers: int = 1) -> KVCacheSpec:
    """The cache's geometry; backends take the type as torch names it."""
    _, block_size, num_kv_heads, head_dim = case.k_cache.shape
    return KVCacheSpec(
        num_layers=num_layers,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        head_dim_v=head_dim,
        dtype=KVDtype.FLOAT32,
        block_size=block_size,
    )


def a_batch(case: PagedCase, *, num_decodes: int, slots: Tensor) -> ForwardBatch:
    unused = torch.zeros(len(slots), dtype=torch.int64, device=slots.device)
    return ForwardBatch(
        num_decodes=num_decodes,
        token_ids=unused,
        positions=unused,
        groups=(GroupBatch(slots=slots, block_tables=case.block_tables),),
        query_start_loc=case.query_start_loc,
        context_lens=case.context_lens,
        host_query_start_loc=case.query_start_loc.cpu().numpy(),
        host_context_lens=case.context_lens.cpu().numpy(),
        sampled_tokens=unused,
        sampled_rows=(),
    )


def fill_cache(backend: AttentionBackend, case: PagedCase, *, num_layers: int = 1) -> None:
    """Write the whole history through the backend, one request after the other, in every layer."""
    for row, (k, v) in enumerate(zip(case.k, case.v, strict=True)):
        positions = np.arange(len(k))
        blocks = case.block_tables[row].cpu().numpy()[positions // case.block_size]
        slots = torch.from_numpy(blocks * case.block_size + positions % case.block_size).long().to(case.q.device)
        backend.plan(a_batch(case, num_decodes=len(case.query_lens), slots=slots))
        for layer in range(num_layers):
            backend.store_kv(layer, k, v)


def attend_step(backend: AttentionBackend, case: PagedCase, *, num_decodes: int, layer: int = 0) -> Tensor:
    """Attend with the step's own keys stored again, as a real step does."""
    rows = list(zip(case.k, case.v, case.query_lens, strict=True))
    k = torch.cat([keys[len(keys) - count :] for keys, _, count in rows])
    v = torch.cat([values[len(values) - count :] for _, values, count in rows])
    positions = torch.cat([torch.arange(len(keys) - count, len(keys)) for keys, _, count in rows]).to(k.device)
    slots = reference.slot_mapping(case.block_tables, case.query_start_loc, positions, block_size=case.block_size)
    backend.plan(a_batch(case, num_decodes=num_decodes, slots=slots))
    return attend(backend, layer, case.q, k, v, num_decodes)
