"""Which cached block goes first, on cases that fit in a head."""

import pytest

from kvengine.block_pool import BlockId, BlockPool
from kvengine.eviction_policies import EvictionPolicy, RankedQueue, SegmentedQueue
from tests.builders import a_pool


def a_full_pool(policy: EvictionPolicy, evicted: list[BlockId]) -> BlockPool:
    """Blocks 1 to 4, cached one by one in the order 3, 1, 2, 4 and freed in the order 1, 2, 3, 4."""
    pool = a_pool(num_blocks=5, evicted=evicted, policy=policy)
    pool.try_allocate(4)
    for block in (3, 1, 2, 4):
        pool.mark_cached([BlockId(block)])
    for block, priority in ((1, 0), (2, 5), (3, 0), (4, 5)):
        pool.note_holder([BlockId(block)], priority)
        pool.free([BlockId(block)])
    return pool


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        # A hit on 1, and two on 2; each is freed again, so that by time of freeing the order is 3, 4, 1, 2.
        (EvictionPolicy.LRU, [3, 4, 1, 2]),
        (EvictionPolicy.LFU, [3, 4, 1, 2]),
        (EvictionPolicy.SLRU, [3, 4, 1, 2]),
        (EvictionPolicy.FIFO, [3, 1, 2, 4]),
        # The holders of 2 and 4 were less urgent.
        (EvictionPolicy.PRIORITY, [4, 2, 3, 1]),
    ],
)
def test_each_policy_gives_blocks_up_in_its_own_order(policy: EvictionPolicy, order: list[int]) -> None:
    evicted: list[BlockId] = []
    pool = a_full_pool(policy, evicted)
    for block in (1, 2, 2):
        pool.share([BlockId(block)])
        pool.note_hits([BlockId(block)])
        pool.free([BlockId(block)])
    pool.check_invariants()
    assert pool.free_blocks() == order
    assert [pool.try_allocate(1) for _ in order] == [[block] for block in order]
    assert evicted == order


def test_lfu_counts_hits_and_not_how_long_ago_they_were() -> None:
    pool = a_full_pool(EvictionPolicy.LFU, [])
    for block in (1, 1, 2, 3):
        pool.share([BlockId(block)])
        pool.note_hits([BlockId(block)])
        pool.free([BlockId(block)])
    # 4 was never hit; 2 and 3 once, 2 before 3; 1 twice, though longest ago.
    assert pool.free_blocks() == [4, 2, 3, 1]


def test_other_content_in_a_block_begins_anew() -> None:
    pool = a_full_pool(EvictionPolicy.LFU, [])
    pool.share([BlockId(1)])
    pool.note_hits([BlockId(1)])
    pool.free([BlockId(1)])
    assert pool.try_allocate(4) == [2, 3, 4, 1]
    pool.mark_cached([BlockId(1), BlockId(2)])
    pool.free([BlockId(1)])
    pool.free([BlockId(2)])
    assert pool.try_allocate(2) == [1, 2]


def test_blocks_without_content_go_before_all_others() -> None:
    pool = a_pool(num_blocks=5, policy=EvictionPolicy.FIFO)
    taken = pool.try_allocate(4)
    assert taken is not None
    pool.mark_cached(taken[:2])
    pool.free(taken)
    # 1 and 2 entered together; of them the end of the table was freed first.
    assert pool.free_blocks() == [4, 3, 2, 1]
    assert (pool.num_free, pool.num_evictable) == (4, 2)


def test_the_protected_part_of_slru_is_limited() -> None:
    queue = SegmentedQueue(10)  # at most 8 protected
    blocks = [BlockId(block) for block in range(1, 10)]
    queue.begin(blocks)
    queue.hit(blocks)
    queue.extend(blocks)
    # All 9 were found again: the one freed first falls back, and is given up first.
    assert list(queue) == blocks
    queue.check_invariants()
    queue.remove(BlockId(1))
    fresh = BlockId(1)
    queue.begin([fresh])
    queue.extend([fresh])
    assert queue.take(2) == [1, 2]
    queue.check_invariants()


def test_entries_that_are_out_of_date_do_not_pile_up() -> None:
    queue = RankedQueue(9, lambda uses, block: uses.num_hits[block])
    blocks = [BlockId(block) for block in range(1, 9)]
    queue.begin(blocks)
    queue.extend(blocks)
    for _ in range(1000):
        queue.remove(BlockId(5))
        queue.hit([BlockId(5)])
        queue.extend([BlockId(5)])
    queue.check_invariants()
    assert len(queue._heap) < 100
    assert queue.take(8) == [1, 2, 3, 4, 6, 7, 8, 5]
