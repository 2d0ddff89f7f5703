"""Reports: planned beside measured, the same values in every format."""

import json

import msgspec
import pytest

from kvplan.figures import Figures
from kvplan.report import latest_series, report_document, report_markdown, report_rows, report_table, split_series
from kvplan.results import PointResult

PLANNED = Figures(
    num_blocks=1250,
    usable_blocks=1249,
    kv_cache_bytes=46_080_000,
    peak_blocks_in_use=1200,
    preemptions=0,
    prefix_hit_tokens=9792,
    recomputed_tokens=27,
    tail_waste_fraction=0.03922,
    output_tokens=713,
)
MEASURED = msgspec.structs.replace(
    PLANNED,
    preemptions=2,
    prompt_tokens_per_s=999.05,
    output_tokens_per_s=68.46,
    step_s_median=0.1053,
    step_s_p90=0.2108,
)


def a_point(block_size: int = 8, **changes: object) -> PointResult:
    point = PointResult(
        fingerprint=f"f{block_size}",
        series="s1",
        name="block-size",
        settings={"block_size": block_size, "model": "m", "available_kv": None, "prefix_caching": True},
        axes=("block_size",),
        outcome="finished",
        num_requests=24,
        planned=PLANNED,
        measured=MEASURED,
        environment={"pagedkv": "0.1.0", "computed_on": "cpu"},
        finished_unix_s=0.0,
    )
    return msgspec.structs.replace(point, **changes)


def test_planned_stands_above_measured() -> None:
    table = report_table([a_point(8)])

    assert table.rows == [
        ["8", "planned", "1,250", "1,200", "0", "9,792", "27", "3.9 %", "–", "–", "–"],
        ["", "measured", "1,250", "1,200", "2", "9,792", "27", "3.9 %", "999", "68.5", "105/211"],
    ]
    assert all(len(row) == len(table.titles) for row in table.rows)


def test_what_is_not_known_is_never_shown_as_zero() -> None:
    budget_only = Figures(num_blocks=2, usable_blocks=1, kv_cache_bytes=100)
    point = a_point(64, outcome="does_not_fit", message="needs 8 blocks", planned=budget_only, measured=None)

    table = report_table([point])

    assert table.rows == [["64", "planned", "2", *["–"] * 5]]
    assert "block_size=64: does not fit: needs 8 blocks" in table.notes


def test_a_key_that_one_point_does_not_set_is_none_and_not_a_word_of_the_language_it_is_written_in() -> None:
    point = a_point(16, axes=("block_size", "available_kv"))

    assert report_table([point]).rows[0][:2] == ["16", "none"]
    assert point.label == "block_size=16 available_kv=none"


def test_memory_is_told_once_for_all_points_that_have_it_in_common() -> None:
    def point(block_size: int, weight_bytes: int, pool_bytes: int) -> PointResult:
        planned = msgspec.structs.replace(PLANNED, weight_bytes=2**20, kv_cache_bytes=2**22 * block_size)
        measured = msgspec.structs.replace(MEASURED, weight_bytes=weight_bytes, kv_cache_bytes=pool_bytes)
        return a_point(block_size, planned=planned, measured=measured)

    as_planned = [point(8, 2**21, 2**25), point(16, 2**21, 2**26)]
    other = point(32, 2**21, 2**26)

    assert "memory: weights 1.00 MiB planned, 2.00 MiB held; blocks as planned" in report_table(as_planned).notes
    notes = report_table([*as_planned, other]).notes
    weights = "weights 1.00 MiB planned, 2.00 MiB held"
    assert f"memory of block_size=8, block_size=16: {weights}; blocks as planned" in notes
    assert f"memory of block_size=32: {weights}; blocks 128.00 MiB planned, 64.00 MiB held" in notes


def test_outputs_that_ended_early_are_said_to_have() -> None:
    measured = msgspec.structs.replace(MEASURED, output_tokens=512)

    notes = report_table([a_point(8, measured=measured)]).notes

    assert "block_size=8: outputs ended early at end-of-sequence tokens: 512 of 713 planned tokens" in notes


def test_points_of_different_machines_are_not_to_be_compared() -> None:
    notes = report_table([a_point(8), a_point(16, environment={"device": "cuda (another)"})]).notes

    assert any("different devices or versions" in note for note in notes)


def test_a_server_that_was_started_anew_is_the_same_server_at_another_port() -> None:
    ports = [{"server": "vllm 0.32.0", "url": f"http://127.0.0.1:{port}"} for port in (4001, 4002)]
    notes = report_table([a_point(8, environment=ports[0]), a_point(16, environment=ports[1])]).notes

    assert not any("different devices or versions" in note for note in notes)


def test_a_changed_profile_is_never_mixed_with_the_older_one() -> None:
    points = [
        a_point(32, series="old", finished_unix_s=1.0),
        a_point(16, finished_unix_s=2.0),
        a_point(8, finished_unix_s=3.0),
        a_point(8, name="other", series="s2", finished_unix_s=0.5),
    ]

    def names(groups: list[list[PointResult]]) -> list[list[tuple[str, object]]]:
        return [[(point.name, point.settings["block_size"]) for point in group] for group in groups]

    current = [("block-size", 8), ("block-size", 16)]
    assert names(latest_series(points)) == [current, [("other", 8)]]
    assert names(split_series(points)) == [[("block-size", 32)], current, [("other", 8)]]


def test_rows_are_ordered_by_value_and_not_by_text() -> None:
    ((first, second, third),) = split_series([a_point(128), a_point(16), a_point(8)])

    assert [point.settings["block_size"] for point in (first, second, third)] == [8, 16, 128]


def test_rows_and_document_agree_value_for_value() -> None:
    points = [a_point(8), a_point(16, measured=None), a_point(32, message='has "quotes", a comma')]
    document = report_document(points)
    assert isinstance(document["points"], list)
    assert not points[0].settings.keys() & points[0].environment.keys()

    for row, record in zip(report_rows(points), document["points"], strict=True):
        assert row["message"] == record["message"]
        assert row["axes"] == "block_size"
        assert row.items() >= record["settings"].items()
        assert row.items() >= record["environment"].items()
        for side in ("planned", "measured"):
            figures = record[side] or {}
            assert {key: value for key, value in row.items() if key.startswith(f"{side}_")} == {
                f"{side}_{key}": value
                for key, value in figures.items()
                if key not in ("latencies", "timeline", "gpus", "memory", "quality")  # none was noted in these
            }


def test_the_document_names_its_schema_and_keeps_full_precision() -> None:
    document = json.loads(json.dumps(report_document([a_point(8)])))

    assert document["schema"] == "kvplan.results/1"
    (point,) = document["points"]
    assert point["measured"]["prompt_tokens_per_s"] == 999.05
    assert point["planned"]["prompt_tokens_per_s"] is None
    assert point["finished_at"] == "1970-01-01T00:00:00+00:00"


@pytest.mark.parametrize("points", [[a_point(8)], [a_point(8), a_point(16)], [a_point(8, axes=())]])
def test_markdown_has_as_many_cells_in_every_row(points: list[PointResult]) -> None:
    lines = [line for line in report_markdown(points).splitlines() if line.startswith("|")]

    assert len(lines) == 2 + 2 * len(points)
    assert len({line.count("|") for line in lines}) == 1
    assert "| preempted | prefix hits | recomputed |" in lines[0]
