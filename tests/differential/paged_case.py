"""A ragged paged batch with random contents and scattered blocks, for tests of attention."""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedCase:
    """Keys and values of some requests, contiguous and in a paged cache, and the queries of a step."""

    block_size: int
    q: Tensor
    """[num_tokens, num_heads, head_dim]"""
    k: list[Tensor]
    """Of each request: [context_len, num_kv_heads, head_dim]."""
    v: list[Tensor]
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    context_lens: Tensor
    query_start_loc: Tensor

    def on(self, device: str) -> "PagedCase":
        """The same with all tensors on a device."""
        moved: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                moved[field.name] = value.to(device)
            elif isinstance(value, list):
                moved[field.name] = [tensor.to(device) for tensor in value]
        return replace(self, **moved)

    @property
    def query_lens(self) -> list[int]:
        return self.query_start_loc.diff().tolist()


def a_paged_case(
    *,
    context_lens: list[int],
    query_lens: list[int],
    block_size: int,
    num_heads: int = 3,
    num_kv_heads: int = 1,
    head_dim: int = 24,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> PagedCase:
    """Build a case; unused slots hold 1e4, so that reading one shows, and unused table entries point at block 0."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    k = [normal(length, num_kv_heads, head_dim) for length in context_lens]
    v = [normal(length, num_kv_heads, head_dim) for length in context_lens]
    counts = [-(-length // block_size) for length in context_lens]
    num_blocks = sum(counts) + 3
    k_cache = torch.full((num_blocks, block_size, num_kv_heads, head_dim), 1e4, dtype=dtype)
    v_cache = torch.full_like(k_cache, 1e4)
    scattered = (torch.randperm(num_blocks - 1, generator=generator) + 1).tolist()
    block_tables = torch.zeros(len(context_lens), max(counts) + 1, dtype=torch.int32)
    for row, (length, count) in enumerate(zip(context_lens, counts, strict=True)):
        blocks = [scattered.pop() for _ in range(count)]
        block_tables[row, :count] = torch.tensor(blocks, dtype=torch.int32)
        for position in range(length):
            place = blocks[position // block_size], position % block_size
            k_cache[place], v_cache[place] = k[row][position], v[row][position]
    return PagedCase(
        block_size=block_size,
        q=normal(sum(query_lens), num_heads, head_dim),
        k=k,
        v=v,
        k_cache=k_cache,
        v_cache=v_cache,
        block_tables=block_tables,
        context_lens=torch.tensor(context_lens, dtype=torch.int32),
        query_start_loc=torch.tensor([0, *query_lens], dtype=torch.int32).cumsum(0).to(torch.int32),
    )


def plain_attention(case: PagedCase, *, scale: float, window: int = 10**9) -> Tensor:
    """The same attention from the contiguous keys and values, one query and head at a time in float64."""
    out = torch.zeros(case.q.shape, dtype=torch.float64)
    group_size = case.q.shape[1] // case.k_cache.shape[2]
    token = 0
    for row, query_len in enumerate(case.query_lens):
        for place in range(query_len):
            visible = case.context_lens[row].item() - query_len + place + 1
            first = max(0, visible - window)
            for head in range(case.q.shape[1]):
                keys = case.k[row][first:visible, head // group_size].double()
                values = case.v[row][first:visible, head // group_size].double()
                weights = ((keys * case.q[token, head].double()).sum(-1) * scale).exp()
                out[token, head] = (weights[:, None] * values).sum(0) / weights.sum()
            token += 1
    return out
