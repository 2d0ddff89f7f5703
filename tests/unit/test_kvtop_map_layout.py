import numpy as np
import pytest

from kvengine.telemetry.state import BlockState
from kvtop.map_layout import LIT, Look, MapLayout, lay_out

F, C, U, S, N = BlockState.FREE, BlockState.CACHED_FREE, BlockState.USED, BlockState.SHARED, BlockState.NULL


def states(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint8)


def a_grid(num_blocks: int, blocks_per_cell: int, columns: int = 4) -> MapLayout:
    return MapLayout(
        num_blocks=num_blocks,
        columns=columns,
        cell_width=1,
        row_height=1,
        blocks_per_cell=blocks_per_cell,
        id_width=0,
    )


def test_each_state_has_its_own_look():
    cells = a_grid(5, 1).cells(states(N, F, C, U, S))
    assert cells.tolist() == [[Look.NULL, Look.FREE, Look.CACHED_FREE, Look.USED], [Look.SHARED, 0, 0, 0]]


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
    assert a_grid(3, 3).cells(states(*blocks))[0, 0] == look


def test_one_held_block_among_many_is_never_drawn_as_free():
    assert a_grid(50, 50).cells(states(U, *[F] * 49))[0, 0] == Look.USED_THIRD


def test_the_last_cell_counts_only_the_blocks_that_exist():
    # Four blocks in cells of three: the last cell holds a single used block, so it is full.
    assert a_grid(4, 3).cells(states(F, F, F, U))[0].tolist() == [Look.FREE, Look.USED, 0, 0]


def test_a_cell_is_lit_if_any_of_its_blocks_belongs_to_the_selected_request():
    lit = np.array([False, False, False, True, False], dtype=np.bool_)
    cells = a_grid(5, 2).cells(states(U, U, U, U, F), lit)
    assert cells[0].tolist() == [Look.USED, Look.USED + LIT, Look.FREE, 0]


@pytest.mark.parametrize("num_blocks", [1, 2, 28, 101, 400, 1025, 27_432, 262_144])
@pytest.mark.parametrize(("width", "height"), [(1, 1), (20, 5), (44, 6), (78, 8), (118, 33), (200, 60)])
def test_every_block_has_a_cell_within_the_pane_and_is_found_there(num_blocks, width, height):
    grid = lay_out(num_blocks, width, height)
    for block in {0, num_blocks // 2, num_blocks - 1}:
        row, column = grid.cell_of(block)
        x, y = grid.id_width + column * grid.cell_width, row * grid.row_height
        assert 0 <= x < width
        assert 0 <= y < height
        first = grid.block_at(x, y)
        assert first <= block < first + grid.blocks_per_cell


def test_a_pool_that_fits_is_never_aggregated():
    # 78 columns less 5 for ids: 72 cells a row; 8 rows hold 576.
    assert lay_out(576, 78, 8).blocks_per_cell == 1
    assert lay_out(600, 78, 8).blocks_per_cell == 2


def test_a_small_pool_is_drawn_with_ids():
    grid = lay_out(28, 68, 22)
    assert grid.shows_ids
    assert grid.blocks_per_cell == 1


def test_outside_of_the_cells_there_is_no_block():
    grid = lay_out(100, 78, 8)
    assert grid.block_at(0, 0) is None or grid.id_width == 0
    assert grid.block_at(77, 7) is None
    assert grid.block_at(5, 100) is None


def test_without_room_there_is_no_grid():
    assert lay_out(100, 0, 5) is None
    assert lay_out(100, 5, 0) is None
