import numpy as np
import pytest

from kvengine.telemetry.block_book import BlockChanges, BlockColumns
from kvengine.telemetry.state import BlockState
from kvtop.map_cells import TINT_SHIFT, CellBook, Look, looks_of, tints_of
from kvtop.pool import KEPT_MOVES, Pool

F, C, U, S, N = BlockState.FREE, BlockState.CACHED_FREE, BlockState.USED, BlockState.SHARED, BlockState.NULL
# Codes of these states: nobody and not cached, cached, one owner, two owners, the null block.
CODE_OF = {F: 0, C: 1, U: 16, S: 32, N: 2}


def states(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint8)


def a_pool(*values: int) -> Pool:
    columns = BlockColumns.blank(len(values))
    columns.codes[:] = [CODE_OF[BlockState(value)] for value in values]
    return Pool(columns)


def change(pool: Pool, block_id: int, state: BlockState) -> None:
    ids = np.array([block_id])
    columns = pool.columns.take(ids)
    columns.codes[0] = CODE_OF[state]
    pool.apply(BlockChanges(block_ids=ids, columns=columns))


def test_each_state_has_its_own_look():
    assert looks_of(states(N, F, C, U, S), 1).tolist() == [
        Look.NULL,
        Look.FREE,
        Look.CACHED_FREE,
        Look.USED,
        Look.SHARED,
    ]


@pytest.mark.parametrize(
    ("blocks", "look"),
    [
        ((F, F, F), Look.FREE),
        ((C, C, F), Look.CACHED_FREE),
        ((C, F, F), Look.FREE),
        ((U, F, F), Look.USED_THIRD),
        ((U, U, F), Look.USED_TWO_THIRDS),
        ((U, U, U), Look.USED),
        ((S, F, F), Look.SHARED_THIRD),
        ((S, U, F), Look.SHARED_TWO_THIRDS),
        ((S, U, U), Look.USED),
        ((S, S, U), Look.SHARED),
        ((N, U, U), Look.USED),
        ((N, F, F), Look.FREE),
    ],
)
def test_a_cell_of_three_blocks_tells_how_much_of_it_is_held_and_by_whom(blocks, look):
    assert looks_of(states(*blocks), 3).tolist() == [look]


def test_one_held_block_among_many_is_never_drawn_as_free():
    assert looks_of(states(U, *[F] * 49), 50).tolist() == [Look.USED_THIRD]
    assert looks_of(states(U, *[F] * 29_999), 30_000).tolist() == [Look.USED_THIRD]


def test_the_last_cell_counts_only_the_blocks_that_exist():
    # Four blocks in cells of three: the last cell holds a single used block, so it is full.
    assert looks_of(states(F, F, F, U), 3).tolist() == [Look.FREE, Look.USED]


@pytest.mark.parametrize("blocks_per_cell", [1, 3])
def test_looks_that_are_kept_up_are_those_counted_anew(blocks_per_cell):
    rng = np.random.default_rng(7)
    pool = a_pool(*rng.choice([F, C, U, S], 50).tolist())
    book = CellBook(pool, blocks_per_cell)
    for _ in range(20):
        for _ in range(int(rng.integers(4))):
            change(pool, int(rng.integers(50)), BlockState(int(rng.choice([F, C, U, S]))))
        assert book.looks().tolist() == looks_of(pool.states, blocks_per_cell).tolist()


def test_a_reader_that_fell_far_behind_counts_anew():
    pool = a_pool(F, F, F, F)
    book = CellBook(pool, 2)
    assert book.looks().tolist() == [Look.FREE, Look.FREE]
    for number in range(KEPT_MOVES + 5):
        change(pool, 0, U if number % 2 == 0 else S)
    assert pool.moves_since(0) is None
    assert book.looks()[0] in (Look.USED_THIRD, Look.USED_TWO_THIRDS, Look.SHARED_TWO_THIRDS)
    assert book.looks().tolist() == looks_of(pool.states, 2).tolist()


def test_the_largest_tint_of_a_cell_wins_unless_mixtures_have_their_own():
    tints = np.array([0, 3, 0, 0, 2, 5], dtype=np.uint8)
    assert (tints_of(tints, 2) >> TINT_SHIFT).tolist() == [3, 0, 5]
    assert (tints_of(tints, 2, mixed=9) >> TINT_SHIFT).tolist() == [3, 0, 9]
