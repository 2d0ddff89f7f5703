"""Paged attention, the references and the backends of a CPU, against contiguous attention written out in full."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kvengine.attention.base import AttentionBackend, ModelAttention
from kvengine.attention.native_backend import NativeBackend
from kvengine.attention.pools import KVScales
from kvengine.attention.torch_backend import TorchBackend
from kvengine.native.kernels import COMPUTE_TYPES, native_kernels
from kvkernels import reference
from tests.differential.backend_steps import a_spec, attend_step, fill_cache
from tests.differential.paged_case import PagedCase, a_paged_case, plain_attention

SCALE = 24**-0.5
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Largest error of values near 1; the types keep 53, 24, 11 and 8 bits."""

DECODES = [1, 16, 17, 31, 1, 64, 5]
CHUNKS = [(1, 1), (5, 5), (16, 16), (33, 2), (40, 40), (17, 16), (50, 7)]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(3, 1), (4, 4), (8, 2)])
def test_reference_decode_equals_contiguous_attention(
    block_size: int, num_heads: int, num_kv_heads: int, dtype: torch.dtype
) -> None:
    case = a_paged_case(
        context_lens=DECODES,
        query_lens=[1] * len(DECODES),
        block_size=block_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        dtype=dtype,
    )

    out = reference.paged_decode(case.q, case.k_cache, case.v_cache, case.block_tables, case.context_lens, scale=SCALE)

    assert out.dtype == dtype
    assert_close(out, plain_attention(case, scale=SCALE), dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("block_size", [1, 16])
def test_reference_prefill_equals_contiguous_attention(block_size: int, dtype: torch.dtype) -> None:
    case = a_chunked_case(block_size, dtype)

    out = reference.paged_prefill(
        case.q,
        case.k_cache,
        case.v_cache,
        case.block_tables,
        case.context_lens,
        case.query_start_loc,
        scale=SCALE,
    )

    assert_close(out, plain_attention(case, scale=SCALE), dtype)


@pytest.mark.parametrize("window", [1, 3, 16, 60])
def test_reference_windows_equal_contiguous_attention_over_the_last_tokens(window: int) -> None:
    case = a_chunked_case(4, torch.float64)

    out = reference.paged_prefill(
        case.q,
        case.k_cache,
        case.v_cache,
        case.block_tables,
        case.context_lens,
        case.query_start_loc,
        scale=SCALE,
        window=window,
    )

    assert_close(out, plain_attention(case, scale=SCALE, window=window), torch.float64)


def test_reference_gives_zeros_for_padding_rows_and_padding_tokens() -> None:
    case = a_paged_case(context_lens=[3, 4], query_lens=[1, 1], block_size=2)
    lens = torch.tensor([3, 0], dtype=torch.int32)

    decoded = reference.paged_decode(case.q, case.k_cache, case.v_cache, case.block_tables, lens, scale=SCALE)
    starts = torch.tensor([0, 1, 1], dtype=torch.int32)
    filled = reference.paged_prefill(case.q, case.k_cache, case.v_cache, case.block_tables, lens, starts, scale=SCALE)

    assert decoded[1].abs().max() == 0
    assert filled[1].abs().max() == 0
    assert decoded[0].abs().max() > 0


class Making:
    """Makes one kind of backend, and says which types it computes in."""

    def __init__(self, name: str) -> None:
        self.name = name

    def backend(self, case: PagedCase, *, num_layers: int = 1, **options: Any) -> AttentionBackend:
        spec = a_spec(case, num_layers=num_layers)
        model = ModelAttention.plain(spec, num_heads=case.q.shape[1])
        common: dict[str, Any] = {"model": model, "dtype": case.q.dtype, **options}
        if self.name == "torch":
            return TorchBackend(spec, len(case.k_cache), device=torch.device("cpu"), **common)
        kernels = native_kernels()
        if isinstance(kernels, str):
            pytest.skip(kernels)
        if case.q.dtype not in COMPUTE_TYPES:
            pytest.skip(f"the kernels do not compute in {case.q.dtype}")
        return NativeBackend(kernels, spec, len(case.k_cache), **common)

    def run(self, case: PagedCase, num_decodes: int) -> Tensor:
        backend = self.backend(case)
        fill_cache(backend, case)
        return attend_step(backend, case, num_decodes=num_decodes)


@pytest.fixture(params=["torch", "native"])
def making(request: pytest.FixtureRequest) -> Making:
    return Making(request.param)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(3, 1), (4, 4), (8, 2)])
def test_a_backend_equals_contiguous_attention_for_a_mixed_step(
    making: Making, block_size: int, num_heads: int, num_kv_heads: int, dtype: torch.dtype
) -> None:
    lengths = [(length, 1) for length in DECODES] + [chunk for chunk in CHUNKS if chunk[1] > 1]
    case = a_paged_case(
        context_lens=[context for context, _ in lengths],
        query_lens=[queries for _, queries in lengths],
        block_size=block_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        dtype=dtype,
    )

    out = making.run(case, num_decodes=len(DECODES))

    assert_close(out, plain_attention(case, scale=SCALE), dtype)


@pytest.mark.parametrize("num_decodes", [0, 3])
def test_a_backend_takes_steps_of_one_kind(making: Making, num_decodes: int) -> None:
    query_lens = [1, 1, 1] if num_decodes else [4, 2, 9]
    case = a_paged_case(context_lens=[4, 30, 9], query_lens=query_lens, block_size=4, dtype=torch.float32)

    assert_close(making.run(case, num_decodes), plain_attention(case, scale=SCALE), torch.float32)


