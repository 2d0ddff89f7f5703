"""Blocks of 4, one hash a unit; a hash is named after the unit that it ends."""

from collections.abc import Mapping, Sequence

from kvengine.block_pool import BlockId
from kvengine.kv_groups.agreement import HitSearch, PrefixHit
from kvengine.kv_groups.kinds import ChunkedLocal, FullAttention, GroupKind, LinearState, SlidingWindow
from kvengine.kv_groups.sizes import group_sizes
from kvengine.prefix_cache import BlockHash, BlockKey, PrefixCache, group_suffix
from tests.builders import an_engine_config

FULL = FullAttention(block_size=4)
STATE = LinearState(block_size=4)
HASHES = [BlockHash(f"unit {index}".encode()) for index in range(40)]


def window(size: int, *, block_size: int = 4) -> SlidingWindow:
    return SlidingWindow(block_size=block_size, window=size)


def find(
    groups: Sequence[GroupKind], cached: Sequence[Mapping[int, int]], limit: int, *, unit: int | None = None
) -> PrefixHit:
    """Look up, given for each group the block that is cached for a prefix of so many tokens."""
    sizes = group_sizes(an_engine_config(groups=groups, prefix_match_unit=unit))
    cache = PrefixCache(100)
    for index, entries in enumerate(cached):
        for num_tokens, block in entries.items():
            key = BlockKey(HASHES[num_tokens // sizes.hash_unit - 1] + group_suffix(index))
            cache.add(BlockId(block), key, num_tokens)
    return HitSearch(cache, sizes).find(HASHES, limit)


def test_full_attention_is_found_up_to_the_first_miss() -> None:
    assert find([FULL], [{4: 1, 8: 2, 16: 4}], 17) == PrefixHit([[1, 2]], 8)


def test_the_limit_cuts_what_is_found() -> None:
    assert find([FULL], [{4: 1, 8: 2}], 7) == PrefixHit([[1]], 4)


def test_a_window_needs_only_the_last_blocks_that_cover_it() -> None:
    # Window 8: 7 tokens before the next one, two blocks of 4.
    assert find([window(8)], [{12: 3, 16: 4}], 18) == PrefixHit([[0, 0, 3, 4]], 16)


def test_a_window_is_searched_from_the_right_for_the_first_whole_run() -> None:
    assert find([window(8)], [{8: 2, 12: 3, 20: 5}], 21) == PrefixHit([[0, 2, 3]], 12)


def test_a_run_shorter_than_a_window_counts_only_from_the_first_token() -> None:
    assert find([window(20)], [{4: 1, 8: 2}], 30) == PrefixHit([[1, 2]], 8)
    assert find([window(20)], [{8: 2, 12: 3}], 30).num_tokens == 0


def test_a_window_of_one_token_is_found_only_where_a_block_is() -> None:
    assert find([window(1)], [{8: 2}], 12) == PrefixHit([[0, 2]], 8)
    assert find([window(1)], [{}], 12).num_tokens == 0


def test_whole_chunks_before_the_current_one_are_granted_unseen() -> None:
    # 37 tokens, chunks of 16: 32 are granted, and nothing is needed for them.
    assert find([ChunkedLocal(block_size=4, chunk=16)], [{}], 36) == PrefixHit([[0] * 8], 32)
    assert find([ChunkedLocal(block_size=4, chunk=16)], [{36: 9}], 38) == PrefixHit([[0] * 8 + [9]], 36)


def test_a_chunk_that_begins_inside_a_block_grants_no_part_of_the_one_before_it_unseen() -> None:
    # Chunks of 6: token 12 begins the third one, and a block. Token 6 begins the second one inside block 1, which is
    # not there; token 4 would attend to tokens 0 to 3 of the first chunk, which are not there either.
    chunks = ChunkedLocal(block_size=4, chunk=6)
    assert find([chunks], [{}], 13) == PrefixHit([[0, 0, 0]], 12)
    assert find([chunks], [{}], 11).num_tokens == 0
    assert find([chunks], [{4: 1}], 11) == PrefixHit([[1]], 4)


def test_one_state_stands_for_all_before_it() -> None:
    assert find([STATE], [{4: 1, 12: 3}], 18) == PrefixHit([[0, 0, 3]], 12)


def test_full_attention_bounds_the_others_and_the_junction_is_where_it_reached() -> None:
    hit = find([FULL, window(8)], [{4: 1, 8: 2, 12: 3}, {4: 11, 8: 12}], 15)
    assert hit == PrefixHit([[1, 2], [11, 12]], 8, junction=12)


def test_what_all_agree_on_has_no_junction() -> None:
    assert find([FULL, STATE], [{4: 1, 8: 2}, {8: 12}], 11) == PrefixHit([[1, 2], [0, 12]], 8)


def test_groups_are_asked_again_until_nobody_lowers_the_candidate() -> None:
    # Full 24. The long window (2 blocks) offers 24, the short one (1 block) has nothing above 16; at 16 the long one
    # lacks block 12 and falls to 8, where the short one is asked a second time.
    full = {4 * n: n for n in range(1, 7)}
    long, short = {4: 21, 8: 22, 16: 24, 20: 25, 24: 26}, {8: 32, 16: 34}
    hit = find([FULL, window(8), window(5)], [full, long, short], 25)
    assert hit == PrefixHit([[1, 2], [21, 22], [0, 32]], 8, junction=24)


def test_equal_groups_count_only_what_both_have() -> None:
    hit = find([window(5), window(5)], [{4: 1, 8: 2, 12: 3}, {4: 11, 8: 12}], 13)
    assert hit == PrefixHit([[0, 2], [0, 12]], 8)


def test_hits_of_unequal_blocks_are_multiples_of_the_scheduler_block() -> None:
    # Full 6, window 4: unit 2, scheduler block 12.
    full, near = {6: 1, 12: 2, 18: 3}, {4: 11, 8: 12, 12: 13, 16: 14}
    hit = find([FullAttention(block_size=6), window(5)], [full, near], 20)
    assert hit == PrefixHit([[1, 2], [0, 0, 13]], 12)


def test_a_hit_ends_inside_a_block_at_the_longest_beginning_that_is_entered() -> None:
    # Units of 1 in blocks of 4.
    hit = find([FULL, STATE], [{4: 1, 6: 2, 7: 2}, {7: 12}], 10, unit=1)
    assert hit == PrefixHit([[1, 2], [0, 12]], 7)


def test_full_attention_that_reached_further_is_cut_inside_its_block() -> None:
    hit = find([FULL, STATE], [{4: 1, 8: 2}, {6: 12}], 10, unit=2)
    assert hit == PrefixHit([[1, 2], [0, 12]], 6, junction=8)
