import numpy as np

from kvengine.kv_groups.kinds import FullAttention, SlidingWindow
from kvengine.telemetry.block_book import BlockColumns
from kvengine.telemetry.schema import UNKNOWN_PARENT
from kvtop.holdings import list_holdings
from kvtop.prefix_tree import PrefixTree, build_tree, parents_of
from tests.pictures import a_picture

USED_AND_CACHED, CACHED = 17, 1


def outline(tree: PrefixTree) -> list[tuple[int, list[int], int]]:
    """Depth, blocks and holders of each segment, from the top."""
    return [(segment.depth, tree.blocks_of(index), segment.num_holders) for index, segment in enumerate(tree.segments)]


def a_tree_of(*, codes: list[int], parents: list[int], cached_at: list[int]) -> PrefixTree:
    """The tree of blocks that no request holds, as the stream told of them; block 0 is the null block."""
    columns = BlockColumns.blank(len(codes) + 1)
    columns.codes[1:] = codes
    columns.parents[1:] = parents
    columns.cached_at[1:] = cached_at
    return build_tree(columns, *parents_of(columns, list_holdings([])))


def test_blocks_that_branch_nowhere_are_one_segment():
    # Blocks of four: a and b share two, c the first of them. Block 1 is held by three, block 2 by two.
    picture = a_picture("aaaabbbbx", "aaaabbbby", "aaaaccccz")
    assert outline(picture.tree) == [
        (0, [1], 3),
        (1, [2], 2),
        (2, [3], 1),
        (2, [4], 1),
        (1, [5, 6], 1),
    ]
    assert [segment.num_blocks_below for segment in picture.tree.segments] == [6, 3, 1, 1, 2]
    assert [segment.num_saved for segment in picture.tree.segments] == [2, 1, 0, 0, 0]
    assert picture.tree.path_to(3) == [0, 1, 3]


def test_what_a_finished_request_left_in_the_cache_stays_in_the_tree():
    # One output token: the request ends with its first step, and its two full blocks stay findable.
    picture = a_picture("aaaabbbbx", max_tokens=1)
    assert picture.totals.cached_free == 2
    assert outline(picture.tree) == [(0, [1, 2], 0)]


def test_the_largest_branch_comes_first():
    picture = a_picture("aaaax", "bbbbccccddddx")
    assert [blocks for _, blocks, _ in outline(picture.tree)] == [[3, 4, 5, 6], [1, 2]]


def test_a_block_whose_parent_was_evicted_is_an_orphan():
    tree = a_tree_of(codes=[0, CACHED], parents=[UNKNOWN_PARENT, 1], cached_at=[0, 3])
    assert [(segment.first, segment.is_orphan) for segment in tree.segments] == [(2, True)]


def test_a_parent_that_was_filled_anew_later_is_another_one():
    # Block 2 was filled after block 1 in step 3; block 1 has had other content since step 5.
    tree = a_tree_of(codes=[CACHED, CACHED], parents=[0, 1], cached_at=[5, 3])
    assert sorted((segment.first, segment.is_orphan, segment.depth) for segment in tree.segments) == [
        (1, False, 0),
        (2, True, 0),
    ]
    # Filled together in one step, they belong together.
    tree = a_tree_of(codes=[CACHED, CACHED], parents=[0, 1], cached_at=[3, 3])
    assert outline(tree) == [(0, [1, 2], 0)]


def test_a_prefix_from_before_the_watching_is_an_orphan():
    tree = a_tree_of(codes=[CACHED], parents=[UNKNOWN_PARENT], cached_at=[0])
    assert tree.segments[0].is_orphan


def test_a_stream_that_lies_in_circles_ends():
    tree = a_tree_of(codes=[CACHED] * 3, parents=[2, 3, 1], cached_at=[1, 1, 1])
    assert len(tree.segments) <= 3


def test_every_block_that_is_held_or_cached_is_in_the_order_once():
    picture = a_picture("aaaabbbbx", "aaaabbbby", "aaaaccccz", "ddddd", steps=4)
    held_or_cached = np.flatnonzero(picture.pool.columns.codes & ~np.uint32(2))
    assert sorted(picture.tree.order.tolist()) == held_or_cached.tolist()


def test_the_tables_of_a_window_begin_where_blocks_were_given_back():
    groups = (FullAttention(block_size=4), SlidingWindow(block_size=4, window=4))
    picture = a_picture("aaaabbbbccccd", steps=6, groups=groups, num_blocks=30)
    (request,) = picture.requests
    window = request.more_tables[0]
    assert window[0] == 0
    first_held = next(block for block in window if block)
    parents, is_orphan = picture.parents
    assert parents[first_held] == 0
    assert is_orphan[first_held]
    assert not is_orphan[request.block_table[0]]
