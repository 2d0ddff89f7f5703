"""What the wrappers say to inputs that they must refuse."""

from collections.abc import Callable
from functools import partial

import torch


def refusals(device: str) -> dict[str, str]:
    """Each bad call, and its error."""
    from kvkernels.copy_blocks import copy_blocks
    from kvkernels.layout import KVLayout, page_shapes, paged_kv
    from kvkernels.paged_decode import paged_decode, plan_decode
    from kvkernels.rope_store import rope_store
    from kvkernels.sampling import sample
    from kvkernels.slot_mapping import slot_mapping
    from kvkernels.store_kv import store_kv
    from kvkernels.swiglu import swiglu

    k = torch.zeros(2, 1, 8, device=device)
    pool = torch.zeros(3, 4, 1, 8, device=device)
    cache = paged_kv(KVLayout.BLOCK_MAJOR, pool, pool)
    narrow = paged_kv(KVLayout.BLOCK_MAJOR, pool[..., :4], pool[..., :4])
    half = paged_kv(KVLayout.BLOCK_MAJOR, pool.bfloat16(), pool.bfloat16())
    wide = paged_kv(KVLayout.BLOCK_MAJOR, pool.repeat(1, 1, 1, 64), pool.repeat(1, 1, 1, 64))
    three_heads = paged_kv(KVLayout.BLOCK_MAJOR, pool.repeat(1, 1, 3, 1), pool.repeat(1, 1, 3, 1))
    slots = torch.tensor([1, 2], device=device)
    tables = torch.zeros(1, 2, dtype=torch.int32, device=device)
    lens = torch.ones(1, dtype=torch.int32, device=device)
    loc = torch.tensor([0, 2], dtype=torch.int32, device=device)
    plan = plan_decode(lens.cpu().numpy(), num_heads=2, head_dim=8, device=torch.device(device))
    q = torch.zeros(1, 2, 8, device=device)
    decode = partial(paged_decode, scale=1.0)
    setting = torch.ones(1, device=device)
    odd = torch.zeros(2, 1, 7, device=device)
    calls = {
        "bfloat16": partial(store_kv, k.bfloat16(), k.bfloat16(), half, slots),
        "cache of another head_dim": partial(store_kv, k, k, narrow, slots),
        "int32 slots": partial(store_kv, k, k, cache, slots.int()),
        "int64 block tables": partial(slot_mapping, tables.long(), loc, slots, block_size=4),
        "too few starts": partial(slot_mapping, tables, loc[:1], slots, block_size=4),
        "heads that do not divide": partial(decode, q, three_heads, tables, lens, plan),
        "heads of 512": partial(decode, q.repeat(1, 1, 64), wide, tables, lens, plan),
        "an empty window": partial(decode, q, cache, tables, lens, plan, window=0),
        "a plan of another step": partial(decode, q.repeat(3, 1, 1), cache, tables.repeat(3, 1), lens.repeat(3), plan),
        "int64 context lengths": partial(decode, q, cache, tables, lens.long(), plan),
        "odd head_dim": partial(rope_store, odd, odd, odd, k, k, cache, slots, out=odd),
        "a row that is no two halves": partial(swiglu, torch.zeros(1, 3, device=device)),
        "a float top_k": partial(
            sample, torch.zeros(1, 4, device=device), temperature=setting, top_k=setting, top_p=setting, min_p=setting,
            uniform=setting,
        ),
        "a copy of a copy": partial(copy_blocks, pool[None], pool[None], [(0, 1), (1, 2)]),
        "chunks of 16 bytes": partial(
            page_shapes, KVLayout.KEY_CHUNKS, block_size=4, num_kv_heads=1, head_dim=12, dtype=torch.float16
        ),
    }  # fmt: skip
    return {name: _refusal(call) for name, call in calls.items()}


def _refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"
