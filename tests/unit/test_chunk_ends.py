import pytest

from kvengine.config import SchedulerConfig
from kvengine.errors import ConfigError
from kvengine.kv_groups.chunk_ends import ChunkEnds, chunk_ends_for
from kvengine.kv_groups.kinds import FullAttention, LinearState, StateMode
from kvengine.kv_groups.sizes import group_sizes
from tests.builders import a_request, an_engine_config


def the_ends(*block_sizes: int, unit: int = 0, max_chunk: int = 64) -> ChunkEnds:
    return ChunkEnds(block_sizes=block_sizes or (8,), unit=unit, max_chunk=max_chunk)


def shorten(ends: ChunkEnds, start: int, num_tokens: int, *, num_prompt: int = 43, junction: int = 0) -> int:
    return ends.shorten(a_request(prompt=range(num_prompt)), start, num_tokens, junction=junction)


def test_a_chunk_that_does_not_reach_the_end_is_cut_to_whole_blocks() -> None:
    assert shorten(the_ends(), 0, 20) == 16


def test_a_chunk_shorter_than_a_block_waits_for_a_larger_budget() -> None:
    assert shorten(the_ends(), 16, 7) == 0


def test_a_block_that_no_chunk_can_fill_is_filled_in_pieces() -> None:
    ends = the_ends(16, max_chunk=6)
    # 6, 6, and then only up to the end of the block.
    assert [shorten(ends, 0, 6), shorten(ends, 6, 6), shorten(ends, 12, 6)] == [6, 6, 4]


def test_the_last_whole_block_of_a_prompt_ends_a_chunk() -> None:
    # 43 tokens: the last block end that a resent prompt can start from is 40.
    assert shorten(the_ends(), 0, 43) == 40
    assert shorten(the_ends(), 40, 3) == 3


def test_of_a_prompt_of_whole_blocks_the_last_block_is_a_chunk_of_its_own() -> None:
    assert shorten(the_ends(), 0, 16, num_prompt=16) == 8


def test_a_chunk_that_starts_inside_a_block_stops_at_its_end() -> None:
    assert shorten(the_ends(), 20, 23) == 4


def test_a_junction_ends_a_chunk_at_whole_blocks_from_its_start() -> None:
    assert shorten(the_ends(), 0, 40, junction=27) == 24


def test_where_hits_end_inside_blocks_the_end_of_the_prompt_ends_a_chunk() -> None:
    # Blocks of 16 and units of 4: 43 tokens end blocks at 32 and can be resumed at 40.
    ends = the_ends(16, unit=4)
    assert [shorten(ends, 0, 43), shorten(ends, 32, 11), shorten(ends, 40, 3)] == [32, 8, 3]


def test_tokens_behind_the_prompt_are_not_shaped() -> None:
    request = a_request(prompt=range(12))
    for token in range(6):
        request.append_output(token)
    assert the_ends().shorten(request, 17, 4, junction=0) == 4


def test_chunks_are_aligned_to_states_even_if_attention_has_smaller_blocks() -> None:
    config = an_engine_config(groups=[FullAttention(block_size=4), LinearState(block_size=8)])
    ends = chunk_ends_for(group_sizes(config), SchedulerConfig())
    assert ends is not None
    # Aligned to the smaller blocks a chunk of 14 would end at 12, inside a block of states.
    assert shorten(ends, 0, 14) == 8


def test_states_of_several_sizes_are_aligned_to_all_and_never_passed_inside_a_block() -> None:
    ends = the_ends(4, 6)
    assert shorten(ends, 0, 20) == 12
    # From 4 the block of 6 ends first, at 6; that of 4 has just ended.
    assert shorten(ends, 4, 30) == 2


def test_only_states_of_chunk_ends_shape_chunks() -> None:
    full = an_engine_config(groups=[FullAttention(block_size=4)])
    none = an_engine_config(
        groups=[FullAttention(block_size=4), LinearState(block_size=64, mode=StateMode.NONE)],
        caching=False,
        limits=SchedulerConfig(max_model_len=64),
    )
    assert [chunk_ends_for(group_sizes(config), config.scheduler) for config in (full, none)] == [None, None]


def test_drafts_that_could_pass_a_whole_block_are_refused() -> None:
    the_ends(8).check_drafts(7)
    with pytest.raises(ConfigError, match="drafts: expected fewer than a state block of 8 tokens, got 8"):
        the_ends(8).check_drafts(8)
