"""What a sweep says to do, and how two files are compared."""

import pytest

from kvplan.compare import compare
from kvplan.figures import Figures, combined
from kvplan.groups import group_repeats
from kvplan.recommend import recommend
from kvplan.results import PointResult


def a_point(
    block_size: int, rate: float, *, seed: int = 0, preemptions: int = 0, outcome: str = "finished"
) -> PointResult:
    planned = Figures(num_blocks=10, usable_blocks=9, kv_cache_bytes=1000)
    measured = Figures(
        num_blocks=10, usable_blocks=9, kv_cache_bytes=1000, output_tokens_per_s=rate, preemptions=preemptions
    )
    return PointResult(
        fingerprint=f"{block_size}/{seed}",
        series="s",
        name="test",
        settings={"block_size": block_size, "seed": seed},
        axes=("block_size",),
        outcome=outcome,  # type: ignore[arg-type]
        num_requests=2,
        planned=planned,
        measured=measured,
        environment={},
        finished_unix_s=0.0,
    )


def points(block_size: int, *rates: float, preemptions: int = 0) -> list[PointResult]:
    return [a_point(block_size, rate, seed=seed, preemptions=preemptions) for seed, rate in enumerate(rates)]


def sentence(*members: list[PointResult]) -> str:
    found = recommend(group_repeats([point for group in members for point in group]))
    assert found is not None
    return found.sentence


def test_the_best_point_is_named_with_its_gain_its_margin_and_its_preemptions() -> None:
    # Against 16: differences 6, 7 and 5 on a mean of 100: 6 %, and 4.303 x 1 / sqrt(3) / 100 = 2.5 %.
    said = sentence(
        points(16, 100, 101, 99, preemptions=10), points(32, 106, 108, 104, preemptions=12), points(8, 80, 81, 79)
    )

    assert said == (
        "block_size=32: +6.0 % ± 2.5 output throughput against block_size=16, preemptions: 12 instead of 10;"
        " measured 3 times a point, 95 % intervals."
    )


def test_points_that_cannot_be_told_apart_from_the_best_are_named() -> None:
    said = sentence(points(16, 100, 101, 99), points(32, 120, 121, 122), points(64, 119, 124, 117))

    assert "block_size=32: +21.0 %" in said
    assert "not distinguishable from block_size=64;" in said


def test_the_default_stays_if_nothing_is_beyond_doubt_better() -> None:
    found = recommend(group_repeats([*points(16, 100, 90, 110), *points(32, 101, 85, 119)]))

    assert found is not None
    assert found.chosen.label == "block_size=16"
    assert found.sentence.startswith(
        "block_size=16: no point has distinguishably more output throughput; block_size=32 has +1.7 % ±"
    )


def test_single_runs_say_that_their_spread_is_not_known() -> None:
    said = sentence(points(16, 100), points(32, 106))

    assert said == (
        "block_size=32: +6.0 % output throughput against block_size=16;"
        " measured once a point, so the spread is not known (set repeats)."
    )


def test_the_default_that_is_the_best_is_compared_with_the_next() -> None:
    said = sentence(points(16, 110, 111), points(32, 100, 101), points(8, 50, 51))

    assert said.startswith(
        "block_size=16: the most output throughput of 3 points, +10.0 % ± 0.0 against block_size=32;"
    )


def test_points_that_did_not_finish_are_not_recommended() -> None:
    unfinished = [a_point(64, 500, outcome="unfinished")]

    assert "block_size=32" in sentence(points(16, 100), points(32, 106), unfinished)
    assert recommend(group_repeats([*points(16, 100), *unfinished])) is None


def test_a_figure_of_repeats_is_chosen_among_those_that_have_it() -> None:
    figures = [point.measured for point in points(16, 1.5, 2.5, 9.0, preemptions=3) if point.measured]

    assert combined(figures, max).output_tokens_per_s == 9.0
    assert combined(figures, min).preemptions == 3
    assert combined(figures, max).prefix_hit_tokens is None


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        ((80, 81, 79), "worse"),
        ((120, 121, 119), "better"),
        ((100, 101, 99), "same"),
        ((90, 120, 91), "not distinguishable"),
        ((80,), "unknown"),
    ],
)
def test_a_change_is_flagged_only_beyond_doubt(after: tuple[float, ...], verdict: str) -> None:
    comparison = compare([*points(16, 100, 101, 99), *points(8, 1)], [*points(16, *after), *points(32, 1)])

    assert {difference.metric.key: difference.verdict for difference in comparison.differences} == {
        "output_tokens_per_s": verdict,
        "preemptions": "same" if len(after) == 3 else "unknown",
    }
    assert (comparison.only_before, comparison.only_after) == (["test block_size=8"], ["test block_size=32"])
    assert len(comparison.regressions) == (verdict == "worse")


def test_preemptions_that_appear_where_none_were_are_worse() -> None:
    before, after = points(16, 1, 1, preemptions=0), points(16, 1, 1, preemptions=5)

    (regression,) = compare(before, after).regressions
    assert (regression.metric.key, regression.change) == ("preemptions", None)


def test_where_throughput_tells_no_points_apart_what_does_is_named() -> None:
    # All alike in throughput; in preemptions 16 has 10 and 32 has 2.
    best_is_usual = sentence(points(16, 101, 99, preemptions=10), points(32, 100, 99, preemptions=2))
    best_is_other = sentence(points(16, 100, 99, preemptions=10), points(32, 101, 99, preemptions=2))
    all_alike = sentence(points(16, 101, 99, preemptions=10), points(32, 100, 99, preemptions=9))

    apart = "; preemptions: 2 (block_size=32) to 10 (block_size=16); "
    assert best_is_usual.startswith("block_size=16: no point has distinguishably more output throughput" + apart)
    assert best_is_other.startswith("block_size=16: no point has distinguishably more output throughput; block_size=32")
    assert apart in best_is_other
    assert "preemptions" not in all_alike
