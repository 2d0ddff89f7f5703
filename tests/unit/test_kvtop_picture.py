import pytest

from kvengine.config import SchedulerConfig
from kvengine.telemetry.schema import Hello
from kvengine.telemetry.state import StreamState
from kvtop.picture import Picture, runs_of
from tests.watched_engine import FrameList, WatchedEngine


def a_picture(*prompts: str, steps: int = 1, num_blocks: int = 17) -> Picture:
    """The state after some steps with a request for each prompt."""
    watched = WatchedEngine(sink := FrameList(), num_blocks=num_blocks, limits=SchedulerConfig(max_num_seqs=8))
    for name, prompt in zip("abcdefgh", prompts, strict=False):
        watched.add(name, prompt=prompt, max_tokens=9)
    watched.step(steps)
    state = StreamState(watched.facts)
    for frame in sink.frames:
        assert not isinstance(frame, Hello)
        state.apply(frame)
    return Picture(state.freeze())


def test_blocks_are_grouped_by_the_requests_that_share_them():
    # Blocks of four tokens: a, b and c share the first, a and b the second too.
    picture = a_picture("aaaabbbbx", "aaaabbbby", "aaaaccccz")
    groups = [(group.block_ids, [owner.request_id for owner in group.owners]) for group in picture.shared_groups]
    assert groups == [((1,), ["a", "b", "c"]), ((2,), ["a", "b"])]
    assert [group.num_saved for group in picture.shared_groups] == [2, 1]
    assert picture.num_saved == 3


def test_usage_counts_a_shared_block_once():
    picture = a_picture("aaaabbbbx", "aaaabbbby", "aaaaccccz")
    # Two shared, one more for each of a and b, two more for c: 6 of 16.
    assert picture.num_in_use == 6
    assert picture.in_use_fraction == pytest.approx(6 / 16)
    assert [picture.num_shared_of(request) for request in picture.snapshot.requests] == [2, 2, 1]


def test_the_tail_of_each_request_is_what_its_last_block_has_left():
    # Nine tokens computed in three blocks of four leave three slots, six in two blocks leave two.
    assert a_picture("aaaabbbbx", "cccccc").num_tail_slots == 3 + 2


def test_the_hit_share_is_of_prompt_tokens_and_unknown_before_any():
    # b hits the first of its two blocks: 4 of 12 prompt tokens.
    assert a_picture("aaaaxx", "aaaayy").hit_fraction == pytest.approx(4 / 12)
    assert a_picture(steps=1).hit_fraction is None


def test_a_block_knows_its_owners_and_their_logical_index():
    picture = a_picture("aaaabbbbx", "aaaabbbby")
    block = picture.block(2)
    assert (block.ref_count, block.is_cached) == (2, True)
    assert [(request.request_id, index) for request, index in block.owners] == [("a", 1), ("b", 1)]
    assert picture.block(16).owners == ()


def test_runs_join_neighbours():
    assert runs_of([1, 2, 3, 7, 9, 10]) == [(1, 3), (7, 7), (9, 10)]
    assert runs_of([]) == []
