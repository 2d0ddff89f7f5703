import pytest

from kvtop.map_layout import lay_out


@pytest.mark.parametrize("num_blocks", [1, 2, 28, 101, 400, 1025, 27_432, 262_144])
@pytest.mark.parametrize(("width", "height"), [(1, 1), (20, 5), (44, 6), (78, 8), (118, 33), (200, 60)])
def test_every_block_has_a_cell_within_the_pane_and_is_found_there(num_blocks, width, height):
    grid = lay_out(num_blocks, width, height)
    assert grid.rows <= grid.visible_rows
    for block in {0, num_blocks // 2, num_blocks - 1}:
        row, column = grid.cell_of(block)
        x, y = grid.id_width + column * grid.cell_width, row * grid.row_height
        assert 0 <= x < width
        assert 0 <= y < height
        first = grid.place_at(x, y)
        assert first <= block < first + grid.blocks_per_cell


def test_a_pool_that_fits_is_never_aggregated():
    # 78 columns less 5 for ids: 72 cells a row; 8 rows hold 576.
    assert lay_out(576, 78, 8).blocks_per_cell == 1
    assert lay_out(600, 78, 8).blocks_per_cell == 2


def test_a_small_pool_is_drawn_with_ids():
    grid = lay_out(28, 68, 22)
    assert grid.shows_ids
    assert grid.blocks_per_cell == 1


def test_a_closer_look_has_more_rows_than_fit():
    # 73 cells a row of 4 blocks are 292 blocks a row: 10,000 take 35 rows, of which 8 are seen.
    grid = lay_out(10_000, 78, 8, blocks_per_cell=4)
    assert (grid.blocks_per_cell, grid.rows, grid.visible_rows) == (4, 35, 8)
    # The first cell of the line drawn third, when ten rows are scrolled away, is that of row 12.
    assert grid.place_at(grid.id_width, 2, 10) == 12 * grid.blocks_per_row


def test_no_look_is_further_than_the_whole_pool():
    assert lay_out(600, 78, 8, blocks_per_cell=64) == lay_out(600, 78, 8)


def test_outside_of_the_cells_there_is_no_block():
    grid = lay_out(100, 78, 8)
    assert grid.place_at(0, 0) is None or grid.id_width == 0
    assert grid.place_at(77, 7) is None
    assert grid.place_at(5, 100) is None


def test_without_room_there_is_no_grid():
    assert lay_out(100, 0, 5) is None
    assert lay_out(100, 5, 0) is None