def test_a_backend_splits_decodes_of_very_different_lengths_without_mixing_them_up(making: Making) -> None:
    # 700 and 3 cannot share a group (at most twice as long, plus 64), and their order in the batch is not by length.
    case = a_paged_case(context_lens=[700, 3, 650, 5, 200], query_lens=[1] * 5, block_size=4, dtype=torch.float32)

    assert_close(making.run(case, num_decodes=5), plain_attention(case, scale=SCALE), torch.float32)


def test_a_backend_attends_a_chunk_longer_than_its_query_tile(making: Making) -> None:
    # 1,100 queries are three tiles of at most 512; 60 tokens came before.
    case = a_paged_case(
        context_lens=[1160], query_lens=[1100], block_size=16, num_heads=1, dtype=torch.float32, head_dim=24
    )
    expected = reference.causal_attention(case.q.double(), case.k[0].double(), case.v[0].double(), scale=SCALE)

    assert_close(making.run(case, num_decodes=0), expected, torch.float32)


def test_a_backend_workspace_serves_a_longer_step_after_a_shorter_one(making: Making) -> None:
    short = a_paged_case(context_lens=[3], query_lens=[1], block_size=4, dtype=torch.float32)
    long = a_paged_case(context_lens=[90, 80], query_lens=[1, 1], block_size=4, seed=1, dtype=torch.float32)
    backend = making.backend(long)

    for case in (long, short, long):
        fill_cache(backend, case)
        out = attend_step(backend, case, num_decodes=len(case.query_lens))
        assert_close(out, plain_attention(case, scale=SCALE), torch.float32)


def test_a_backend_copies_blocks_in_every_layer_for_keys_and_values(making: Making) -> None:
    case = a_paged_case(context_lens=[8], query_lens=[1], block_size=4, dtype=torch.float32)
    backend = making.backend(case, num_layers=2)
    fill_cache(backend, case, num_layers=2)
    first, second = case.block_tables[0, :2].tolist()
    free = next(block for block in range(1, len(case.k_cache)) if block not in (first, second))

    backend.copy_blocks([(second, free)])
    case.block_tables[0, 1] = free

    for layer in range(2):
        out = attend_step(backend, case, num_decodes=1, layer=layer)
        assert_close(out, plain_attention(case, scale=SCALE), torch.float32)


def test_reported_cache_bytes_are_what_the_geometry_says(making: Making) -> None:
    case = a_paged_case(context_lens=[8], query_lens=[1], block_size=4, dtype=torch.float32)
    # Blocks: 2 used and 3 more; 2 layers, K and V, 4 tokens, 1 head of 24, 4 bytes.
    assert making.backend(case, num_layers=2).cache_bytes == 5 * 2 * 2 * 4 * 1 * 24 * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("num_kv_heads", [1, 3])
def test_a_cache_in_eight_bits_is_attended_to_as_what_it_keeps(
    making: Making, num_kv_heads: int, dtype: torch.dtype
) -> None:
    lengths = [(length, 1) for length in DECODES] + [chunk for chunk in CHUNKS if chunk[1] > 1]
    case = a_paged_case(
        context_lens=[context for context, _ in lengths],
        query_lens=[queries for _, queries in lengths],
        block_size=4,
        num_heads=6,
        num_kv_heads=num_kv_heads,
        dtype=dtype,
    )
    k_scale, v_scale = torch.tensor([0.5, 2.0, 1.0])[:num_kv_heads], torch.tensor([4.0, 0.25, 1.0])[:num_kv_heads]
    backend = making.backend(case, cache_dtype=torch.float8_e4m3fn, scales=[KVScales(k_scale, v_scale)])
    assert backend.cache_bytes == 2 * case.k_cache.numel()  # one byte an element, keys and values
    fill_cache(backend, case)

    out = attend_step(backend, case, num_decodes=len(DECODES))

    kept = replace(
        case,
        k=[reference.quantise(k, k_scale, torch.float8_e4m3fn).float() * k_scale[:, None] for k in case.k],
        v=[reference.quantise(v, v_scale, torch.float8_e4m3fn).float() * v_scale[:, None] for v in case.v],
    )
    assert_close(out, plain_attention(kept, scale=SCALE), dtype)


def test_copied_blocks_in_eight_bits_are_the_same_bits(making: Making) -> None:
    case = a_paged_case(context_lens=[8], query_lens=[1], block_size=4, dtype=torch.float32)
    backend = making.backend(case, cache_dtype=torch.float8_e4m3fn)
    fill_cache(backend, case)
    before = attend_step(backend, case, num_decodes=1)
    second = int(case.block_tables[0, 1])
    free = next(block for block in range(1, len(case.k_cache)) if block not in case.block_tables[0, :2].tolist())

    backend.copy_blocks([(second, free)])
    case.block_tables[0, 1] = free

    assert torch.equal(attend_step(backend, case, num_decodes=1), before)


def test_dependent_block_copies_are_refused() -> None:
    cache = torch.zeros(4, 2)
    for copies in ([(1, 2), (2, 3)], [(1, 3), (2, 3)], [(1, 1)]):
        with pytest.raises(ValueError, match="depend on each other"):
            reference.copy_blocks(cache, cache, copies)


def test_a_block_may_be_read_and_written_where_the_pools_are_two() -> None:
    device, host = torch.arange(8.0).view(4, 2), torch.zeros(3, 2)

    reference.copy_blocks(device, host, [(1, 2), (3, 1), (2, 0)])

    assert host.tolist() == [[4, 5], [6, 7], [2, 3]]


def a_chunked_case(block_size: int, dtype: torch.dtype) -> PagedCase:
    return a_paged_case(
        context_lens=[context for context, _ in CHUNKS],
        query_lens=[queries for _, queries in CHUNKS],
        block_size=block_size,
        dtype=dtype,
    )


def assert_close(out: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert torch.isfinite(out).all()
    torch.testing.assert_close(out.double(), expected, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])
