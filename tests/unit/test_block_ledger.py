from kvengine.block_ledger import BlockLedger, StepBlocks
from kvengine.telemetry.schema import BlockFlag, Totals
from tests.builders import a_pool

CACHED = BlockFlag.CACHED


def test_only_blocks_that_look_different_are_told():
    ledger = BlockLedger(pool := a_pool(num_blocks=5))
    assert ledger.take_changes(1) == ([], [], 0)
    pool.try_allocate(2)
    assert ledger.take_changes(1) == ([1, 16, 2, 16], [], 0)
    # Taken and given back between two looks: nothing to tell.
    pool.free(pool.try_allocate(2))
    assert ledger.take_changes(1) == ([], [], 0)


def test_blocks_are_counted_by_kind():
    ledger = BlockLedger(pool := a_pool(num_blocks=6))
    first, second, third = pool.try_allocate(3)
    pool.mark_cached([first, second])
    pool.share([first])
    pool.free([second])
    ledger.take_changes(1)
    # Five usable: two untouched, the second cached and free, the third held once, the first held twice.
    assert ledger.totals(running=1, waiting=2) == Totals(2, 1, 1, 1, 1, 2)
    assert third == 3


def test_a_block_that_is_filled_anew_in_the_same_step_was_evicted():
    ledger = BlockLedger(pool := a_pool(num_blocks=3))
    cached = pool.try_allocate(2)
    pool.mark_cached(cached)
    pool.free(cached)
    ledger.take_changes(1)
    taken = pool.try_allocate(1)
    pool.mark_cached(taken)
    pool.free(taken)
    assert ledger.take_changes(2, StepBlocks(taken=taken)) == ([], [], 1)


def test_a_block_that_was_evicted_for_a_request_preempted_in_the_same_step_is_counted_too():
    ledger = BlockLedger(pool := a_pool(num_blocks=3))
    cached = pool.try_allocate(2)
    pool.mark_cached(cached)
    pool.free(cached)
    ledger.take_changes(1)
    # The preempted request is no longer in the step's list, so nobody says that these were taken.
    pool.free(pool.try_allocate(2))
    assert ledger.take_changes(2, StepBlocks(taken=())) == ([2, 0, 1, 0], [], 2)


def test_a_pinned_block_says_so_as_long_as_a_transfer_reads_it():
    pool, pinned = a_pool(num_blocks=4), set()
    ledger = BlockLedger(pool, pinned=pinned)
    taken = pool.try_allocate(2)
    assert ledger.take_changes(1).codes == [1, 16, 2, 16]
    pool.share(taken[:1])
    pinned.update(taken[:1])
    # Two references, and flag 4; then the request goes, then the transfer.
    assert ledger.take_changes(2).codes == [1, 2 * 16 + 4]
    pool.free(taken)
    assert ledger.take_changes(3).codes == [1, 16 + 4, 2, 0]
    pinned.clear()
    pool.free(taken[:1])
    assert ledger.take_changes(4).codes == [1, 0]
