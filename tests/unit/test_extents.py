import pytest

from kvengine.allocators.buddy import BuddyPool, next_power_of_two
from kvengine.allocators.extents import Extent, ExtentPool, SlabPool


def take(pool: ExtentPool, num_tokens: int) -> Extent:
    extent = pool.try_take(num_tokens)
    assert extent is not None
    pool.check_invariants()
    return extent


def give_back(pool: ExtentPool, extent: Extent) -> None:
    pool.give_back(extent)
    pool.check_invariants()


def test_thirteen_reservations_of_the_longest_length_fill_the_pool_of_an_80_gb_card() -> None:
    # 52.32 GiB at 128 KiB a token are 428,560 slots: 13 reservations of 32,768 tokens, and 2,576 slots are left over.
    pool = SlabPool(428_560, 32_768)
    extents = [take(pool, 612) for _ in range(13)]

    assert pool.try_take(612) is None
    assert {extent.size for extent in extents} == {32_768}
    assert (pool.num_free, pool.num_unusable, pool.largest_free) == (2576, 2576, 0)


def test_a_slab_that_comes_back_goes_to_the_next_request() -> None:
    pool = SlabPool(100, 30)
    first, second, third = (take(pool, 7) for _ in range(3))

    assert [first, second, third] == [Extent(1, 30), Extent(31, 30), Extent(61, 30)]
    give_back(pool, second)
    assert take(pool, 30) == second


def test_no_slab_is_longer_than_it_is() -> None:
    pool = SlabPool(100, 30)
    assert pool.try_take(31) is None
    assert pool.num_free == 100


def test_a_slab_longer_than_the_pool_is_never_there() -> None:
    pool = SlabPool(20, 30)
    assert (pool.largest, pool.num_unusable, pool.try_take(1)) == (0, 20, None)
    pool.check_invariants()


@pytest.mark.parametrize(("tokens", "slots"), [(1, 1), (2, 2), (3, 4), (256, 256), (257, 512), (612, 1024)])
def test_a_buddy_is_the_next_power_of_two(tokens: int, slots: int) -> None:
    assert next_power_of_two(tokens) == slots
    assert take(BuddyPool(1024), tokens).size == slots


def test_halves_are_split_off_and_merged_again() -> None:
    pool = BuddyPool(16)
    small = take(pool, 3)

    # 16 becomes 8 + 4 + 4: the lowest 4 are taken.
    assert small == Extent(1, 4)
    assert pool.free_extents() == [Extent(5, 4), Extent(9, 8)]
    give_back(pool, small)
    assert pool.free_extents() == [Extent(1, 16)]


def test_a_pool_that_is_no_power_of_two_is_a_sum_of_them() -> None:
    pool = BuddyPool(39)
    assert pool.free_extents() == [Extent(1, 32), Extent(33, 4), Extent(37, 2), Extent(39, 1)]
    assert (pool.largest, pool.num_unusable) == (32, 0)


def test_320_free_in_pieces_do_not_hold_256() -> None:
    # 512 units; 128, 128 and 64 of them are free, and a request needs 256 in one run.
    pool = BuddyPool(512)
    first, wall, third, fourth, _ = (take(pool, size) for size in (128, 128, 128, 64, 64))
    for extent in (first, third, fourth):
        give_back(pool, extent)

    assert pool.num_free == 320
    assert pool.largest_free == 128
    assert pool.try_take(256) is None
    assert pool.num_free == 320
    give_back(pool, wall)
    assert take(pool, 256) == Extent(1, 256)


def test_free_neighbours_that_are_no_buddies_stay_apart() -> None:
    pool = BuddyPool(8)
    parts = [take(pool, 2) for _ in range(4)]
    give_back(pool, parts[1])
    give_back(pool, parts[2])

    # Slots 3 .. 6 are free and lie side by side, but 4 slots begin at 1 or 5 only.
    assert pool.free_blocks() == [3, 4, 5, 6]
    assert pool.try_take(4) is None


def test_the_journal_names_every_slot_that_changed_hands() -> None:
    pool = BuddyPool(8)
    take(pool, 2)
    assert pool.take_changes() == []
    pool.track_changes()
    extent = take(pool, 3)
    assert pool.take_changes() == [5, 6, 7, 8]
    assert [pool.ref_count(slot) for slot in pool.free_blocks()] == [0, 0]
    give_back(pool, extent)
    assert pool.take_changes() == [5, 6, 7, 8]
    assert pool.take_changes() == []
