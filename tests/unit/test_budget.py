"""Parts of a card."""

import pytest

from kvengine.errors import ConfigError
from kvplan.budget import MemoryBudget, MemoryFraction, Part, divide_memory, given_kv, least_sure
from kvplan.estimate import Amount, Evidence, estimated, sure
from kvplan.gpu_spec import GpuSpec, gpu_of_size


def sizes(budget: MemoryBudget) -> dict[str, int]:
    return {part.name: part.size_bytes for part in budget.parts}


def given_sizes(gpu: GpuSpec, fraction: float, weights: int, overhead: int) -> MemoryBudget:
    return divide_memory(
        gpu,
        MemoryFraction(of_total=fraction),
        [
            Part(name="weights", amount=sure(weights, Evidence.GIVEN)),
            Part(name="overhead", amount=sure(overhead, Evidence.GIVEN)),
        ],
    )


def test_the_fraction_is_of_what_a_process_sees_and_rounds_up() -> None:
    gpu = GpuSpec(name="", total_bytes=1100, driver_reserve=sure(97, Evidence.TABLE))
    budget = given_sizes(gpu, 0.9, weights=300, overhead=100)

    # 1,003 bytes are seen; ceil(902.7) are taken.
    assert sizes(budget) == {
        "driver_reserve": 97,
        "outside_utilization": 100,
        "weights": 300,
        "overhead": 100,
        "kv_cache": 503,
    }
    assert budget.available_kv == sure(503, Evidence.TABLE)


def test_the_whole_card_can_be_taken() -> None:
    assert sizes(given_sizes(gpu_of_size(1000), 1.0, 0, 0))["kv_cache"] == 1000


def test_what_is_left_alone_says_whose_share_it_is_and_moves_with_the_drivers_part() -> None:
    card = GpuSpec(name="", total_bytes=1000, driver_reserve=estimated(10, 20, 40))

    def outside(gpu: GpuSpec, evidence: Evidence) -> Amount:
        budget = divide_memory(gpu, MemoryFraction(of_total=0.9, evidence=evidence), [])
        (part,) = (part for part in budget.parts if part.name == "outside_utilization")
        return part.amount

    assert outside(gpu_of_size(1000), Evidence.GIVEN) == sure(100, Evidence.GIVEN)
    assert outside(gpu_of_size(1000), Evidence.TABLE) == sure(100, Evidence.TABLE)
    # A tenth of 990, 980 and 960.
    assert outside(card, Evidence.TABLE) == estimated(96, 98, 99)


def test_what_is_missing_is_a_part_of_its_own() -> None:
    budget = given_sizes(gpu_of_size(1000), 0.5, weights=700, overhead=100)

    assert sizes(budget) == {
        "outside_utilization": 500,
        "weights": 700,
        "overhead": 100,
        "kv_cache": 0,
        "shortfall": -300,
    }
    assert budget.shortfall_bytes == 300


def test_ranges_of_parts_become_the_range_of_the_rest() -> None:
    gpu = GpuSpec(name="", total_bytes=1000, driver_reserve=estimated(10, 20, 40))
    budget = divide_memory(
        gpu,
        MemoryFraction(of_total=1.0),
        [Part(name="weights", amount=estimated(400, 500, 550)), Part(name="overhead", amount=estimated(50, 100, 300))],
    )

    # 1000 - 20 - 500 - 100; worst 1000 - 40 - 550 - 300; best 1000 - 10 - 400 - 50.
    available = budget.available_kv
    assert (available.size_bytes, available.low_bytes, available.high_bytes) == (380, 110, 540)
    assert available.evidence is Evidence.ESTIMATED


def test_what_comes_out_of_the_rest_of_the_card_is_no_more_than_there_is() -> None:
    graphs, others = (
        Part(name="cuda_graphs", amount=estimated(10, 60, 90)),
        Part(name="others", amount=estimated(50, 70, 80)),
    )

    def rest(card_bytes: int) -> dict[str, tuple[int, int, int]]:
        budget = divide_memory(gpu_of_size(card_bytes), MemoryFraction(of_total=0.9), [], outside=[graphs, others])
        return {
            part.name: (part.amount.low_bytes, part.size_bytes, part.amount.high_bytes)
            for part in budget.parts
            if part.name != "kv_cache"
        }

    # A tenth of 2,000 bytes holds both; a tenth of 1,000 holds the first and 40 of the second.
    assert rest(2000) == {"outside_utilization": (70, 70, 70), "cuda_graphs": (10, 60, 90), "others": (50, 70, 80)}
    assert rest(1000) == {"outside_utilization": (0, 0, 0), "cuda_graphs": (10, 60, 90), "others": (40, 40, 40)}


def test_given_kv_memory_leaves_the_rest_of_the_card_alone() -> None:
    assert sizes(given_kv(300, gpu_of_size(1000))) == {"not_modelled": 700, "kv_cache": 300}
    assert sizes(given_kv(300, None)) == {"kv_cache": 300}
    with pytest.raises(ConfigError, match="more than the card's 1000 B"):
        given_kv(1001, gpu_of_size(1000))


def test_a_sum_is_as_sure_as_its_least_sure_part() -> None:
    assert least_sure(sure(1, Evidence.GIVEN), sure(1, Evidence.EXACT)) is Evidence.EXACT
    assert least_sure(sure(1, Evidence.TABLE), estimated(1, 2, 3), sure(1, Evidence.GIVEN)) is Evidence.ESTIMATED
    # A part of nothing makes nothing less sure.
    assert least_sure(sure(0, Evidence.TABLE), sure(1, Evidence.GIVEN)) is Evidence.GIVEN
