"""RMSNorm, SwiGLU, and rotary positions with the cache write."""

import torch

from kvkernels import reference
from tests.differential.kernel_cases.case import Case, assert_close, each_dtype, normal

EPS = 1e-5


def rms_norm_case(*shape: int, scale: float = 1.0) -> Case:
    """Normalise a slice of a wider tensor."""

    def run(device: str, dtype: torch.dtype) -> None:
        from kvkernels.rms_norm import rms_norm

        generator = torch.Generator().manual_seed(0)
        *rows, size = shape
        x = (scale * normal(generator, *rows, size + 3)).to(device, dtype)[..., 1 : size + 1]
        weight = normal(generator, size).to(device, dtype)

        got = rms_norm(x, weight, eps=EPS)

        assert got.dtype is dtype
        assert_close(got, reference.rms_norm(x.double(), weight.double(), eps=EPS), dtype)

    return each_dtype(run)


def add_rms_norm_case(num_tokens: int, size: int) -> Case:
    """Add, then normalise what the residual was rounded to."""

    def run(device: str, dtype: torch.dtype) -> None:
        from kvkernels.rms_norm import add_rms_norm

        generator = torch.Generator().manual_seed(0)
        x, residual = (normal(generator, num_tokens, size).to(device, dtype) for _ in range(2))
        weight = normal(generator, size).to(device, dtype)
        added = (x.float() + residual.float()).to(dtype)

        got = add_rms_norm(x, residual, weight, eps=EPS)

        assert torch.equal(residual, added), "the residual stream is not the sum"
        assert_close(got, reference.rms_norm(added.double(), weight.double(), eps=EPS), dtype)

    return each_dtype(run)


def swiglu_case(num_tokens: int, size: int) -> Case:
    """Gate and up side by side in rows that are further apart; very negative gates among them."""

    def run(device: str, dtype: torch.dtype) -> None:
        from kvkernels.swiglu import swiglu

        generator = torch.Generator().manual_seed(0)
        gate_up = (4 * normal(generator, num_tokens, 2 * size + 5)).to(device, dtype)[:, : 2 * size]
        gate_up[:, 0] = -300.0

        got = swiglu(gate_up)

        assert_close(got, reference.swiglu(gate_up.double()), dtype)

    return each_dtype(run)


def rope_store_case(
    *,
    slots: list[int],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    layout: str = "block_major",
    fp8: bool = False,
    in_place: bool = False,
) -> Case:
    """Turn queries and keys of a fused projection, and write keys and values."""

    def run(device: str, dtype: torch.dtype) -> None:
        from kvkernels.layout import FP8, KVLayout, page_shapes, paged_kv
        from kvkernels.rope_store import rope_store

        generator = torch.Generator().manual_seed(0)
        kept = FP8 if fp8 else dtype
        pages = page_shapes(KVLayout(layout), block_size=4, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=kept)
        num_blocks = max(slots) // 4 + 1
        # A guard block before the first: what is written for slot -1 would land there.
        guarded = [torch.zeros(num_blocks + 1, *page, device=device).to(kept) for page in pages]
        pools = [pool[1:] for pool in guarded]
        scale = torch.linspace(0.01, 0.02, num_kv_heads, device=device) if fp8 else None
        cache = paged_kv(KVLayout(layout), *pools, k_scale=scale, v_scale=scale)
        fused = normal(generator, len(slots), num_heads + 2 * num_kv_heads, head_dim).to(device, dtype)
        q, k, v = fused.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
        angles = 100 * normal(generator, len(slots), head_dim // 2)
        cos, sin = angles.cos().to(device, dtype), angles.sin().to(device, dtype)
        where = torch.tensor(slots, device=device)
        # Keys in float32: the kernel rounds the turned key once, to the cache's type.
        expected = [torch.zeros(num_blocks, 4, num_kv_heads, head_dim, device=device).to(kept) for _ in range(2)]
        turned = reference.rope(k.float(), cos.float(), sin.float())
        reference.store_kv(turned, v, *expected, where, k_scale=scale, v_scale=scale)
        known = reference.rope(q.double(), cos.double(), sin.double())

        out = q if in_place else torch.empty(q.shape, dtype=dtype, device=device)
        rope_store(q, k, v, cos, sin, cache, where, out=out)

        assert_close(out, known, dtype)
        for got, stored in zip((cache.k.flatten(3, 4), cache.v), expected, strict=True):
            # A GPU may fuse a product and a sum, which shows in the last bit: in fp8, one step of an eighth.
            step = 0.13 if fp8 and device == "cuda" else 1e-2 if device == "cuda" else 0
            error = (got.float() - stored.float()).abs()
            assert (error <= step * stored.float().abs()).all(), f"the cache is off by {error.max().item()}"
        assert all((pool[0].float() == 0).all() for pool in guarded), "something before the pool was written"

    return each_dtype(run)


CASES: dict[str, Case] = {
    "rms_norm: rows of 24": rms_norm_case(3, 24),
    "rms_norm: a row of 1": rms_norm_case(2, 1),
    "rms_norm: rows of 2,500": rms_norm_case(2, 2500),
    "rms_norm: heads": rms_norm_case(2, 3, 24),
    "rms_norm: rows near 0": rms_norm_case(2, 40, scale=1e-3),
    "rms_norm: no row": rms_norm_case(0, 24),
    "add_rms_norm: rows of 24": add_rms_norm_case(3, 24),
    "add_rms_norm: rows of 1,100": add_rms_norm_case(1, 1100),
    "swiglu: rows of 33": swiglu_case(3, 33),
    "swiglu: rows of 1,500": swiglu_case(2, 1500),
    "rope_store: 9/3 heads of 24, padding": rope_store_case(
        slots=[5, -1, 0, 7], num_heads=9, num_kv_heads=3, head_dim=24
    ),
    "rope_store: one head of 2": rope_store_case(slots=[3], num_heads=1, num_kv_heads=1, head_dim=2),
    "rope_store: key chunks": rope_store_case(
        slots=[5, -1, 8], num_heads=4, num_kv_heads=2, head_dim=32, layout="key_chunks"
    ),
    "rope_store: fp8": rope_store_case(slots=[1, 2], num_heads=4, num_kv_heads=2, head_dim=32, fp8=True),
    "rope_store: fp8 in key chunks": rope_store_case(
        slots=[1, 2], num_heads=4, num_kv_heads=2, head_dim=32, fp8=True, layout="key_chunks"
    ),
    "rope_store: queries in place": rope_store_case(
        slots=[1, 2], num_heads=4, num_kv_heads=2, head_dim=16, in_place=True
    ),
}
