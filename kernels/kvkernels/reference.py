"""Every operation in plain torch: the definition of correct, in any float type up to float64.

Caches are [num_blocks, block_size, num_kv_heads, head_dim], with any strides; a slot is
`block_id * block_size + offset`; a negative slot is padding. Source: Kwon et al. 2023, arXiv:2309.06180, section 4.
Results are computed in float32, or in float64 where an input is, and rounded once.
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


def store_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Write the keys and values of a step into their slots, in the type of the cache.

    Shapes:
        k, v: [num_tokens, num_kv_heads, head_dim]
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim]; changed in place
        slots: [num_tokens], int64, distinct; negative ones are skipped
        k_scale, v_scale: [num_kv_heads], float32; what is stored is the value over its head's scale
    """
    real = slots >= 0
    kept = slots[real]
    block_size = k_cache.shape[1]
    place = (kept // block_size, kept % block_size)
    k_cache[place] = quantise(k[real], k_scale, k_cache.dtype)
    v_cache[place] = quantise(v[real], v_scale, v_cache.dtype)


def quantise(x: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Divide by a scale per head and round; an 8-bit type takes its largest value for what lies beyond.

    Shapes:
        x: [num_tokens, num_heads, head_dim]
        scale: [num_heads], float32
    """
    if scale is not None:
        x = x.to(torch.float32) / scale[:, None]
    if dtype.itemsize == 1:
        largest = torch.finfo(dtype).max
        x = x.clamp(-largest, largest)
    return x.to(dtype)


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
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Causal attention of a ragged batch of chunks over their paged history, their own keys included.

    The tokens of a request are the last ones of its context, so a chunk sees all that came before it; with a window,
    a token sees itself and the `window - 1` tokens before it. For `softcap` see `causal_attention`.

    Shapes:
        q: [num_tokens, num_heads, head_dim]
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim]
        block_tables: [num_requests, max_blocks], int32; entries of blocks that no token sees do not matter
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
        out[first:end] = causal_attention(q[first:end], k, v, scale=scale, window=window, softcap=softcap)
    return out


def paged_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Decode attention over a paged cache: one query token per request.

    Shapes:
        q: [num_requests, num_heads, head_dim]
        k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim]
        block_tables: [num_requests, max_blocks], int32; entries of blocks that no token sees do not matter
        context_lens: [num_requests], int32, tokens; 0 for a padding row

    Returns:
        [num_requests, num_heads, head_dim], q's dtype, 0 for padding rows; computed in float32, or in float64
        where q is.
    """
    query_start_loc = torch.cumsum(torch.cat([context_lens.new_zeros(1), (context_lens > 0).int()]), 0)
    real = context_lens > 0
    out = torch.zeros_like(q)
    out[real] = paged_prefill(
        q[real],
        k_cache,
        v_cache,
        block_tables,
        context_lens,
        query_start_loc,
        scale=scale,
        window=window,
        softcap=softcap,
    )
    return out


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None = None, softcap: float | None = None
) -> Tensor:
    """Attention of the last positions of a sequence over all of it, or over the last `window` tokens up to each.

    With `softcap` scores s become `softcap * tanh(s / softcap)`.

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
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    history = k.shape[0] - q.shape[0]
    visible = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).tril(history)
    if window is not None:
        visible = visible.triu(history - window + 1)
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    # What no query sees is left out: it may be stale, and 0 * nan is nan.
    seen = visible.any(0)
    return torch.einsum("hqk,khd->qhd", weights[:, :, seen], values[seen]).to(q.dtype)


def copy_blocks(source: Tensor, destination: Tensor, copies: Sequence[tuple[int, int]], *, block_dim: int = 0) -> None:
    """Copy whole blocks, inside one pool as copy-on-write needs it, or between two as swapping does.

    Args:
        source: Its dimension `block_dim` counts blocks.
        destination: As the source in all other dimensions, or the source itself; changed in place.
        copies: (source, destination) block ids.
        block_dim: Where the blocks are counted.

    Raises:
        ValueError: The pairs depend on each other.
    """
    if not copies:
        return
    check_copies(copies, one_pool=source is destination)
    sources, destinations = (list(ids) for ids in zip(*copies, strict=True))
    taken = source.index_select(block_dim, torch.tensor(sources, device=source.device))
    places = torch.tensor(destinations, device=destination.device)
    destination.index_copy_(block_dim, places, taken.to(destination.device))


def check_copies(copies: Sequence[tuple[int, int]], *, one_pool: bool) -> None:
    """Refuse copies whose result depends on their order: they run side by side.

    Raises:
        ValueError: A block is written twice, or is source and destination in one pool.
    """
    sources, destinations = {pair[0] for pair in copies}, {pair[1] for pair in copies}
    if len(destinations) != len(copies) or (one_pool and not destinations.isdisjoint(sources)):
        raise ValueError(f"block copies depend on each other: {list(copies)}")


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Scale each row to a root mean square of 1, then each element by its weight.

    Shapes:
        x: [..., size]
        weight: [size]

    Source: Zhang and Sennrich 2019, arXiv:1910.07467.
    """
    wide = _wide(x)
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.to(wide.dtype)).to(x.dtype)


