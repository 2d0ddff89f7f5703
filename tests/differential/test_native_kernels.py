"""The compiled kernels of the CPU against the references in float64, at shapes that fill no vector and no block."""

import math

import pytest
import torch
from torch import Tensor

from kvengine.native.kernels import COMPUTE_TYPES, NativeKernels, native_kernels
from kvkernels import reference
from tests.differential.paged_case import PagedCase, a_paged_case

TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Largest error of values near 1; the types keep 24, 11 and 8 bits."""
LENGTHS = [1, 16, 17, 31, 1, 64, 5, 130]


@pytest.fixture(scope="module")
def kernels() -> NativeKernels:
    found = native_kernels()
    if isinstance(found, str):
        pytest.skip(found)
    return found


def head_major(cache: Tensor, dtype: torch.dtype) -> Tensor:
    """From the references' [num_blocks, block_size, num_kv_heads, head_dim] to the kernels' order."""
    return cache.to(dtype).transpose(1, 2).contiguous()


def a_case(lengths: list[int] = LENGTHS, *, dtype: torch.dtype = torch.float32, **shape: int) -> PagedCase:
    return a_paged_case(
        context_lens=lengths, query_lens=[1] * len(lengths), dtype=dtype, **{"block_size": 4, "head_dim": 24, **shape}
    )


def decoded(kernels: NativeKernels, case: PagedCase, **options: float | int | None) -> Tensor:
    out = torch.full_like(case.q, float("nan"))
    kernels.attend(
        case.q,
        head_major(case.k_cache, case.q.dtype),
        head_major(case.v_cache, case.q.dtype),
        case.block_tables,
        case.context_lens,
        out,
        **{"scale": case.q.shape[2] ** -0.5, **options},
    )
    return out.double()


def expected_of(case: PagedCase, window: int | None = None) -> Tensor:
    return reference.paged_decode(
        case.q.double(),
        case.k_cache.double(),
        case.v_cache.double(),
        case.block_tables,
        case.context_lens,
        scale=case.q.shape[2] ** -0.5,
        window=window,
    )


@pytest.mark.parametrize("dtype", COMPUTE_TYPES)
@pytest.mark.parametrize("block_size", [1, 3, 8, 16, 64, 128])
@pytest.mark.parametrize("heads", [(3, 1), (4, 4), (8, 2), (7, 1), (10, 2)], ids=str)
@pytest.mark.parametrize("head_dim", [24, 64])
def test_attention_is_the_references(
    kernels: NativeKernels, dtype: torch.dtype, block_size: int, heads: tuple[int, int], head_dim: int
) -> None:
    case = a_case(dtype=dtype, block_size=block_size, num_heads=heads[0], num_kv_heads=heads[1], head_dim=head_dim)

    torch.testing.assert_close(decoded(kernels, case), expected_of(case), atol=TOLERANCES[dtype], rtol=0)


@pytest.mark.parametrize("head_dim", [1, 8, 16, 80, 96, 128, 130, 256])
def test_attention_takes_heads_of_any_size(kernels: NativeKernels, head_dim: int) -> None:
    case = a_case(head_dim=head_dim)
    torch.testing.assert_close(decoded(kernels, case), expected_of(case), atol=2e-6, rtol=0)


@pytest.mark.parametrize("window", [1, 3, 16, 60, 511, 513, 10_000])
def test_a_window_hides_what_is_older(kernels: NativeKernels, window: int) -> None:
    case = a_case([1, 5, 64, 700, 1030])
    out = decoded(kernels, case, window=window)
    torch.testing.assert_close(out, expected_of(case, window), atol=2e-6, rtol=0)


def test_contexts_longer_than_a_part_are_merged(kernels: NativeKernels) -> None:
    case = a_case([512, 513, 1024, 1500, 2], num_heads=6, num_kv_heads=2, block_size=16)
    torch.testing.assert_close(decoded(kernels, case), expected_of(case), atol=2e-6, rtol=0)


def test_scores_far_apart_do_not_overflow(kernels: NativeKernels) -> None:
    case = a_case([40, 900])
    case.k_cache.mul_(300)  # scores of some hundreds: e ** 300 is beyond float32
    torch.testing.assert_close(decoded(kernels, case), expected_of(case), atol=2e-4, rtol=0)


def test_a_softcap_bounds_the_scores(kernels: NativeKernels) -> None:
    case = a_case([19], num_heads=1, head_dim=8)
    k, v = case.k[0][:, 0].double(), case.v[0][:, 0].double()
    scores = 2 * torch.tanh(case.q[0, 0].double() @ k.T * 8**-0.5 / 2)
    expected = scores.softmax(dim=0) @ v

    torch.testing.assert_close(decoded(kernels, case, softcap=2.0)[0, 0], expected, atol=2e-6, rtol=0)


def test_latent_rows_are_keys_whose_beginning_is_the_value(kernels: NativeKernels) -> None:
    case = a_case(num_heads=5, num_kv_heads=1, head_dim=40)
    rows = head_major(case.k_cache, torch.float32)
    out = torch.empty(len(LENGTHS), 5, 24)

    kernels.attend(case.q, rows, rows, case.block_tables, case.context_lens, out, scale=0.2)

    expected = reference.paged_decode(
        case.q.double(),
        case.k_cache.double(),
        case.k_cache.double(),
        case.block_tables,
        case.context_lens,
        scale=0.2,
    )
    torch.testing.assert_close(out.double(), expected[..., :24], atol=2e-6, rtol=0)


def test_a_row_without_tokens_gets_zeros_and_its_table_is_not_read(kernels: NativeKernels) -> None:
    case = a_case([3, 7, 5])
    case.context_lens[1] = 0
    case.block_tables[1] = 2**30

    out = decoded(kernels, case)

    assert out[1].abs().max() == 0
    torch.testing.assert_close(out[::2], expected_of(case)[::2], atol=2e-6, rtol=0)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_result_depends_neither_on_neighbours_nor_on_threads(kernels: NativeKernels, num_threads: int) -> None:
    case = a_case([1200, 3, 700], num_heads=9, num_kv_heads=3, head_dim=64)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        together = decoded(kernels, case)
    finally:
        torch.set_num_threads(before)
    alone = torch.empty_like(case.q[:1])
    keys, values = head_major(case.k_cache, torch.float32), head_major(case.v_cache, torch.float32)
    kernels.attend(case.q[2:], keys, values, case.block_tables[2:], case.context_lens[2:], alone, scale=64**-0.5)

    assert torch.equal(together[2], alone[0].double())


def test_queries_may_lie_between_keys_and_values(kernels: NativeKernels) -> None:
    case = a_case(num_heads=4, num_kv_heads=2)
    packed = torch.full((len(LENGTHS), 8, 24), float("nan"))
    packed[:, :4] = case.q
    keys, values = head_major(case.k_cache, torch.float32), head_major(case.v_cache, torch.float32)
    out = torch.empty_like(case.q)

    kernels.attend(packed[:, :4], keys, values, case.block_tables, case.context_lens, out, scale=24**-0.5)

    torch.testing.assert_close(out.double(), expected_of(case), atol=2e-6, rtol=0)


@pytest.mark.parametrize("dtype", COMPUTE_TYPES)
@pytest.mark.parametrize("window", [None, 9])
def test_the_tokens_of_chunks_see_what_is_before_them(
    kernels: NativeKernels, dtype: torch.dtype, window: int | None
) -> None:
    case = a_paged_case(
        context_lens=[33, 1, 70, 600], query_lens=[2, 1, 70, 90], block_size=4, num_heads=6, num_kv_heads=2, dtype=dtype
    )
    counts = case.query_start_loc.diff()
    rows = torch.repeat_interleave(torch.arange(4), counts).int()
    places = torch.cat([torch.arange(count) for count in counts.tolist()])
    lengths = (case.context_lens - counts)[rows.long()] + places + 1
    out = torch.empty_like(case.q)

    kernels.attend(
        case.q,
        head_major(case.k_cache, dtype),
        head_major(case.v_cache, dtype),
        case.block_tables,
        lengths.int(),
        out,
        rows=rows,
        window=window,
        scale=0.2,
    )

    expected = reference.paged_prefill(
        case.q.double(),
        case.k_cache.double(),
        case.v_cache.double(),
        case.block_tables,
        case.context_lens,
        case.query_start_loc,
        scale=0.2,
        window=window,
    )
    torch.testing.assert_close(out.double(), expected, atol=TOLERANCES[dtype], rtol=0)


# ---------------------------------------------------------------------- storage


@pytest.mark.parametrize("dtype", COMPUTE_TYPES)
@pytest.mark.parametrize("cache_dtype", [*COMPUTE_TYPES, torch.float8_e4m3fn])
def test_storing_is_torchs_conversion(kernels: NativeKernels, dtype: torch.dtype, cache_dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    # Far from one another and within the range of both types: 2 ** -8 to 2 ** 8.
    rows = torch.randn(5, 3, 20, generator=generator) * torch.exp2(torch.randint(-8, 8, (5, 3, 20)).float())
    packed = rows.clamp(-400, 400).to(dtype)
    pool = torch.zeros(4, 3, 2, 20, dtype=torch.float32).to(cache_dtype)
    slots = torch.tensor([7, -1, 2, 5, 0])  # blocks 3, none, 1, 2, 0

    kernels.store(packed, slots, pool)

    stored = packed.to(cache_dtype).float()
    expected = torch.zeros(4, 3, 2, 20)
    expected[3, :, 1], expected[1, :, 0], expected[2, :, 1], expected[0, :, 0] = stored[[0, 2, 3, 4]]
    assert torch.equal(pool.float(), expected)


def test_eight_bits_round_as_torch_does_and_keep_what_is_too_large_at_the_largest(kernels: NativeKernels) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    pool = torch.zeros(1, 1, 1, 2**16).to(torch.float8_e4m3fn)

    kernels.store(every.view(1, 1, -1), torch.tensor([0]), pool)

    expected = every.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    torch.testing.assert_close(pool.flatten().float(), expected, atol=0, rtol=0, equal_nan=True)


def test_every_eight_bit_code_is_read_as_torch_reads_it(kernels: NativeKernels) -> None:
    pool = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn).view(1, 1, 1, 256)
    keys, out = torch.zeros_like(pool), torch.empty(1, 1, 256)
    one = torch.ones(1, dtype=torch.int32)

    # Of a single token the value is all that there is to blend.
    kernels.attend(torch.zeros(1, 1, 256), keys, pool, torch.zeros(1, 1, dtype=torch.int32), one, out, scale=1.0)

    torch.testing.assert_close(out.flatten(), pool.flatten().float(), atol=0, rtol=0, equal_nan=True)
    assert out.isnan().sum() == 2


def test_scales_of_heads_go_in_and_come_out(kernels: NativeKernels) -> None:
    case = a_case([30, 7], num_heads=6, num_kv_heads=2, head_dim=64)
    keys, values = head_major(case.k_cache, torch.float32), head_major(case.v_cache, torch.float32)
    blocks, heads, block_size, head_dim = keys.shape
    scales = torch.tensor([0.5, 2.0]), torch.tensor([4.0, 0.25])
    rows = torch.arange(blocks * block_size)
    pools = []
    for wide, scale in zip((keys, values), scales, strict=True):
        pool = torch.zeros(wide.shape).to(torch.float8_e4m3fn)
        kernels.store(wide.transpose(1, 2).reshape(-1, heads, head_dim).contiguous(), rows, pool, scale=scale)
        pools.append(pool)
    out = torch.empty_like(case.q)
    kernels.attend(
        case.q,
        *pools,
        case.block_tables,
        case.context_lens,
        out,
        scale=0.125,
        k_scale=scales[0],
        v_scale=scales[1],
    )

    wide = [(pool.float() * scale[:, None, None]).transpose(1, 2) for pool, scale in zip(pools, scales, strict=True)]
    # What was stored differs from what was meant by one part in 16, or half a step of 2 ** -9 at the larger scale.
    real = case.k_cache.abs() < 100
    assert ((wide[0] - case.k_cache).abs()[real] <= case.k_cache.abs()[real] / 16 + 2e-3).all()
    expected = reference.paged_decode(
        case.q.double(), wide[0].double(), wide[1].double(), case.block_tables, case.context_lens, scale=0.125
    )
    torch.testing.assert_close(out.double(), expected, atol=3e-6, rtol=0)


# ---------------------------------------------------------------------- rows


@pytest.mark.parametrize("dtype", COMPUTE_TYPES)
@pytest.mark.parametrize("shape", [(1, 576), (5, 24), (300, 576), (3, 1)], ids=str)
def test_rms_norm_is_its_formula(kernels: NativeKernels, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(shape, generator=generator).to(dtype), torch.rand(shape[1], generator=generator).to(dtype)
    wide = x.double()
    expected = wide / (wide.square().mean(dim=1, keepdim=True) + 1e-5).sqrt() * weight.double()
    out = torch.empty_like(x)

    kernels.rms_norm(x, weight, out, epsilon=1e-5)

    torch.testing.assert_close(out.double(), expected, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", COMPUTE_TYPES)
def test_swiglu_holds_for_gates_of_any_size(kernels: NativeKernels, dtype: torch.dtype) -> None:
    gates = torch.tensor([[-200.0, -90.0, -30.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 30.0, 90.0, 200.0]] * 3).to(dtype)
    ups = torch.linspace(-2, 2, 33).view(3, 11).to(dtype)
    out = torch.empty_like(ups)

    kernels.swiglu(torch.cat((gates, ups), dim=1), out)

    wide = gates.double()
    expected = wide / (1 + torch.exp(-wide)) * ups.double()
    torch.testing.assert_close(out.double(), expected, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", COMPUTE_TYPES)
@pytest.mark.parametrize(("head_dim", "half"), [(8, 4), (64, 32), (24, 12), (64, 16)])
def test_rope_turns_pairs_and_leaves_the_rest(
    kernels: NativeKernels, dtype: torch.dtype, head_dim: int, half: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    packed = torch.randn(6, 5, head_dim, generator=generator).to(dtype)
    before = packed.double()
    angles = torch.rand(6, half, generator=generator) * 2 * math.pi
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)

    kernels.rope(packed[:, :3], cos, sin)

    c, s = cos.double()[:, None], sin.double()[:, None]
    first, second = before[:, :3, :half], before[:, :3, half : 2 * half]
    tolerance = TOLERANCES[dtype] * 2
    torch.testing.assert_close(packed[:, :3, :half].double(), first * c - second * s, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(
        packed[:, :3, half : 2 * half].double(), second * c + first * s, atol=tolerance, rtol=tolerance
    )
    assert torch.equal(packed[:, :3, 2 * half :].double(), before[:, :3, 2 * half :])
    assert torch.equal(packed[:, 3:].double(), before[:, 3:])
