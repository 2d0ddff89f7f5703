import pytest

from kvengine.radix.page_pool import PagePool
from kvengine.radix.slot_pool import Growth, as_ids
from kvengine.radix.token_pool import TokenPool


def test_single_slots_start_at_one_and_freed_ones_go_to_the_back() -> None:
    pool = TokenPool(6)
    first = pool.try_allocate(4)
    assert first is not None
    assert first.tolist() == [1, 2, 3, 4]
    pool.free(first[1:3])
    # 5 and 6 were never used and still come before 2 and 3.
    assert pool.free_pages().tolist() == [5, 6, 2, 3]
    assert pool.try_allocate(5) is None
    assert pool.num_free == 4


def test_single_slots_keep_their_order_around_the_end_of_the_ring() -> None:
    pool = TokenPool(5)
    for _ in range(7):
        # Three are taken and given back each time: the ring of five turns by three.
        slots = pool.try_allocate(3)
        assert slots is not None
        pool.free(slots)
    # 7 * 3 = 21 = 4 * 5 + 1: the front has moved on by one.
    assert pool.free_pages().tolist() == [2, 3, 4, 5, 1]


def test_freed_pages_go_to_the_front() -> None:
    pool = PagePool(22, 4)  # 22 // 4 = 5 pages; two slots are lost
    first, second = pool.try_allocate(8), pool.try_allocate(4)
    assert first is not None
    assert second is not None
    assert (first.tolist(), second.tolist()) == ([4, 5, 6, 7, 8, 9, 10, 11], [12, 13, 14, 15])
    pool.free(first)
    pool.free(second)
    assert pool.free_pages().tolist() == [3, 1, 2, 4, 5]
    assert pool.num_free == 20


def test_a_general_free_sorts_pages_and_a_stretch_keeps_their_order() -> None:
    pool = PagePool(12, 4)
    pool.try_allocate(12)
    pool.free(as_ids([12, 13, 5, 4]))
    assert pool.free_pages().tolist() == [1, 3]
    pool = PagePool(12, 4)
    pool.try_allocate(12)
    pool.free_stretch(as_ids([12, 13, 14, 15, 4]))
    assert pool.free_pages().tolist() == [3, 1]


def test_pages_are_allocated_whole_and_a_rest_is_cut_off() -> None:
    pool = PagePool(8, 4)
    slots = pool.try_allocate(7)
    assert slots is not None
    assert slots.tolist() == [4, 5, 6, 7]
    nothing = pool.try_allocate(3)
    assert nothing is not None
    assert nothing.tolist() == []


def test_an_extension_fills_the_open_page_then_takes_pages_in_batch_order() -> None:
    pool = PagePool(24, 4)
    shares = pool.try_extend([Growth(0, -1, 6)])
    assert shares is not None
    assert [share.tolist() for share in shares] == [[4, 5, 6, 7, 8, 9]]
    # The first has two slots left in page 2 (10, 11) and then page 3; the second starts in page 4.
    shares = pool.try_extend([Growth(6, 9, 3), Growth(0, -1, 5)])
    assert shares is not None
    assert [share.tolist() for share in shares] == [[10, 11, 12], [16, 17, 18, 19, 20]]


def test_an_extension_is_refused_only_when_its_exact_pages_are_not_there() -> None:
    pool = PagePool(8, 4)
    assert pool.try_extend([Growth(0, -1, 5), Growth(0, -1, 1)]) is None
    assert pool.num_free == 8
    # The upper bound of 5 // 4 + 1 + 1 = 3 pages is more than the two there are, the exact two are not.
    assert pool.try_extend([Growth(0, -1, 5)]) is not None


def test_a_decode_takes_pages_only_for_full_sequences_in_batch_order() -> None:
    pool = PagePool(20, 4)
    pool.try_allocate(12)
    slots = pool.try_extend_by_one(as_ids([4, 6, 8]), as_ids([7, 9, 15]))
    assert slots is not None
    assert slots.tolist() == [16, 10, 20]
    assert pool.try_extend_by_one(as_ids([4]), as_ids([7])) is None


def test_freed_slots_wait_aside_until_an_allocation_needs_them() -> None:
    pool = TokenPool(6, need_sort=True)
    pool.try_allocate(4)
    pool.free(as_ids([4, 2]))
    assert (pool.free_pages().tolist(), pool.waiting_pages().tolist()) == ([5, 6], [4, 2])
    assert pool.num_free == 4
    slots = pool.try_allocate(3)
    assert slots is not None
    assert slots.tolist() == [2, 4, 5]


def test_pages_are_merged_when_only_an_upper_bound_asks_for_it() -> None:
    pool = PagePool(16, 4, need_sort=True)
    pool.try_allocate(8)
    pool.free(as_ids([4]))
    # One token takes one page, and two are free; but 1 // 4 + 1 + 1 = 2 is not more than 2.
    shares = pool.try_extend([Growth(0, -1, 1)])
    assert shares is not None
    assert shares[0].tolist() == [12]
    # Now the bound of 2 is more than the one that is free: page 1 comes in, and first.
    shares = pool.try_extend([Growth(0, -1, 1)])
    assert shares is not None
    assert shares[0].tolist() == [4]


def test_held_frees_come_back_as_one_general_frees_first() -> None:
    pool = PagePool(24, 4)
    pool.try_allocate(24)
    pool.hold_frees()
    pool.free_stretch(as_ids([20, 21]))
    pool.free(as_ids([12]))
    pool.free_stretch(as_ids([8]))
    pool.free(as_ids([4]))
    assert pool.num_free == 0
    pool.release_frees()
    # General frees 3 and 1 become 1, 3; then the stretches 5, 2 go before them.
    assert pool.free_pages().tolist() == [5, 2, 1, 3]


def test_only_pages_ask_for_one_more_per_sequence() -> None:
    assert TokenPool(8).demand(5, 3) == 5
    assert PagePool(8, 4).demand(5, 3) == 17


def test_a_slot_that_is_freed_twice_is_found() -> None:
    pool = TokenPool(4)
    slots = pool.try_allocate(2)
    assert slots is not None
    pool.free(slots[:1])
    pool.free(slots[:1])
    with pytest.raises(AssertionError, match="free twice"):
        pool.check_invariants()


def test_more_frees_than_slots_are_refused() -> None:
    with pytest.raises(AssertionError, match="gave back 1 ids to 4 of 4"):
        TokenPool(4).free(as_ids([1]))


def test_a_stretch_that_starts_inside_a_page_is_refused() -> None:
    pool = PagePool(8, 4)
    pool.try_allocate(8)
    with pytest.raises(AssertionError, match="starts at slot 5, inside a page"):
        pool.free_stretch(as_ids([5, 6, 7]))
