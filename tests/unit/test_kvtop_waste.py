import pytest

from kvengine.allocators.kinds import AllocatorKind
from kvtop.waste import Allocation
from tests.pictures import a_picture


def test_the_tail_of_each_request_is_what_its_last_block_has_left():
    # Nine tokens computed in three blocks of four leave three slots, six in two blocks leave two: 5 of 20.
    waste = a_picture("aaaabbbbx", "cccccc").waste
    assert (waste.num_requests, waste.num_tokens) == (2, 15)
    assert waste.now == Allocation(allocated_slots=20, wasted_slots=5, num_fitting=2)
    assert waste.now.wasted_fraction == 0.25


def test_a_shared_block_is_allocated_once():
    # Two blocks shared by both, one more for each: four blocks, with three slots left in each last one.
    assert a_picture("aaaabbbbx", "aaaabbbby").waste.now == Allocation(
        allocated_slots=16, wasted_slots=6, num_fitting=2
    )


def test_contiguous_slabs_are_as_long_as_the_longest_request_could_be():
    # Fourteen tokens in a slab of 64 leave 50, as in the text book's picture; 28 blocks of 4 hold one slab.
    waste = a_picture("abcdefghijklmn", max_model_len=64, num_blocks=29).waste
    assert waste.contiguous == Allocation(allocated_slots=64, wasted_slots=50, num_fitting=1)
    assert waste.now == Allocation(allocated_slots=16, wasted_slots=2, num_fitting=1)


def test_buddy_slabs_are_the_next_power_of_two():
    # 9 tokens take 16 slots and 6 take 8.
    waste = a_picture("aaaabbbbx", "cccccc").waste
    assert waste.buddy == Allocation(allocated_slots=24, wasted_slots=9, num_fitting=2)


@pytest.mark.parametrize(
    ("allocator", "expected"),
    [
        # Requests of 9 and 6 tokens that may come to 18 and 15, in slabs of 20 or powers of two.
        (AllocatorKind.CONTIGUOUS, Allocation(allocated_slots=40, wasted_slots=25, num_fitting=2)),
        (AllocatorKind.BUDDY, Allocation(allocated_slots=48, wasted_slots=33, num_fitting=2)),
        (AllocatorKind.TOKEN_LEVEL, Allocation(allocated_slots=15, wasted_slots=0, num_fitting=2)),
    ],
)
def test_an_engine_that_reserves_wastes_all_that_no_token_has_come_to(
    allocator: AllocatorKind, expected: Allocation
) -> None:
    picture = a_picture(
        "aaaabbbbx", "cccccc", max_model_len=20, num_blocks=65, block_size=1, max_tokens=9, allocator=allocator
    )
    assert picture.facts.allocator == allocator
    assert picture.waste.now == expected


def test_without_requests_no_share_is_wasted():
    waste = a_picture(steps=1).waste
    assert waste.num_requests == 0
    assert waste.now.wasted_fraction is None
    assert waste.contiguous.wasted_fraction is None


def test_a_pool_too_small_for_all_slabs_says_how_many_it_holds():
    # 16 blocks of 4 are 64 slots: two slabs of 32.
    waste = a_picture("aaaab", "bbbbc", "ccccd", max_model_len=32).waste
    assert waste.contiguous.num_fitting == 2
    assert waste.num_requests == 3
    assert waste.contiguous.wasted_fraction == pytest.approx(1 - 15 / 96)
