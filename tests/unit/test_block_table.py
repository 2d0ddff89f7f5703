import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvengine.block_table import PAD_SLOT, kernel_block_ids, rank_slot_mapping, slot_mapping, slot_of


def test_a_slot_is_block_id_times_block_size_plus_offset() -> None:
    # Blocks [7, 2] of 4: positions 0..3 are slots 28..31, positions 4..7 slots 8..11.
    assert [slot_of([7, 2], position, 4) for position in range(6)] == [28, 29, 30, 31, 8, 9]


def test_blocks_of_one_token_have_slots_equal_to_their_ids() -> None:
    assert [slot_of([5, 3, 9], position, 1) for position in range(3)] == [5, 3, 9]


def test_a_batch_of_prefills_chunks_and_decodes_is_mapped_in_one_go() -> None:
    # Blocks of 4. First: whole prompt of 5 in [7, 2] -> 28..31, 8. Second: tokens 3..6 of [1, 6] -> 7, 24, 25, 26.
    # Third: one decode at position 8 of [9, 3, 5] -> 20.
    slots = slot_mapping([[7, 2], [1, 6], [9, 3, 5]], starts=[0, 3, 8], counts=[5, 4, 1], block_size=4)
    assert slots.dtype == np.int64
    assert slots.tolist() == [28, 29, 30, 31, 8, 7, 24, 25, 26, 20]


def test_an_empty_batch_has_no_slots() -> None:
    slots = slot_mapping([], starts=[], counts=[], block_size=16)
    assert slots.dtype == np.int64
    assert slots.tolist() == []


def test_slots_past_two_to_the_31_are_kept_whole() -> None:
    # Block 200,000,000 of 16 begins at slot 3,200,000,000.
    assert slot_mapping([[200_000_000]], starts=[1], counts=[1], block_size=16).tolist() == [3_200_000_001]


@given(data=st.data(), block_size=st.integers(1, 9))
def test_the_batch_agrees_with_one_token_at_a_time(data: st.DataObject, block_size: int) -> None:
    tables, starts, counts = [], [], []
    for _ in range(data.draw(st.integers(1, 5))):
        table = data.draw(st.lists(st.integers(1, 1000), min_size=1, max_size=6))
        start = data.draw(st.integers(0, len(table) * block_size - 1))
        tables.append(table)
        starts.append(start)
        counts.append(data.draw(st.integers(1, len(table) * block_size - start)))
    one_by_one = [
        slot_of(table, position, block_size)
        for table, start, count in zip(tables, starts, counts, strict=True)
        for position in range(start, start + count)
    ]
    assert slot_mapping(tables, starts, counts, block_size).tolist() == one_by_one


def test_ranks_deal_the_tokens_of_a_block_id_out_in_turn() -> None:
    # Two ranks, blocks of 4: id 3 holds positions 0..7. Even ones are slots 12..15 of rank 0, odd ones of rank 1.
    first, second = (
        rank_slot_mapping([[3]], starts=[0], counts=[8], block_size=4, num_ranks=2, rank=rank) for rank in (0, 1)
    )
    assert first.tolist() == [12, PAD_SLOT, 13, PAD_SLOT, 14, PAD_SLOT, 15, PAD_SLOT]
    assert second.tolist() == [PAD_SLOT, 12, PAD_SLOT, 13, PAD_SLOT, 14, PAD_SLOT, 15]


def test_neighbouring_tokens_may_stay_on_one_rank() -> None:
    # Pairs in turn: positions 0, 1, 4, 5 are on rank 0.
    slots = rank_slot_mapping([[3]], starts=[0], counts=[8], block_size=4, num_ranks=2, rank=0, interleave=2)
    assert slots.tolist() == [12, 13, PAD_SLOT, PAD_SLOT, 14, 15, PAD_SLOT, PAD_SLOT]


@given(num_ranks=st.integers(1, 4), size=st.integers(1, 6), length=st.integers(1, 40), data=st.data())
def test_every_token_has_a_slot_on_exactly_one_rank_and_no_slot_two_tokens(
    num_ranks: int, size: int, length: int, data: st.DataObject
) -> None:
    interleave = data.draw(st.sampled_from([part for part in range(1, size + 1) if size % part == 0]))
    table = list(range(1, -(-length // (size * num_ranks)) + 1))
    by_rank = [
        rank_slot_mapping([table], [0], [length], size, num_ranks=num_ranks, rank=rank, interleave=interleave)
        for rank in range(num_ranks)
    ]
    assert (np.sum([slots != PAD_SLOT for slots in by_rank], axis=0) == 1).all()
    for slots in by_rank:
        kept = slots[slots != PAD_SLOT]
        assert len(set(kept.tolist())) == len(kept)


def test_a_pool_block_is_several_neighbouring_kernel_blocks_and_the_null_block_stays_null() -> None:
    assert kernel_block_ids([7, 2], 2).tolist() == [14, 15, 4, 5]
    assert kernel_block_ids([0, 1], 3).tolist() == [0, 1, 2, 3, 4, 5]
    assert kernel_block_ids([7, 2], 1).tolist() == [7, 2]
    assert kernel_block_ids([7], 2).dtype == np.int32
