"""Times of requests and steps as a table: what is shown of repeats, and what a service level asks."""

import msgspec

from kvplan.figures import Figures
from kvplan.groups import group_repeats
from kvplan.latency import Latencies, percentiles
from kvplan.quality_figures import QualityFigures
from kvplan.recommend import recommend
from kvplan.report import report_table
from kvplan.results import PointResult
from kvplan.side_tables import side_tables
from kvplan.times_table import times_table

NONE = Figures(num_blocks=9, usable_blocks=8, kv_cache_bytes=1)


def latencies(*waits: float, unit: str = "s") -> Latencies:
    return Latencies(
        unit=unit,  # type: ignore[arg-type]
        ttft=percentiles(waits),
        itl=percentiles([wait / 1000 for wait in waits]),
        tpot=None,
        e2e=percentiles([100 * wait for wait in waits]),
    )


def a_point(seed: int, measured: Figures | None, **settings: float) -> PointResult:
    return PointResult(
        fingerprint=str(seed),
        series="s",
        name="p",
        settings={"block_size": 16, "seed": seed, **settings},
        axes=("block_size",),
        outcome="finished",
        num_requests=3,
        planned=NONE,
        measured=measured,
        environment={},
        finished_unix_s=0.0,
    )


def test_the_slowest_of_repeats_is_never_averaged_away() -> None:
    calm = msgspec.structs.replace(NONE, latencies=latencies(1.0, 2.0, 3.0))
    rough = msgspec.structs.replace(NONE, latencies=latencies(1.5, 2.5, 99.0))
    table = times_table([a_point(0, calm), a_point(1, rough), a_point(2, calm)])

    assert table is not None
    # Of the middles 2, 2.5 and 2 the median; of the slowest 3, 99 and 3 the slowest.
    assert table.rows == [["16", "2.00", "99.0", "99.0", "2.00", "99.0", "99.0", "200", "9,900", "9,900"]]
    assert len(table.titles) == len(table.rows[0])


def test_what_steps_were_spent_on_and_what_was_good_is_shown_where_it_is_known() -> None:
    figures = msgspec.structs.replace(
        NONE,
        latencies=latencies(1.0),
        schedule_s=0.25,
        execute_s=2.0,
        update_s=0.25,
        good_requests=3,
        elapsed_s=2.0,
    )
    table = times_table([a_point(0, figures, **{"slo.ttft_s": 0.5})])

    assert table is not None
    assert table.rows[0][-5:] == ["10.0 %", "80.0 %", "10.0 %", "3", "1.5"]
    assert any("within the service level (ttft_s 0.5)" in note for note in table.notes)


def test_times_that_were_only_simulated_or_counted_in_steps_have_no_table() -> None:
    steps = msgspec.structs.replace(NONE, latencies=latencies(1.0, unit="steps"))

    assert times_table([a_point(0, None), a_point(1, steps)]) is None
    assert side_tables([a_point(0, None)]) == []


def test_hits_are_counted_as_every_point_has_them() -> None:
    served = msgspec.structs.replace(NONE, first_prefix_hit_tokens=1472)
    planned = msgspec.structs.replace(NONE, prefix_hit_tokens=3008, first_prefix_hit_tokens=1472)
    point = msgspec.structs.replace(a_point(0, served), planned=planned)
    table = report_table([point])

    column = table.titles.index("first\nhits")
    assert [row[column] for row in table.rows] == ["1,472", "1,472"]
    assert "prefix\nhits" not in table.titles


def test_what_more_throughput_costs_in_quality_is_part_of_the_recommendation() -> None:
    quality = QualityFigures(
        reference="bfloat16",
        num_texts=1,
        num_positions=1000,
        kl_mean=0.0123,
        kl_p50=0.01,
        kl_p99=0.1,
        kl_max=0.2,
        top1_agreement=0.95,
        perplexity=None,
        reference_perplexity=None,
        by_position=[],
    )
    slow = msgspec.structs.replace(a_point(0, msgspec.structs.replace(NONE, output_tokens_per_s=10.0)))
    quick = msgspec.structs.replace(
        a_point(0, msgspec.structs.replace(NONE, output_tokens_per_s=20.0, quality=quality)),
        settings={"block_size": 8, "seed": 0},
    )
    advice = recommend(group_repeats([slow, quick]))

    assert advice is not None
    assert (
        "block_size=8 diverges from a bfloat16 cache by 0.012 nats on average, with the same likeliest token at 95.0 %"
        " of 1,000 positions"
    ) in advice.sentence
