"""Each Triton kernel against its reference, over odd shapes; run as a process of its own.

    TRITON_INTERPRET=1 python -m tests.differential.kernel_cases cpu

writes one JSON object: the name of each case, and "ok" or what differed. Triton decides at import whether it
interprets, so the test process, which also compiles kernels, cannot run these itself. The kernels are imported where
they are used: there may be no Triton at all.
"""

import json
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from kvkernels import reference

Case = Callable[[str], None]


def store_case(
    *,
    slots: list[int],
    block_size: int,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    heads_first: bool = False,
) -> Case:
    """Store `len(slots)` tokens; with `heads_first` the cache keeps heads before offsets, so no stride is usual."""

    def run(device: str) -> None:
        from kvkernels.store_kv import store_kv

        generator = torch.Generator().manual_seed(len(slots))
        num_blocks = max([0, *slots]) // block_size + 2
        shape = (num_blocks, num_kv_heads, block_size, head_dim)
        caches = [torch.randn(shape, generator=generator).to(device, dtype) for _ in range(2)]
        if heads_first:
            caches = [cache.transpose(1, 2) for cache in caches]
        else:
            caches = [cache.transpose(1, 2).contiguous() for cache in caches]
        expected = [cache.clone() for cache in caches]
        # A slice of a fused projection: the token stride is that of q, k and v together.
        fused = torch.randn(len(slots), 3 * num_kv_heads, head_dim, generator=generator).to(device, dtype)
        k, v = fused[:, num_kv_heads : 2 * num_kv_heads], fused[:, 2 * num_kv_heads :]
        where = torch.tensor(slots, dtype=torch.int64, device=device)

        store_kv(k, v, *caches, where)
        reference.store_kv(k, v, *expected, where)

        for got, known in zip(caches, expected, strict=True):
            assert torch.equal(got, known), f"{(got != known).sum().item()} elements differ"

    return run


def slot_case(*, query_lens: list[int], starts: list[int], block_size: int, num_padding: int = 0) -> Case:
    """Map chunks of given lengths that begin at given positions; `num_padding` tokens follow."""

    def run(device: str) -> None:
        from kvkernels.slot_mapping import slot_mapping

        ends = [start + count for start, count in zip(starts, query_lens, strict=True)]
        max_blocks = max([1, *(-(-end // block_size) for end in ends)])
        generator = torch.Generator().manual_seed(block_size)
        tables = torch.randint(1, 2**31 - 1, (len(query_lens), max_blocks), generator=generator, dtype=torch.int32)
        chunks = [torch.arange(start, end) for start, end in zip(starts, ends, strict=True)]
        positions = torch.cat([*chunks, torch.full((num_padding,), 7)])
        loc = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
        inputs: list[Tensor] = [tensor.to(device) for tensor in (tables, loc, positions)]

        got = slot_mapping(*inputs, block_size=block_size)
        known = reference.slot_mapping(*inputs, block_size=block_size)

        assert torch.equal(got, known), f"expected {known.tolist()}, got {got.tolist()}"
        assert (got[len(got) - num_padding :] == -1).all()

    return run


CASES: dict[str, Case] = {
    "store: head_dim 24, three heads": store_case(slots=[5, 0, 9], block_size=4, num_kv_heads=3, head_dim=24),
    "store: one token": store_case(slots=[6], block_size=4),
    "store: a block half full": store_case(slots=[8, 9], block_size=4),
    "store: block size 1": store_case(slots=[3, 1, 2], block_size=1),
    "store: padding slots": store_case(slots=[-1, 4, -1, 2, -1], block_size=4),
    "store: only padding": store_case(slots=[-1, -1], block_size=4),
    "store: no token": store_case(slots=[], block_size=4),
    "store: one head of 1": store_case(slots=[2, 0], block_size=2, num_kv_heads=1, head_dim=1),
    "store: float16": store_case(slots=[7, 2, 5], block_size=4, dtype=torch.float16),
    "store: heads before offsets": store_case(slots=[7, 2, 5], block_size=4, num_kv_heads=3, heads_first=True),
    "slots: chunks and decodes": slot_case(query_lens=[1, 5, 1, 3], starts=[16, 2, 0, 30], block_size=4),
    "slots: one token": slot_case(query_lens=[1], starts=[0], block_size=16),
    "slots: block size 1": slot_case(query_lens=[3, 1], starts=[0, 9], block_size=1),
    "slots: padding tokens": slot_case(query_lens=[2, 1], starts=[3, 8], block_size=4, num_padding=5),
    "slots: an empty row": slot_case(query_lens=[2, 0, 1], starts=[3, 0, 8], block_size=4, num_padding=1),
    "slots: longer than a tile": slot_case(query_lens=[3, 700], starts=[0, 11], block_size=16, num_padding=300),
    "slots: no token": slot_case(query_lens=[0], starts=[0], block_size=4),
}
"""Block ids of the slot cases reach 2**31 - 2, so slots need all of int64."""


def refusals(device: str) -> dict[str, str]:
    """What the wrappers say to inputs that they must refuse."""
    from kvkernels.slot_mapping import slot_mapping
    from kvkernels.store_kv import store_kv

    k = torch.zeros(2, 1, 8, device=device)
    cache = torch.zeros(3, 4, 1, 8, device=device)
    slots = torch.tensor([1, 2], device=device)
    tables = torch.zeros(1, 2, dtype=torch.int32, device=device)
    loc = torch.tensor([0, 2], dtype=torch.int32, device=device)
    calls = {
        "bfloat16": partial(store_kv, k.bfloat16(), k.bfloat16(), cache.bfloat16(), cache.bfloat16(), slots),
        "cache of another head_dim": partial(store_kv, k, k, cache[..., :4], cache, slots),
        "int32 slots": partial(store_kv, k, k, cache, cache, slots.int()),
        "int64 block tables": partial(slot_mapping, tables.long(), loc, slots, block_size=4),
        "too few starts": partial(slot_mapping, tables, loc[:1], slots, block_size=4),
    }
    return {name: _refusal(call) for name, call in calls.items()}


def _refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def _outcome(case: Case, device: str) -> str:
    try:
        case(device)
    except AssertionError as error:
        return str(error)
    return "ok"


if __name__ == "__main__":
    outcomes = {name: _outcome(case, sys.argv[1]) for name, case in CASES.items()}
    sys.stdout.write(json.dumps({"cases": outcomes, "refusals": refusals(sys.argv[1])}))
