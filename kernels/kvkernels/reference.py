"""Every cache operation in plain torch: the definition of correct, in any float type up to float64.

Caches are [num_blocks, block_size, num_kv_heads, head_dim], with any strides; a slot is
`block_id * block_size + offset`; a negative slot is padding. Source: Kwon et al. 2023, arXiv:2309.06180, section 4.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def slot_mapping(block_tables: Tensor, query_start_loc: Tensor, positions: Tensor, *, block_size: int) -> Tensor:
    """Give the cache slot of every token of a packed batch.

    Shapes:
        block_tables: [num_requests, max_blocks], int32; entries past a request's positions are not read
        query_start_loc: [num_requests + 1], int32, ascending; request i owns tokens `loc[i] .. loc[i + 1] - 1`
        positions: [num_tokens], int64; tokens from `loc[-1]` on are padding

    Returns:
        [num_tokens], int64; padding tokens get -1.
    """
    slots = torch.full_like(positions, -1)
    counts = query_start_loc.diff()
    row_of_token = torch.repeat_interleave(counts)
    real = positions[: row_of_token.numel()]
    blocks = block_tables[row_of_token, real // block_size].to(torch.int64)
    slots[: row_of_token.numel()] = blocks * block_size + real % block_size
    return slots


def store_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Write the keys and values of a step into their slots, in the type of the cache.

    Shapes:
        k, v: [num_tokens, num_kv_heads, head_dim]
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim]; changed in place
        slots: [num_tokens], int64, distinct; negative ones are skipped
    """
    real = slots >= 0
    kept = slots[real]
    block_size = k_cache.shape[1]
    place = (kept // block_size, kept % block_size)
    k_cache[place] = k[real].to(k_cache.dtype)
    v_cache[place] = v[real].to(v_cache.dtype)


def gather_kv(cache: Tensor, block_table: Tensor, context_len: int) -> Tensor:
    """Read one request's keys or values in order of position.

    Shapes:
        cache: [num_blocks, block_size, num_kv_heads, head_dim]
        block_table: [max_blocks], int32

    Returns:
        [context_len, num_kv_heads, head_dim]
    """
    num_blocks = -(-context_len // cache.shape[1])
    return cache[block_table[:num_blocks].long()].flatten(0, 1)[:context_len]


def paged_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    query_start_loc: Tensor,
    *,
    scale: float,
) -> Tensor:
    """Causal attention of a ragged batch of chunks over their paged history, their own keys included.

    The tokens of a request are the last ones of its context, so a chunk sees all that came before it.

    Shapes:
        q: [num_tokens, num_heads, head_dim]
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim]
        block_tables: [num_requests, max_blocks], int32; entries past the context are not read
        context_lens: [num_requests], int32, tokens with those of this step; 0 for a padding row
        query_start_loc: [num_requests + 1], int32

    Returns:
        [num_tokens, num_heads, head_dim], q's dtype, 0 for tokens past `query_start_loc[-1]`; computed in float32,
        or in float64 where q is.
    """
    out = torch.zeros_like(q)
    starts = query_start_loc.tolist()
    for row, context_len in enumerate(context_lens.tolist()):
        first, end = starts[row], starts[row + 1]
        if first == end:
            continue
        k = gather_kv(k_cache, block_tables[row], context_len)
        v = gather_kv(v_cache, block_tables[row], context_len)
        out[first:end] = causal_attention(q[first:end], k, v, scale=scale)
    return out


def paged_decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, context_lens: Tensor, *, scale: float
) -> Tensor:
    """Decode attention over a paged cache: one query token per request.

    Shapes:
        q: [num_requests, num_heads, head_dim]
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim]
        block_tables: [num_requests, max_blocks], int32; entries past the context are not read
        context_lens: [num_requests], int32, tokens; 0 for a padding row

    Returns:
        [num_requests, num_heads, head_dim], q's dtype, 0 for padding rows; computed in float32, or in float64
        where q is.
    """
    query_start_loc = torch.cumsum(torch.cat([context_lens.new_zeros(1), (context_lens > 0).int()]), 0)
    real = context_lens > 0
    out = torch.zeros_like(q)
    out[real] = paged_prefill(q[real], k_cache, v_cache, block_tables, context_lens, query_start_loc, scale=scale)
    return out


def causal_attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """Attention of the last positions of a sequence over all of it.

    Shapes:
        q: [num_queries, num_heads, head_dim]; query i stands at position `context_len - num_queries + i`
        k, v: [context_len, num_kv_heads, head_dim]; each KV head serves `num_heads / num_kv_heads` query heads

    Returns:
        [num_queries, num_heads, head_dim], q's dtype.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    group_size = q.shape[1] // k.shape[1]
    keys = k.to(dtype).repeat_interleave(group_size, dim=1)
    values = v.to(dtype).repeat_interleave(group_size, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.to(dtype), keys) * scale
    visible = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).tril(k.shape[0] - q.shape[0])
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)


def copy_blocks(caches: Sequence[Tensor], copies: Sequence[tuple[int, int]], *, block_dim: int = 0) -> None:
    """Copy whole blocks inside each cache, as copy-on-write needs it.

    Args:
        caches: Tensors whose dimension `block_dim` counts blocks; changed in place.
        copies: (source, destination) block ids. The pairs may run in any order, so no block may be written twice
            or be both source and destination.
        block_dim: Where the blocks are counted.

    Raises:
        ValueError: The pairs depend on each other.
    """
    if not copies:
        return
    sources, destinations = (list(ids) for ids in zip(*copies, strict=True))
    if len({*destinations}) != len(destinations) or not {*destinations}.isdisjoint(sources):
        raise ValueError(f"block copies depend on each other: {list(copies)}")
    for cache in caches:
        source = torch.tensor(sources, device=cache.device)
        destination = torch.tensor(destinations, device=cache.device)
        cache.index_copy_(block_dim, destination, cache.index_select(block_dim, source))
