"""Blocks and tokens as vLLM counts them."""

from fractions import Fraction

from kvplan.capacity import Capacity, EngineKind, count_blocks
from tests.builders import a_kv_cache_spec


def a_capacity(engine: EngineKind, *, blocks: int, longest: int, spare_bytes: int = 0) -> Capacity:
    """Blocks of 4 tokens, 16 bytes each."""
    spec = a_kv_cache_spec(block_size=4)
    return count_blocks(spec, engine, available_bytes=blocks * spec.block_bytes + spare_bytes, max_model_len=longest)


def test_the_printed_tokens_are_concurrency_times_length_not_blocks_times_size() -> None:
    # A request of 10 tokens takes 3 blocks: 20 / 3 requests, 66.67 tokens; the blocks have 80 slots.
    capacity = a_capacity(EngineKind.VLLM, blocks=20, longest=10)

    assert capacity.max_concurrency == Fraction(20, 3)
    assert capacity.kv_cache_tokens == 66
    assert a_capacity(EngineKind.PAGED, blocks=20, longest=10).kv_cache_tokens == 80


def test_a_part_of_a_block_is_no_block_but_counts_in_the_check() -> None:
    capacity = a_capacity(EngineKind.VLLM, blocks=4, longest=12, spare_bytes=15)

    assert (capacity.num_blocks, capacity.usable_blocks) == (4, 3)
    assert capacity.checked_bytes == 3 * 16 + 15
    assert capacity.holds_one_request
    assert capacity.longest_fit == 12


def test_the_textbook_has_no_null_block() -> None:
    assert a_capacity(EngineKind.PAGED, blocks=3, longest=12).holds_one_request
    assert not a_capacity(EngineKind.VLLM, blocks=3, longest=12).holds_one_request
    assert a_capacity(EngineKind.VLLM, blocks=3, longest=12).longest_fit == 8


def test_an_empty_pool_has_nothing_negative() -> None:
    capacity = a_capacity(EngineKind.VLLM, blocks=0, longest=12)

    assert (capacity.usable_blocks, capacity.checked_bytes, capacity.longest_fit, capacity.kv_cache_tokens) == (
        0,
        0,
        0,
        0,
    )
