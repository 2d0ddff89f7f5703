"""Every invariant broken by hand: `check_invariants` must notice, and say which block or request it is."""

from collections.abc import Callable
from typing import cast

import pytest

from kvengine.block_pool import BlockId, BlockPool
from kvengine.block_table import BlockTable
from kvengine.kv_cache_manager import KVCacheManager
from kvengine.prefix_cache import PrefixCache
from kvengine.request import RequestId
from kvengine.scheduler import Scheduler
from kvengine.transfer_pins import TransferPins
from tests.builders import a_request, an_engine_config

A, B = RequestId("a"), RequestId("b")


class Books:
    """Eight blocks of four tokens: `a` has 6 tokens in blocks 1 and 2 and is forked into `b`; a transfer reads both."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(an_engine_config(num_blocks=9, block_size=4))
        self.scheduler.add_request(a_request("a", prompt="abcdef", max_tokens=9))
        self.scheduler.update(self.scheduler.schedule(), {A: 1})
        self.scheduler.fork(A, [B])
        self.transfer = self.scheduler.pin(A)
        self.scheduler.check_invariants()

    @property
    def manager(self) -> KVCacheManager:
        return cast(KVCacheManager, self.scheduler.kv_cache)

    @property
    def pool(self) -> BlockPool:
        return self.manager.pool

    @property
    def cache(self) -> PrefixCache:
        return self.manager._cache

    @property
    def pins(self) -> TransferPins:
        return self.manager._pins

    @property
    def table(self) -> BlockTable:
        """That of `a`."""
        return self.manager.tables[A].tables[0]


def hand_out_a_block_that_is_held(books: Books) -> None:
    books.pool._stack.append(BlockId(1))


def hand_out_a_block_twice(books: Books) -> None:
    books.pool._stack.append(books.pool._stack[-1])


def hand_out_the_null_block(books: Books) -> None:
    books.pool._stack.append(BlockId(0))


def lose_a_free_block(books: Books) -> None:
    books.pool._stack.pop()


def name_a_block_that_nobody_took(books: Books) -> None:
    books.table.block_ids.append(BlockId(5))


def name_a_block_that_is_not_there(books: Books) -> None:
    books.table.block_ids[1] = BlockId(9)


def own_a_block_that_no_table_names(books: Books) -> None:
    books.pool.share([BlockId(2)])


def drop_an_owner_that_a_table_names(books: Books) -> None:
    books.pool.free([BlockId(1)])


def name_a_block_twice(books: Books) -> None:
    books.table.block_ids[1] = books.table.block_ids[0]


def hold_a_page_behind_the_tail(books: Books) -> None:
    books.table.block_ids += books.pool.try_allocate(1) or []


def hold_no_page_for_computed_tokens(books: Books) -> None:
    books.pool.free([books.table.block_ids.pop()])


def leave_a_hole_in_a_table(books: Books) -> None:
    books.pool.free([books.table.block_ids[0]])
    books.table.block_ids[0] = BlockId(0)


def forget_a_transfer_but_not_its_pins(books: Books) -> None:
    del books.pins._live[books.transfer.handle]


def forget_the_pins_of_a_transfer(books: Books) -> None:
    books.pins._num_pins.clear()


def pin_without_a_reference(books: Books) -> None:
    books.pool.free([BlockId(1), BlockId(2)])


def forget_that_the_tail_is_shared(books: Books) -> None:
    books.table.shared_tail = None


def stay_quiet_about_a_shared_tail(books: Books) -> None:
    books.manager.tables[A].quiet_until = 20


def say_that_nothing_is_cached_where_it_is(books: Books) -> None:
    books.pool.unmark_cached([BlockId(1)])


def cache_more_than_is_held(books: Books) -> None:
    books.table.num_cached_blocks = 3


def lose_the_way_to_a_cached_block(books: Books) -> None:
    books.cache._first.clear()


def find_a_block_under_the_key_of_another(books: Books) -> None:
    (key,) = books.cache._first
    books.cache._first[key] = BlockId(3)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (hand_out_a_block_that_is_held, "block 1 has 3 owners, free or withheld: True"),
        (hand_out_a_block_twice, "a block is free twice"),
        (hand_out_the_null_block, "the null block is free"),
        (lose_a_free_block, "block 3 has 0 owners, free or withheld: False"),
        (name_a_block_that_nobody_took, "block 5 has 0 references, and is in 1 tables and read by 0 transfers"),
        (name_a_block_that_is_not_there, r"a holds blocks \[9\], which do not exist"),
        (own_a_block_that_no_table_names, "block 2 has 4 references, and is in 2 tables and read by 1 transfers"),
        (drop_an_owner_that_a_table_names, "block 1 has 2 references, and is in 2 tables and read by 1 transfers"),
        (name_a_block_twice, r"a holds a block twice: \[1, 1\]"),
        (hold_a_page_behind_the_tail, "a has 6 tokens in 3 blocks of 4: only the last of them may be partly filled"),
        (hold_no_page_for_computed_tokens, r"a has 6 tokens and no block at \[1\] of its table \[1\]"),
        (leave_a_hole_in_a_table, r"a has 6 tokens and no block at \[0\] of its table \[0, 2\]"),
        (forget_a_transfer_but_not_its_pins, "block [12] has 1 pins and is read by 0 transfers"),
        (forget_the_pins_of_a_transfer, "block [12] has 0 pins and is read by 1 transfers"),
        (pin_without_a_reference, "block 1 has 2 references, and is in 2 tables and read by 1 transfers"),
        (forget_that_the_tail_is_shared, "a would write its token 6 into block 2, which others hold too"),
        (stay_quiet_about_a_shared_tail, "a would write to a block that others share without looking at it"),
        (say_that_nothing_is_cached_where_it_is, "block 1: pool and cache differ on whether it is cached"),
        (cache_more_than_is_held, "a cached more than it holds"),
        (lose_the_way_to_a_cached_block, "1 entries were made, 0 can be found"),
        (find_a_block_under_the_key_of_another, "block 3 is entered under a key that is not its own"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_broken_book_is_noticed(damage: Callable[[Books], None], message: str) -> None:
    books = Books()
    damage(books)
    with pytest.raises(AssertionError, match=message):
        books.scheduler.check_invariants()
