from kvengine.block_pool import NULL_BLOCK, BlockId
from tests.builders import a_pool


def test_a_new_pool_hands_out_ascending_ids_and_never_the_null_block() -> None:
    pool = a_pool(num_blocks=5)
    assert (pool.num_blocks, pool.num_usable, pool.num_free, pool.num_used) == (5, 4, 4, 0)
    assert pool.try_allocate(3) == [1, 2, 3]
    assert pool.try_allocate(1) == [4]
    assert pool.try_allocate(1) is None
    assert pool.ref_count(NULL_BLOCK) == 0


def test_allocating_nothing_takes_nothing() -> None:
    pool = a_pool(num_blocks=2)
    assert pool.try_allocate(0) == []
    assert pool.num_free == 1


def test_a_failed_allocation_changes_nothing() -> None:
    evicted: list[BlockId] = []
    pool = a_pool(num_blocks=4, evicted=evicted)
    cached = pool.try_allocate(1)
    assert cached is not None
    pool.mark_cached(cached)
    pool.free(cached)
    assert pool.try_allocate(4) is None
    assert pool.free_blocks() == [2, 3, 1]
    assert evicted == []


def test_blocks_without_content_are_reused_first_and_the_last_of_a_table_before_the_others() -> None:
    pool = a_pool(num_blocks=6)
    table = pool.try_allocate(3)
    assert table is not None
    pool.free(table)
    assert pool.free_blocks() == [3, 2, 1, 4, 5]
    assert pool.try_allocate(2) == [3, 2]


def test_cached_blocks_wait_behind_all_others_and_the_end_of_a_prefix_goes_first() -> None:
    evicted: list[BlockId] = []
    pool = a_pool(num_blocks=6, evicted=evicted)
    table = pool.try_allocate(3)
    assert table is not None
    pool.mark_cached(table[:2])
    pool.free(table)
    assert pool.free_blocks() == [3, 4, 5, 2, 1]
    assert pool.try_allocate(4) == [3, 4, 5, 2]
    assert evicted == [2]
    assert not pool.is_cached(BlockId(2))
    assert pool.is_cached(BlockId(1))


def test_sharing_a_free_cached_block_takes_it_out_of_the_queue_until_its_last_owner_frees_it() -> None:
    pool = a_pool(num_blocks=5)
    first, second = pool.try_allocate(1), pool.try_allocate(1)
    assert first is not None
    assert second is not None
    pool.mark_cached([*first, *second])
    pool.free(first)
    pool.free(second)
    pool.share(first)
    pool.share(first)
    assert pool.ref_count(first[0]) == 2
    assert pool.free_blocks() == [3, 4, 2]
    pool.free(first)
    assert pool.free_blocks() == [3, 4, 2]
    pool.free(first)
    assert pool.free_blocks() == [3, 4, 2, 1]  # least recently freed first


def test_free_blocks_among_others_are_counted() -> None:
    pool = a_pool(num_blocks=4)
    table = pool.try_allocate(2)
    assert table is not None
    assert pool.num_free_among([BlockId(1), BlockId(2), BlockId(3)]) == 1


def test_a_journal_is_kept_only_where_it_was_asked_for() -> None:
    pool = a_pool(num_blocks=4)
    pool.try_allocate(1)
    assert pool.take_changes() == []
    pool.track_changes()
    table = pool.try_allocate(2)
    assert table is not None
    assert sorted(pool.take_changes()) == [2, 3]
    assert pool.take_changes() == []
    pool.mark_cached(table[:1])
    pool.free(table)
    assert set(pool.take_changes()) == {2, 3}
    pool.share(table[:1])
    assert pool.take_changes() == [2]
    pool.unmark_cached(table[:1])
    assert pool.take_changes() == [2]


def test_an_eviction_is_in_the_journal() -> None:
    pool = a_pool(num_blocks=2)
    table = pool.try_allocate(1)
    assert table is not None
    pool.mark_cached(table)
    pool.free(table)
    pool.track_changes()
    pool.try_allocate(1)
    assert pool.take_changes() == [1]


def test_blocks_freed_in_an_order_are_reused_in_it_and_may_be_listed_for_each_owner() -> None:
    pool = a_pool(num_blocks=6)
    taken = pool.try_allocate(3)
    assert taken is not None
    pool.mark_cached(taken[:2])
    pool.share(taken[:1])
    # Block 1 has two owners and goes with its second mention, behind block 2; block 3 has no content.
    pool.free_in_order([BlockId(1), BlockId(2), BlockId(3), BlockId(1)])
    assert pool.free_blocks() == [3, 4, 5, 2, 1]


def test_a_pool_may_put_all_freed_blocks_behind_the_others() -> None:
    evicted: list[BlockId] = []
    pool = a_pool(num_blocks=5, evicted=evicted, uncached_first=False)
    table = pool.try_allocate(3)
    assert table is not None
    pool.mark_cached(table[:1])
    pool.free(table)
    assert pool.free_blocks() == [4, 3, 2, 1]
    assert pool.try_allocate(4) == [4, 3, 2, 1]
    assert evicted == [1]
