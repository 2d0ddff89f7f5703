from pathlib import Path

import msgspec
import pytest

from kvengine.allocators.memory_use import MemoryMeter, MemoryUse
from kvplan.figures import Figures
from kvplan.html.page import html_page
from kvplan.memory_figures import MemoryFigures
from kvplan.memory_table import memory_table
from kvplan.report import report_document, report_rows, table_markdown
from kvplan.results import PointResult

BUDDY = MemoryFigures(
    total_slots=1000,
    used_slots_mean=300.0,
    used_slots_peak=400,
    pending_slots_mean=100.0,
    pending_slots_peak=150,
    reserved_slots_mean=0.0,
    reserved_slots_peak=0,
    internal_slots_mean=200.0,
    internal_slots_peak=250,
    external_slots_mean=50.0,
    external_slots_peak=300,
    index_bytes_mean=20.5,
    index_bytes_peak=28,
    index_table_bytes=1024,
    fragmented_steps=3,
    admitted_requests=12,
)


def a_point(allocator: str, memory: MemoryFigures | None) -> PointResult:
    figures = Figures(num_blocks=1001, usable_blocks=1000, kv_cache_bytes=1, peak_running=7, memory=memory)
    return PointResult(
        fingerprint=allocator,
        series="s",
        name="allocators",
        settings={"allocator": allocator, "target": "simulated"},
        axes=("allocator",),
        outcome="finished",
        num_requests=12,
        planned=figures,
        environment={},
        finished_unix_s=0.0,
    )


def test_shares_are_of_what_is_held_and_the_external_part_is_of_the_pool() -> None:
    table = memory_table([a_point("buddy", BUDDY)])

    assert table is not None
    # 600 slots are held: 300 used, 100 pending, 200 internal; wasted are 300 and 50 external, of 650.
    assert table.rows == [
        ["buddy", "12", "7", "600", "50.0 %", "16.7 %", "0.0 %", "33.3 %", "5.0 %", "53.8 %", "3", "28 B"]
    ]
    assert len(table.titles) == len(table.rows[0])
    assert "| buddy | 12 | 7 | 600 | 50.0 % |" in table_markdown(table)


def test_of_repeats_the_medians_are_shown() -> None:
    points = []
    for seed, used in enumerate((300.0, 310.0, 500.0)):
        point = a_point("buddy", msgspec.structs.replace(BUDDY, used_slots_mean=used, fragmented_steps=seed))
        points.append(msgspec.structs.replace(point, settings={**point.settings, "seed": seed}))

    table = memory_table(points)

    assert table is not None
    # 310 used of 610 held; one step split.
    assert table.rows[0][3:5] == ["610", "50.8 %"]
    assert table.rows[0][-2:] == ["1", "28 B"]
    assert len(table.rows) == 1


@pytest.mark.parametrize("points", [[a_point("paged", BUDDY)], [a_point("buddy", None)]])
def test_there_is_no_table_where_nothing_is_to_be_told_apart(points: list[PointResult]) -> None:
    assert memory_table(points) is None


def test_figures_go_into_json_and_columns_of_csv() -> None:
    point = a_point("buddy", BUDDY)
    (record,) = report_document([point])["points"]
    assert record["planned"]["memory"]["internal_slots_peak"] == 250
    (row,) = report_rows([point])
    assert row["planned_memory_external_slots_mean"] == 50.0
    assert "planned_memory" not in report_rows([a_point("buddy", None)])[0]


def test_the_page_shows_the_table(tmp_path: Path) -> None:
    page = html_page([[a_point("buddy", BUDDY)]], title="t")
    assert "<td>53.8 %</td>" in page


def test_results_without_memory_figures_are_still_read() -> None:
    older = msgspec.json.decode(msgspec.json.encode(a_point("buddy", None)))
    del older["planned"]["memory"]
    assert msgspec.convert(older, PointResult, strict=False).planned.memory is None


def test_means_are_over_time_and_peaks_over_steps() -> None:
    meter = MemoryMeter()
    assert meter.means is None
    use = MemoryUse(total=100, used=10, pending=4, reserved=0, internal=2, external=0, index_bytes=4)
    meter.add(use, 1.0)
    meter.add(use._replace(used=40, external=8), 3.0)

    # (10 + 3 * 40) / 4 and (0 + 3 * 8) / 4.
    assert meter.means == {
        "used": 32.5,
        "pending": 4.0,
        "reserved": 0.0,
        "internal": 2.0,
        "external": 6.0,
        "index_bytes": 4.0,
    }
    assert (meter.total, meter.peaks["used"], meter.peaks["external"]) == (100, 40, 8)


@pytest.mark.parametrize("wrong", [{"used": -1}, {"internal": 95}, {"external": 88}])
def test_slots_that_do_not_add_up_are_noticed(wrong: dict[str, int]) -> None:
    use = MemoryUse(total=100, used=10, pending=4, reserved=0, internal=2, external=0, index_bytes=4)
    use.check_invariants()
    with pytest.raises(AssertionError):
        use._replace(**wrong).check_invariants()
