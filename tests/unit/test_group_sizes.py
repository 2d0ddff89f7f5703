import pytest

from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.errors import ConfigError
from kvengine.kv_groups.kinds import (
    ChunkedLocal,
    CrossAttention,
    FullAttention,
    GroupKind,
    LatentAttention,
    LinearState,
    SlidingWindow,
    StateMode,
)
from kvengine.kv_groups.sizes import GroupSizes, group_sizes
from tests.builders import an_engine_config

FULL = FullAttention(block_size=4)
WINDOW = SlidingWindow(block_size=4, window=8)
STATE = LinearState(block_size=16)


def sizes_of(*groups: GroupKind, unit: int | None = None, ranks: int = 1) -> GroupSizes:
    return group_sizes(an_engine_config(groups=groups, prefix_match_unit=unit, context_parallel_size=ranks))


def test_no_groups_stand_for_one_of_full_attention() -> None:
    sizes = group_sizes(an_engine_config(block_size=4))
    assert sizes.groups == (FULL,)
    assert (sizes.hash_unit, sizes.scheduler_block, sizes.hit_alignment) == (4, 4, 4)


def test_the_hash_unit_is_the_gcd_and_the_scheduler_block_the_lcm_of_the_block_sizes() -> None:
    sizes = sizes_of(FullAttention(block_size=6), SlidingWindow(block_size=4, window=9))
    assert (sizes.hash_unit, sizes.scheduler_block, sizes.hit_alignment) == (2, 12, 12)


def test_several_groups_enter_whole_scheduler_blocks_and_a_single_one_every_token() -> None:
    # Blocks of 8 and 4: of 15 tokens 8 may be entered.
    assert sizes_of(FullAttention(block_size=8), WINDOW).cacheable(15) == 8
    assert sizes_of(FULL).cacheable(15) == 15


def test_context_parallelism_widens_attention_blocks_and_leaves_states_whole() -> None:
    sizes = sizes_of(FULL, LatentAttention(block_size=2), LinearState(block_size=8), ranks=2)
    assert sizes.block_sizes == (8, 4, 8)


@pytest.mark.parametrize(
    ("groups", "unit", "ranks", "expected"),
    [
        ((FullAttention(block_size=16), STATE), 4, 1, True),
        ((FullAttention(block_size=16), STATE), None, 1, False),  # the unit is a whole block
        ((FullAttention(block_size=16), SlidingWindow(block_size=16, window=9)), 4, 1, False),  # no states
        ((STATE, FullAttention(block_size=16), SlidingWindow(block_size=16, window=9)), 4, 1, False),
        ((STATE, FullAttention(block_size=16), SlidingWindow(block_size=4, window=9)), 4, 1, True),
        # 2 ranks: attention blocks of 16 beside states of 16; the states need not be larger than the unit.
        ((FullAttention(block_size=8), STATE), None, 2, True),
    ],
)
def test_hits_end_inside_blocks_where_a_state_group_gains_and_every_group_can_serve_them(
    groups: tuple[GroupKind, ...], unit: int | None, ranks: int, expected: bool
) -> None:
    sizes = sizes_of(*groups, unit=unit, ranks=ranks)
    assert sizes.partial_hits is expected
    assert sizes.hit_alignment == (sizes.hash_unit if expected else sizes.scheduler_block)
    assert sizes.cacheable(17) == (17 if expected else 16)


LONG = SchedulerConfig(max_model_len=64)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            an_engine_config(groups=[FULL, SlidingWindow(block_size=0, window=8)]),
            r"groups\[1\] \(sliding_window\): block_size: expected at least 1, got 0",
        ),
        (
            an_engine_config(groups=[SlidingWindow(block_size=4, window=0)]),
            r"groups\[0\] \(sliding_window\): window: expected at least 1, got 0",
        ),
        (
            an_engine_config(groups=[ChunkedLocal(block_size=4, chunk=-8)]),
            r"groups\[0\] \(chunked_local\): chunk: expected at least 1, got -8",
        ),
        (
            an_engine_config(groups=[FULL, CrossAttention(block_size=4)]),
            r"groups\[1\] \(cross\): encoder tokens cannot be cached; turn prefix caching off",
        ),
        (
            an_engine_config(groups=[FULL, LinearState(block_size=64, mode=StateMode.NONE)], limits=LONG),
            r"groups\[1\] \(state\): state mode 'none' keeps nothing to share; turn prefix caching off",
        ),
        (
            an_engine_config(
                groups=[FULL, LinearState(block_size=16, mode=StateMode.NONE)], caching=False, limits=LONG
            ),
            "expected block_size of at least max_model_len 64, got 16",
        ),
        (
            an_engine_config(groups=[FULL, STATE], caching=False),
            r"groups\[1\] \(state\): state mode 'align' needs prefix caching",
        ),
        (
            an_engine_config(groups=[FULL, WINDOW], context_parallel_size=2),
            r"groups\[1\] \(sliding_window\): cannot be split over context_parallel_size 2",
        ),
        (
            an_engine_config(groups=[ChunkedLocal(block_size=4, chunk=8)], context_parallel_size=2),
            r"groups\[0\] \(chunked_local\): cannot be split over context_parallel_size 2",
        ),
        (
            an_engine_config(groups=[FullAttention(block_size=8), ChunkedLocal(block_size=4, chunk=8)]),
            r"groups\[1\] \(chunked_local\): .* expected block_size 8, got 4",
        ),
        (
            an_engine_config(groups=[FullAttention(block_size=8), WINDOW], prefix_match_unit=3),
            r"prefix_match_unit: 3 does not divide every block size, got \[8, 4\]",
        ),
        (
            an_engine_config(groups=[FULL], prefix_match_unit=2),
            "prefix_match_unit: with one group hits end at its blocks of 4, got 2",
        ),
        (an_engine_config(groups=[FULL, WINDOW], prefix_match_unit=0), "prefix_match_unit: expected at least 1, got 0"),
        (
            an_engine_config(groups=[FULL, WINDOW], retention_interval=6),
            "retention_interval: expected 0, or a multiple of the scheduler block 4, got 6",
        ),
        (
            an_engine_config(groups=[FULL, WINDOW], retention_interval=-4),
            "retention_interval: expected 0, or a multiple of the scheduler block 4, got -4",
        ),
        (
            an_engine_config(groups=[FULL], retention_interval=4),
            "retention_interval: only window and state groups forget blocks, and there is none; got 4",
        ),
    ],
)
def test_groups_that_cannot_work_together_are_refused_in_one_line(config: EngineConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        group_sizes(config)
    assert "\n" not in caught.value.message


def test_what_only_looks_odd_is_accepted() -> None:
    group_sizes(an_engine_config(groups=[FULL], retention_interval=None))
    group_sizes(an_engine_config(groups=[ChunkedLocal(block_size=4, chunk=10)]))
    group_sizes(
        an_engine_config(groups=[FullAttention(block_size=8), ChunkedLocal(block_size=4, chunk=8)], caching=False)
    )
