import pytest

from kvtop.picture import runs_of
from tests.pictures import a_picture


def test_usage_counts_a_shared_block_once():
    picture = a_picture("aaaabbbbx", "aaaabbbby", "aaaaccccz")
    # Two shared, one more for each of a and b, two more for c: 6 of 16.
    assert picture.num_in_use == 6
    assert picture.in_use_fraction == pytest.approx(6 / 16)
    assert [picture.num_shared_of(request) for request in picture.requests] == [2, 2, 1]
    # The first block has three owners and the second two: without sharing there would be 9.
    assert picture.num_saved == 3


def test_the_hit_share_is_of_prompt_tokens_and_unknown_before_any():
    # b hits the first of its two blocks: 4 of 12 prompt tokens.
    assert a_picture("aaaaxx", "aaaayy").hit_fraction == pytest.approx(4 / 12)
    assert a_picture(steps=1).hit_fraction is None


def test_a_block_knows_its_owners_and_their_logical_index():
    picture = a_picture("aaaabbbbx", "aaaabbbby")
    block = picture.block(2)
    assert (block.ref_count, block.is_cached) == (2, True)
    assert [(request.request_id, group, index) for request, group, index in block.owners] == [("a", 0, 1), ("b", 0, 1)]
    assert picture.block(16).owners == ()


def test_a_block_knows_when_it_was_filled_after_which_and_how_often_it_was_found():
    picture = a_picture("aaaabbbbx", "aaaabbbby", steps=3)
    first, second = picture.block(1), picture.block(2)
    # Both were filled in step 1 for a, and found for b in the same step.
    assert (first.cached_at, first.parent, first.hits) == (1, 0, 1)
    assert (second.cached_at, second.parent, second.hits) == (1, 1, 1)
    # a goes on in block 3 from its 9th token: full at 12, so it is not cached yet after 11.
    assert (picture.block(3).cached_at, picture.block(3).is_cached) == (0, False)


def test_the_blocks_before_one_are_told_nearest_first():
    picture = a_picture("aaaabbbbccccx")
    chain = picture.chain_before(picture.block(3))
    assert (chain.block_ids, chain.is_whole) == ((2, 1), True)
    assert picture.chain_before(picture.block(1)).block_ids == ()
    assert picture.chain_before(picture.block(16)) is None


def test_runs_join_neighbours():
    assert runs_of([1, 2, 3, 7, 9, 10]) == [(1, 3), (7, 7), (9, 10)]
    assert runs_of([]) == []
