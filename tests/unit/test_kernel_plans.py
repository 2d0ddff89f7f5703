"""How a step's attention is dealt to programs."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="needs triton, which has no wheel for this machine")

from kvkernels.layout import FP8, KVLayout, page_shapes, paged_kv, true_values
from kvkernels.paged_decode import decode_parts
from kvkernels.paged_prefill import plan_prefill

CPU = torch.device("cpu")


def parts(context_lens: list[int], window: int | None = None) -> tuple[list[list[int]], list[int]]:
    listed = decode_parts(np.array(context_lens, dtype=np.int32), window=window)
    return listed.parts.tolist(), listed.row_starts.tolist()


def test_a_context_has_a_part_for_every_256_tokens_and_an_empty_one_has_one() -> None:
    # 256 tokens are one part, 257 two, 600 three.
    assert parts([256, 0, 257, 600]) == (
        [[0, 0], [1, 0], [2, 0], [2, 1], [3, 0], [3, 1], [3, 2]],
        [0, 1, 2, 4, 7],
    )


def test_a_window_leaves_out_the_parts_before_it() -> None:
    # Of 600 tokens the last 80 are 520 .. 599, in part 2 (512 .. 767); the last 90 begin at 510, in part 1.
    assert parts([600], window=80) == ([[0, 2]], [0, 1])
    assert parts([600], window=90) == ([[0, 1], [0, 2]], [0, 2])
    assert parts([512], window=1) == ([[0, 1]], [0, 1])
    assert parts([0, 5], window=300) == ([[0, 0], [1, 0]], [0, 1, 2])


def test_no_rows_have_no_parts() -> None:
    assert parts([]) == ([], [0])


def test_a_chunk_has_a_tile_for_as_many_whole_tokens_as_fit_its_rows() -> None:
    # 64 rows take 21 tokens of 3 query heads: 43 tokens are 3 tiles, and no token none.
    tiles = plan_prefill(
        np.array([43, 0, 21, 1]), num_heads=9, num_kv_heads=3, head_dim=64, dtype=torch.bfloat16, device=CPU
    )
    assert tiles.tolist() == [[0, 0], [0, 21], [0, 42], [2, 0], [3, 0]]


def test_a_group_larger_than_a_tile_is_dealt_to_several_programs_a_token() -> None:
    # 71 heads go to two programs of 64 rows at most, so each tile is one token.
    tiles = plan_prefill(np.array([2]), num_heads=71, num_kv_heads=1, head_dim=64, dtype=torch.bfloat16, device=CPU)
    assert tiles.tolist() == [[0, 0], [0, 1]]


def test_key_chunks_of_16_bytes_lie_as_the_first_vllm_kernels_had_them() -> None:
    # [num_kv_heads, head_dim / x, block_size, x]: 8 elements of 16 bits, 16 of 8 bits.
    geometry = {"block_size": 16, "num_kv_heads": 8, "head_dim": 128}
    assert page_shapes(KVLayout.KEY_CHUNKS, **geometry, dtype=torch.bfloat16) == ((8, 16, 16, 8), (8, 128, 16))
    assert page_shapes(KVLayout.KEY_CHUNKS, **geometry, dtype=FP8) == ((8, 8, 16, 16), (8, 128, 16))
    assert page_shapes(KVLayout.BLOCK_MAJOR, **geometry, dtype=FP8) == ((16, 8, 128), (16, 8, 128))


def test_element_17_of_a_key_in_chunks_of_8_is_element_1_of_chunk_2() -> None:
    k_page, v_page = page_shapes(KVLayout.KEY_CHUNKS, block_size=4, num_kv_heads=2, head_dim=24, dtype=torch.float16)
    pools = [torch.zeros(3, *page, dtype=torch.float16) for page in (k_page, v_page)]
    pools[0][2, 1, 2, 3, 1] = 5.0  # block 2, head 1, chunk 2, token 3, element 1
    pools[1][2, 1, 17, 3] = 7.0

    k, v = true_values(paged_kv(KVLayout.KEY_CHUNKS, *pools), torch.float64)

    assert k[2, 3, 1, 17] == 5
    assert v[2, 3, 1, 17] == 7
    assert k.sum() == 5
    assert v.sum() == 7


def test_the_scale_of_a_head_is_applied_to_all_its_values() -> None:
    pool = torch.full((1, 2, 2, 4), 3.0).to(FP8)
    scale = torch.tensor([0.5, 2.0])
    k, v = true_values(paged_kv(KVLayout.BLOCK_MAJOR, pool, pool, k_scale=scale, v_scale=2 * scale), torch.float32)
    assert k[0, 0, :, 0].tolist() == [1.5, 6]
    assert v[0, 1, :, 3].tolist() == [3, 12]