def rope(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + head_dim / 2) of every head by its token's angle.

    Shapes:
        heads: [num_tokens, num_heads, head_dim]
        cos, sin: [num_tokens, head_dim / 2]

    Source: Su et al. 2021, arXiv:2104.09864, the pairs as in Hugging Face's models.
    """
    wide = _wide(heads)
    first, second = wide.chunk(2, dim=-1)
    cos, sin = cos[:, None].to(wide.dtype), sin[:, None].to(wide.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(heads.dtype)


def swiglu(gate_up: Tensor) -> Tensor:
    """Compute `silu(gate) * up`.

    Shapes:
        gate_up: [num_tokens, 2 * size], gate first

    Returns:
        [num_tokens, size]

    Source: Shazeer 2020, arXiv:2002.05202.
    """
    gate, up = _wide(gate_up).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)


def sample(
    logits: Tensor, *, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    """Choose a token for each row: the most likely one, or one drawn from what the row's filters leave.

    Drawing is by inversion: the first token, in order of ids, at which the summed probability exceeds `uniform`. So a
    row's choice depends on its own inputs alone.

    Shapes:
        logits: [num_rows, vocab_size]
        temperature: [num_rows], float32; 0 takes the most likely token, the lowest id of equal ones
        top_k: [num_rows], int32; 0 keeps all
        top_p, min_p: [num_rows], float32; 1 and 0 keep all
        uniform: [num_rows], float32, in [0, 1)

    Returns:
        [num_rows], int64
    """
    chosen = logits.argmax(dim=-1)
    for row in temperature.nonzero().flatten().tolist():
        kept = kept_probabilities(
            logits[row], temperature[row].item(), int(top_k[row]), top_p[row].item(), min_p[row].item()
        )
        above = kept.cumsum(0) > uniform[row].item()
        chosen[row] = above.nonzero()[0, 0] if above.any() else kept.nonzero()[-1, 0]
    return chosen


def kept_probabilities(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Give the probabilities after temperature and filters; equal tokens are kept or dropped together.

    `min_p` drops what is less likely than that share of the most likely; `top_k` keeps what is at least as likely as
    the k-th; of what is left, `top_p` keeps the fewest, most likely ones whose share reaches it.

    Shapes:
        logits: [vocab_size]

    Returns:
        [vocab_size], float64, 0 for what is dropped; the rest sums to 1.
    """
    weights = (logits.double() - logits.max().double()).div(temperature).exp()
    weights = weights.where(weights >= min_p, 0)
    if 0 < top_k < len(weights):
        weights = weights.where(logits >= logits.topk(top_k).values[-1], 0)
    if top_p < 1:
        values, order = weights.sort(descending=True)
        reached = int((values.cumsum(0) < top_p * values.sum()).sum())
        weights = weights.where(logits >= logits[order[min(reached, len(order) - 1)]], 0)
    return weights / weights.sum()


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
