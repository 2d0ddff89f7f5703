"""Slot mapping, store, and block copies: what only moves data must be exact."""

from itertools import pairwise

import torch
from torch import Tensor

from kvkernels import reference
from tests.differential.kernel_cases.case import Case, normal


def store_case(
    *,
    slots: list[int],
    block_size: int,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    scales: tuple[float, float] | None = None,
    layout: str = "block_major",
) -> Case:
    """Store `len(slots)` tokens; all other slots keep what they had."""

    def run(device: str) -> None:
        from kvkernels.layout import KVLayout, page_shapes, paged_kv
        from kvkernels.store_kv import store_kv

        generator = torch.Generator().manual_seed(len(slots))
        num_blocks = max([0, *slots]) // block_size + 2
        kept = dtype if cache_dtype is None else cache_dtype
        pages = page_shapes(
            KVLayout(layout), block_size=block_size, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=kept
        )
        # A guard block before the first: what is written for slot -1 would land there.
        guarded = [normal(generator, num_blocks + 1, *page).to(device, kept) for page in pages]
        guards = [pool[0].clone() for pool in guarded]
        pools = [pool[1:] for pool in guarded]
        per_head = [torch.linspace(scale, 2 * scale, num_kv_heads, device=device) for scale in scales or ()] or [
            None
        ] * 2
        cache = paged_kv(KVLayout(layout), *pools, k_scale=per_head[0], v_scale=per_head[1])
        expected = [cache.k.flatten(3, 4).clone(), cache.v.clone()]
        # A slice of a fused projection: the token stride is that of q, k and v together.
        fused = normal(generator, len(slots), 3 * num_kv_heads, head_dim).to(device, dtype)
        k, v = fused[:, num_kv_heads : 2 * num_kv_heads], fused[:, 2 * num_kv_heads :]
        where = torch.tensor(slots, dtype=torch.int64, device=device)

        store_kv(k, v, cache, where)
        reference.store_kv(k, v, *expected, where, k_scale=per_head[0], v_scale=per_head[1])

        for got, known in zip((cache.k.flatten(3, 4), cache.v), expected, strict=True):
            differing = (got.float() != known.float()).sum().item()
            assert not differing, f"{differing} elements differ"
        for pool, guard in zip(guarded, guards, strict=True):
            assert torch.equal(pool[0].float(), guard.float()), "something before the pool was written"

    return run


