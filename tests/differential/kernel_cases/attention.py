"""Decode and prefill attention over scattered blocks, in both layouts, against the reference in float64.

Slots that no token may see, and blocks that fell out of the window, hold nan: one read of them shows in the result.
"""

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kvkernels import reference
from tests.differential.kernel_cases.case import NAN, Case, assert_close, each_dtype, float16_only, normal
from tests.differential.paged_case import PagedCase, a_paged_case


@dataclass(frozen=True, slots=True, kw_only=True)
class Attend:
    """A step to attend: contexts, chunks, heads, cache."""

    context_lens: list[int]
    query_lens: list[int] | None = None
    """None decodes: one token each, none for an empty context."""
    num_heads: int = 3
    num_kv_heads: int = 1
    head_dim: int = 24
    block_size: int = 16
    window: int | None = None
    softcap: float | None = None
    fp8: bool = False
    rising: bool = False
    """Whether later keys are larger, so that the highest score is found again and again."""
    chunks_too: bool = False
    """Whether the layout with key chunks is tried beside the other."""
    seed: int = 0

    @property
    def scores(self) -> dict[str, Any]:
        """What becomes of the products of queries and keys."""
        return {"scale": self.scale, "window": self.window, "softcap": self.softcap}

    def __call__(self, device: str, dtype: torch.dtype) -> None:
        """Run in every layout; they must agree to the bit, where they add up the same numbers in tiles of one size."""
        case = self.paged_case(dtype)
        results = [self.run(case, layout, device, dtype) for layout in self.layouts(dtype)]
        for result in results:
            assert_close(result[: self.num_tokens], self.expected(case), dtype)
        if device == "cpu" and self.head_dim <= 64:
            assert all(torch.equal(result, results[0]) for result in results), "the layouts differ"

    def layouts(self, dtype: torch.dtype) -> list[str]:
        """Those that the head dimension allows: whole chunks of 16 bytes."""
        chunk = 16 // (1 if self.fp8 else dtype.itemsize)
        return ["block_major", "key_chunks"] if self.chunks_too and self.head_dim % chunk == 0 else ["block_major"]

    @property
    def num_tokens(self) -> int:
        """Query tokens."""
        return len(self.context_lens) if self.query_lens is None else sum(self.query_lens)

    @property
    def scale(self) -> float:
        """The usual one."""
        return float(self.head_dim**-0.5)

    def paged_case(self, dtype: torch.dtype) -> PagedCase:
        """Tensors of the step, in block-major order; fp8 caches hold values that e4m3 has."""
        case = a_paged_case(
            context_lens=self.context_lens,
            query_lens=self.query_lens or [1] * len(self.context_lens),
            block_size=self.block_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            dtype=dtype,
            seed=self.seed,
        )
        for cache in (case.k_cache, case.v_cache):
            unused = cache == 1e4
            if self.rising and cache is case.k_cache:
                self.raise_keys(case)
            if self.fp8:
                cache.copy_(cache.clamp(-448, 448).to(torch.float8_e4m3fn))
            cache[unused] = NAN
        return replace(case, block_tables=self.without_recycled_blocks(case))

    def raise_keys(self, case: PagedCase) -> None:
        """Scale the keys of each block by its place in the request, up to 8."""
        for row, context_len in enumerate(self.context_lens):
            blocks = case.block_tables[row, : -(-context_len // self.block_size)].long()
            case.k_cache[blocks] *= torch.linspace(0.1, 8, len(blocks))[:, None, None, None]

    def without_recycled_blocks(self, case: PagedCase) -> Tensor:
        """Put the null block, full of nan, where the first query of a row no longer sees a block."""
        tables = case.block_tables.clone()
        if self.window is not None:
            for row, (context, queries) in enumerate(zip(self.context_lens, case.query_lens, strict=True)):
                first_seen = max(0, context - queries - self.window + 1)
                tables[row, : first_seen // self.block_size] = 0
        return tables

    def expected(self, case: PagedCase) -> Tensor:
        """The reference's answer, with the scales of an fp8 cache applied."""
        k_scale, v_scale = self.scales("cpu")
        k, v = case.k_cache.double(), case.v_cache.double()
        if k_scale is not None and v_scale is not None:
            k, v = k * k_scale[:, None], v * v_scale[:, None]
        q = case.q.double()
        if self.query_lens is None:
            return reference.paged_decode(
                q,
                k,
                v,
                case.block_tables,
                case.context_lens,
                scale=self.scale,
                window=self.window,
                softcap=self.softcap,
            )
        return reference.paged_prefill(
            q,
            k,
            v,
            case.block_tables,
            case.context_lens,
            case.query_start_loc,
            scale=self.scale,
            window=self.window,
            softcap=self.softcap,
        )

    def scales(self, device: str) -> tuple[Tensor | None, Tensor | None]:
        """Of an fp8 cache: different for each head, and not powers of two."""
        if not self.fp8:
            return None, None
        steps = torch.arange(self.num_kv_heads, dtype=torch.float32, device=device)
        return 0.7 + 0.1 * steps, 1.3 - 0.1 * steps

    def run(self, case: PagedCase, layout: str, device: str, dtype: torch.dtype) -> Tensor:
        """Attend with the kernel; queries and results are parts of wider tensors, so that no stride is usual."""
        from kvkernels.layout import FP8, KVLayout, page_shapes, paged_kv

        kept = FP8 if self.fp8 else dtype
        num_blocks = len(case.k_cache)
        pages = page_shapes(
            KVLayout(layout),
            block_size=self.block_size,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            dtype=kept,
        )
        pools = [torch.empty(num_blocks, *page, dtype=kept, device=device) for page in pages]
        k_scale, v_scale = self.scales(device)
        cache = paged_kv(KVLayout(layout), *pools, k_scale=k_scale, v_scale=v_scale)
        cache.k.copy_(case.k_cache.unflatten(3, (-1, cache.chunk)).to(device, kept))
        cache.v.copy_(case.v_cache.to(device, kept))
        fused = torch.cat([case.q, case.q[:, : 2 * self.num_kv_heads] * NAN], dim=1).to(device)
        q = fused[:, : self.num_heads]
        out = torch.full((*q.shape, 2), NAN, dtype=dtype, device=device)[..., 0]
        tables, lens = case.block_tables.to(device), case.context_lens.to(device)
        if self.query_lens is None:
            self.decode(q, cache, tables, lens, out)
        else:
            self.prefill(q, cache, tables, lens, case.query_start_loc.to(device), out)
        return out.cpu()

    def decode(self, q: Tensor, cache: Any, tables: Tensor, lens: Tensor, out: Tensor) -> None:
        """One token a row."""
        from kvkernels.paged_decode import paged_decode, plan_decode

        plan = plan_decode(
            lens.cpu().numpy(),
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            device=q.device,
            window=self.window,
        )
        paged_decode(q, cache, tables, lens, plan, **self.scores, out=out)

    def prefill(self, q: Tensor, cache: Any, tables: Tensor, lens: Tensor, starts: Tensor, out: Tensor) -> None:
        """A chunk a row."""
        from kvkernels.paged_prefill import paged_prefill, plan_prefill

        tiles = plan_prefill(
            starts.diff().cpu().numpy(),
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            dtype=q.dtype,
            device=q.device,
        )
        paged_prefill(q, cache, tables, lens, starts, tiles, **self.scores, out=out)


def alone_and_in_company_case(attend: Attend) -> Case:
    """Every row's result is the same, to the bit, when it is the only one of its step."""

    def run(device: str, dtype: torch.dtype) -> None:
        case = attend.paged_case(dtype)
        together = attend.run(case, "block_major", device, dtype)
        starts = case.query_start_loc.tolist()
        for row, context_len in enumerate(attend.context_lens):
            tokens = slice(starts[row], starts[row + 1])
            single = replace(
                attend,
                context_lens=[context_len],
                query_lens=None if attend.query_lens is None else [attend.query_lens[row]],
            )
            own = replace(
                case,
                q=case.q[tokens],
                block_tables=case.block_tables[row : row + 1],
                context_lens=case.context_lens[row : row + 1],
                query_start_loc=torch.tensor([0, starts[row + 1] - starts[row]], dtype=torch.int32),
            )
            alone = single.run(own, "block_major", device, dtype)
            assert torch.equal(alone, together[tokens]), f"row {row} depends on its neighbours"

    return each_dtype(run)


def padded_step_case() -> Case:
    """A plan may be longer than its step, as a recorded graph needs it: parts of row -1 do nothing."""

    def run(device: str, dtype: torch.dtype) -> None:
        from kvkernels.layout import KVLayout, paged_kv
        from kvkernels.paged_decode import paged_decode, plan_decode

        attend = Attend(context_lens=[300, 0, 7], num_heads=2, head_dim=16)
        case = attend.paged_case(dtype)
        plan = plan_decode(case.context_lens.numpy(), num_heads=2, head_dim=16, device=torch.device(device))
        parts = torch.nn.functional.pad(plan.parts, (0, 0, 0, 3), value=-1)
        padded = replace(
            plan,
            parts=parts,
            partial=torch.full((len(parts), 2, 16), NAN, device=device),
            logsum=torch.full((len(parts), 2), NAN, device=device),
        )
        cache = paged_kv(KVLayout.BLOCK_MAJOR, case.k_cache.to(device), case.v_cache.to(device))
        tables, lens = case.block_tables.to(device), case.context_lens.to(device)

        out = paged_decode(case.q.to(device), cache, tables, lens, padded, scale=attend.scale)

        assert_close(out, attend.expected(case), dtype)
        assert padded.partial[-3:].isnan().all(), "parts of padding were written"
        assert padded.logsum[-3:].isnan().all(), "parts of padding were written"

    return each_dtype(run)


def kept_plan_case() -> Case:
    """One plan, filled for one step after the other: what the last step left in it is not seen."""

    def run(device: str, dtype: torch.dtype) -> None:
        from kvkernels.layout import KVLayout, paged_kv
        from kvkernels.paged_decode import keep_decode_plan, paged_decode, refill_decode_plan

        # One workspace for two plans, the smaller of which has no room for a second part.
        partial, logsum = torch.full((7, 2, 16), NAN, device=device), torch.full((7, 2), NAN, device=device)
        plans = [keep_decode_plan(3, parts, partial=partial, logsum=logsum) for parts in (7, 3)]
        for context_lens, window, plan in (
            ([600, 0, 300], None, plans[0]),
            ([7, 40, 0], None, plans[1]),
            ([3, 520, 40], None, plans[0]),
            ([600, 0, 300], 20, plans[0]),
        ):
            attend = Attend(context_lens=context_lens, num_heads=2, head_dim=16, window=window)
            case = attend.paged_case(dtype)
            refill_decode_plan(plan, case.context_lens.numpy(), window=window)
            cache = paged_kv(KVLayout.BLOCK_MAJOR, case.k_cache.to(device), case.v_cache.to(device))
            out = paged_decode(
                case.q.to(device), cache, case.block_tables.to(device), case.context_lens.to(device), plan,
                scale=attend.scale, window=window,
            )  # fmt: skip
            assert_close(out, attend.expected(case), dtype)
        with pytest.raises(ValueError, match="4 parts do not fit into a plan of 3"):
            refill_decode_plan(plans[1], torch.tensor([300, 1, 1], dtype=torch.int32).numpy())

    return each_dtype(run)


def far_block_case() -> Case:
    """Blocks beyond 2**31 elements of a pool of which only the touched pages ever exist."""

    def run(device: str) -> None:
        from kvkernels.layout import FP8, KVLayout, paged_kv

        block_size, num_kv_heads, head_dim = 16, 8, 128
        num_blocks = 2**31 // (block_size * num_kv_heads * head_dim) + 2
        pools = [
            torch.empty(num_blocks, block_size, num_kv_heads, head_dim, dtype=FP8, device=device) for _ in range(2)
        ]
        generator = torch.Generator().manual_seed(0)
        k, v = (normal(generator, 3, num_kv_heads, head_dim).to(device, FP8) for _ in range(2))
        pools[0][-1, :3], pools[1][-1, :3] = k, v
        cache = paged_kv(KVLayout.BLOCK_MAJOR, *pools)
        q = normal(generator, 2, num_kv_heads, head_dim).to(device)
        tables = torch.tensor([[num_blocks - 1]], dtype=torch.int32, device=device)
        lens = torch.tensor([3], dtype=torch.int32, device=device)
        attend = Attend(context_lens=[3], num_heads=num_kv_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
        known = reference.causal_attention(q.double(), k.double(), v.double(), scale=attend.scale)
        decoded, filled = torch.empty_like(q[:1]), torch.empty_like(q)

        attend.decode(q[1:], cache, tables, lens, decoded)
        attend.prefill(q, cache, tables, lens, torch.tensor([0, 2], dtype=torch.int32, device=device), filled)

        assert_close(decoded, known[1:], torch.float32)
        assert_close(filled, known, torch.float32)

    return run


def fuzz_case(seed: int) -> Case:
    """A small random step: any heads, dimensions, blocks, window and lengths."""
    chance = random.Random(seed)
    num_rows = chance.randint(1, 4)
    contexts = [chance.choice([1, chance.randint(1, 80), chance.randint(1, 300)]) for _ in range(num_rows)]
    decodes = chance.random() < 0.5
    fp8 = chance.random() < 0.25
    num_kv_heads = chance.choice([1, 1, 2, 3])
    attend = Attend(
        context_lens=[chance.choice([context, context, 0]) for context in contexts] if decodes else contexts,
        query_lens=None if decodes else [chance.randint(1, min(context, 70)) for context in contexts],
        num_heads=num_kv_heads * chance.choice([1, 2, 3, 7, 20]),
        num_kv_heads=num_kv_heads,
        head_dim=chance.choice([4, 8, 16, 24, 40, 64]),
        block_size=chance.choice([1, 2, 4, 7, 16, 24, 64, 128]),
        window=chance.choice([None, None, 1, chance.randint(2, 90)]),
        fp8=fp8,
        chunks_too=chance.random() < 0.5,
        softcap=chance.choice([None, None, 0.5, 5.0]),
        seed=seed,
    )
    return each_dtype(attend)


RAGGED = [5, 17, 70, 0, 32]
CHUNKS = {"context_lens": [5, 17, 45, 16], "query_lens": [5, 3, 22, 1]}

CASES: dict[str, Case] = {
    "decode: G=3, head_dim 24, an empty row": each_dtype(Attend(context_lens=RAGGED, chunks_too=True)),
    "decode: one token": each_dtype(Attend(context_lens=[1], num_heads=1, head_dim=16)),
    "decode: only an empty row": each_dtype(Attend(context_lens=[0])),
    "decode: block size 1": each_dtype(Attend(context_lens=RAGGED, block_size=1, chunks_too=True)),
    "decode: blocks of 24, no power of two": each_dtype(Attend(context_lens=RAGGED, block_size=24, chunks_too=True)),
    "decode: blocks longer than a tile, half full": each_dtype(Attend(context_lens=[64, 40], block_size=128)),
    "decode: MHA": each_dtype(Attend(context_lens=RAGGED, num_heads=2, num_kv_heads=2, head_dim=32)),
    "decode: GQA 6/2": each_dtype(
        Attend(context_lens=RAGGED, num_heads=6, num_kv_heads=2, head_dim=64, block_size=4, chunks_too=True)
    ),
    "decode: head_dim 128": each_dtype(Attend(context_lens=[33], num_heads=4, head_dim=128, chunks_too=True)),
    "decode: head_dim 8, less than a dot takes": each_dtype(Attend(context_lens=RAGGED, head_dim=8)),
    "decode: 20 query heads on one": each_dtype(Attend(context_lens=[40], num_heads=20, head_dim=16)),
    "decode: 71 query heads on one": each_dtype(Attend(context_lens=[40], num_heads=71, head_dim=16)),
    "decode: three parts": each_dtype(Attend(context_lens=[600, 3], num_heads=2, head_dim=16, block_size=64)),
    "decode: exactly two parts, and one": float16_only(Attend(context_lens=[512, 256, 257], num_heads=1, head_dim=16)),
    "decode: more parts than a tile of the sum": float16_only(
        Attend(context_lens=[4700], num_heads=8, head_dim=16, block_size=128, rising=True)
    ),
    "decode: soft-capped": each_dtype(Attend(context_lens=[40, 1, 300], softcap=1.5, chunks_too=True)),
    "decode: window 1": each_dtype(Attend(context_lens=[40, 1], window=1)),
    "decode: window 20": each_dtype(Attend(context_lens=[90, 20, 21, 3], window=20, block_size=4, chunks_too=True)),
    "decode: a window over two parts": float16_only(Attend(context_lens=[600], window=300, num_heads=2, head_dim=16)),
    "decode: a window in a later part": each_dtype(Attend(context_lens=[600, 512], window=60, head_dim=16)),
    "decode: fp8 cache": each_dtype(
        Attend(context_lens=RAGGED, num_heads=6, num_kv_heads=2, head_dim=32, fp8=True, chunks_too=True)
    ),
    "decode: fp8 cache, two parts": each_dtype(Attend(context_lens=[300], num_heads=2, head_dim=16, fp8=True)),
    "decode: the same alone": alone_and_in_company_case(Attend(context_lens=[300, 5, 70, 0], head_dim=16)),
    "decode, prefill: past 2**31 elements": far_block_case(),
    "decode: a padded plan": padded_step_case(),
    "decode: a plan that is kept": kept_plan_case(),
    "prefill: G=3, head_dim 24, chunks": each_dtype(Attend(**CHUNKS, chunks_too=True)),
    "prefill: one token": each_dtype(Attend(context_lens=[1], query_lens=[1], num_heads=1, head_dim=16)),
    "prefill: block size 1": each_dtype(Attend(**CHUNKS, block_size=1, chunks_too=True)),
    "prefill: blocks of 24": each_dtype(Attend(**CHUNKS, block_size=24)),
    "prefill: a block longer than the context": each_dtype(Attend(context_lens=[40], query_lens=[40], block_size=128)),
    "prefill: MHA": each_dtype(Attend(**CHUNKS, num_heads=2, num_kv_heads=2, head_dim=32)),
    "prefill: GQA 6/2": each_dtype(
        Attend(**CHUNKS, num_heads=6, num_kv_heads=2, head_dim=64, block_size=4, chunks_too=True)
    ),
    "prefill: head_dim 128": each_dtype(
        Attend(context_lens=[20], query_lens=[9], num_heads=4, head_dim=128, chunks_too=True)
    ),
    "prefill: 71 query heads on one": each_dtype(Attend(context_lens=[20], query_lens=[3], num_heads=71, head_dim=16)),
    "prefill: rows without a token": each_dtype(Attend(context_lens=[0, 20, 9], query_lens=[0, 4, 0], head_dim=16)),
    "prefill: soft-capped": each_dtype(Attend(**CHUNKS, softcap=1.5, chunks_too=True)),
    "prefill: soft-capped, window 9": each_dtype(Attend(**CHUNKS, softcap=0.7, window=9)),
    "prefill: window 1": each_dtype(Attend(**CHUNKS, window=1)),
    "prefill: window 9": each_dtype(Attend(**CHUNKS, window=9, block_size=4, chunks_too=True)),
    "prefill: a window longer than the context": each_dtype(Attend(**CHUNKS, window=500)),
    "prefill: fp8 cache": each_dtype(
        Attend(**CHUNKS, num_heads=6, num_kv_heads=2, head_dim=32, fp8=True, chunks_too=True)
    ),
    "prefill: the same alone": alone_and_in_company_case(Attend(**CHUNKS, head_dim=16)),
    **{f"attention: random batch {seed}": fuzz_case(seed) for seed in range(6)},
}