def slot_case(*, query_lens: list[int], starts: list[int], block_size: int, num_padding: int = 0) -> Case:
    """Map chunks of given lengths that begin at given positions; `num_padding` tokens follow."""

    def run(device: str) -> None:
        from kvkernels.slot_mapping import slot_mapping

        ends = [start + count for start, count in zip(starts, query_lens, strict=True)]
        max_blocks = max([1, *(-(-end // block_size) for end in ends)])
        generator = torch.Generator().manual_seed(block_size)
        # Block ids reach 2**31 - 2, so slots need all of int64.
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


def copy_case(
    *,
    copies: list[tuple[int, int]],
    page: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    num_layers: int = 3,
    host_blocks: int | None = None,
) -> Case:
    """Copy inside a pool of 8 blocks, or into one of `host_blocks`."""

    def run(device: str) -> None:
        from kvkernels.copy_blocks import copy_blocks

        generator = torch.Generator().manual_seed(0)
        pool = normal(generator, num_layers, 8, *page).to(device, dtype)
        other = pool
        if host_blocks is not None:
            other = torch.zeros(num_layers, host_blocks, *page, dtype=dtype)
            other = other.pin_memory() if device == "cuda" else other
        # What must stand in each block, worked out one block at a time.
        expected = [[block.clone() for block in layer] for layer in other.cpu()]
        for source, destination in copies:
            for layer in range(num_layers):
                expected[layer][destination] = pool[layer, source].clone().cpu()

        copy_blocks(pool, other, copies)

        if device == "cuda":
            torch.cuda.synchronize()
        for layer, blocks in enumerate(expected):
            for block, known in enumerate(blocks):
                assert torch.equal(other[layer, block].cpu(), known), f"layer {layer}, block {block} differs"

    return run


def far_block_case() -> Case:
    """Blocks beyond 2**31 elements of a pool of which only the touched pages ever exist."""

    def run(device: str) -> None:
        from kvkernels.copy_blocks import copy_blocks
        from kvkernels.layout import FP8, KVLayout, paged_kv
        from kvkernels.store_kv import store_kv

        block_size, num_kv_heads, head_dim = 16, 8, 128
        num_blocks = 2**31 // (block_size * num_kv_heads * head_dim) + 2
        pools = [
            torch.empty(num_blocks, block_size, num_kv_heads, head_dim, dtype=FP8, device=device) for _ in range(2)
        ]
        k = torch.full((1, num_kv_heads, head_dim), 1.5, device=device)
        last = num_blocks - 1

        store_kv(k, 2 * k, paged_kv(KVLayout.BLOCK_MAJOR, *pools), torch.tensor([last * block_size + 3], device=device))
        copy_blocks(pools[0][None], pools[0][None], [(last, last - 1)])

        assert (pools[0][last, 3].float() == 1.5).all()
        assert (pools[1][last, 3].float() == 3).all()
        assert (pools[0][last - 1, 3].float() == 1.5).all()

    return run


def round_case() -> Case:
    """Every value of e4m3, every middle of two, and what lies a little beside and far beyond."""

    def run(device: str) -> None:
        from kvkernels.layout import FP8, KVLayout, paged_kv
        from kvkernels.store_kv import store_kv

        grid = torch.arange(127, dtype=torch.uint8).view(FP8).float()
        middles = torch.tensor([(low + high) / 2 for low, high in pairwise(grid.tolist())])
        beyond = torch.tensor([448.0, 449.0, 464.0, 465.0, 1e9, float("inf")])
        values = torch.cat([grid, middles, middles * (1 - 2**-20), middles * (1 + 2**-20), beyond])
        values = torch.cat([values, -values])
        values = torch.nn.functional.pad(values, (0, 1024 - len(values))).view(64, 1, 16).to(device)
        pools = [torch.zeros(16, 4, 1, 16, device=device).to(FP8) for _ in range(2)]
        ones = torch.ones(1, device=device)
        cache = paged_kv(KVLayout.BLOCK_MAJOR, *pools, k_scale=ones, v_scale=ones)

        store_kv(values, values, cache, torch.arange(64, device=device))

        known = values.cpu().clamp(-448, 448).to(FP8).float()
        got = cache.k.reshape(64, 1, 16).cpu().float()
        wrong = (got != known).nonzero()
        assert not len(wrong), f"{values.cpu()[got != known][:3]} became {got[got != known][:3]}"

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
    "store: float32 into float16": store_case(slots=[7, 2, 5], block_size=4, cache_dtype=torch.float16),
    "store: key chunks": store_case(slots=[7, 2, 5], block_size=4, num_kv_heads=3, head_dim=24, layout="key_chunks"),
    "store: key chunks, float16": store_case(
        slots=[7, -1, 5], block_size=4, head_dim=32, dtype=torch.float16, layout="key_chunks"
    ),
    "store: fp8 with scales": store_case(
        slots=[7, -1, 5, 0], block_size=4, num_kv_heads=3, cache_dtype=torch.float8_e4m3fn, scales=(0.02, 0.3)
    ),
    "store: fp8 in key chunks": store_case(
        slots=[7, 2], block_size=4, head_dim=32, cache_dtype=torch.float8_e4m3fn, scales=(1.0, 0.004),
        layout="key_chunks",
    ),
    "store: fp8 from float16": store_case(
        slots=[7, 2], block_size=4, dtype=torch.float16, cache_dtype=torch.float8_e4m3fn, scales=(0.1, 0.1)
    ),
    "store: every rounding of fp8": round_case(),
    "store, copy: past 2**31 elements": far_block_case(),
    "slots: chunks and decodes": slot_case(query_lens=[1, 5, 1, 3], starts=[16, 2, 0, 30], block_size=4),
    "slots: one token": slot_case(query_lens=[1], starts=[0], block_size=16),
    "slots: block size 1": slot_case(query_lens=[3, 1], starts=[0, 9], block_size=1),
    "slots: padding tokens": slot_case(query_lens=[2, 1], starts=[3, 8], block_size=4, num_padding=5),
    "slots: an empty row": slot_case(query_lens=[2, 0, 1], starts=[3, 0, 8], block_size=4, num_padding=1),
    "slots: longer than a tile": slot_case(query_lens=[3, 700], starts=[0, 11], block_size=16, num_padding=300),
    "slots: no token": slot_case(query_lens=[0], starts=[0], block_size=4),
    "copy: two blocks in all layers": copy_case(copies=[(1, 5), (7, 2)], page=(4, 2, 24)),
    "copy: one block to two": copy_case(copies=[(3, 4), (3, 0)], page=(4, 2, 8), dtype=torch.float16),
    "copy: pages of three bytes": copy_case(copies=[(1, 2)], page=(1, 1, 3), dtype=torch.int8),
    "copy: pages of three half words": copy_case(copies=[(1, 2)], page=(1, 1, 3), dtype=torch.float16),
    "copy: pages longer than a tile": copy_case(copies=[(1, 2)], page=(16, 2, 80), num_layers=1),
    "copy: bfloat16, whose bits are not looked at": copy_case(copies=[(6, 1)], page=(4, 2, 8), dtype=torch.bfloat16),
    "copy: into a smaller pool of the host": copy_case(copies=[(7, 0), (2, 2)], page=(4, 2, 8), host_blocks=3),
    "copy: nothing": copy_case(copies=[], page=(4, 2, 8)),
}  # fmt: skip
