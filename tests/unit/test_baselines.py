"""Four ways of handing out the same memory, by hand."""

from fractions import Fraction

import pytest

from kvplan.baselines import Baseline, Design, compare_designs, next_power_of_two
from kvplan.capacity import Capacity, EngineKind, count_blocks
from kvplan.demand import Demand, full_length_demand, lengths_demand, tail_waste, uniform_demand
from tests.builders import a_kv_cache_spec


def a_capacity(
    *, slots: int = 100, block_size: int = 8, longest: int = 40, engine: EngineKind = EngineKind.PAGED
) -> Capacity:
    spec = a_kv_cache_spec(block_size=block_size)
    return count_blocks(spec, engine, available_bytes=slots * spec.token_bytes, max_model_len=longest)


def compare(demand: Demand, *, prefix_caching: bool = True, **pool: int) -> dict[Design, Baseline]:
    return compare_designs(a_capacity(**pool), demand, table_requests=3, prefix_caching=prefix_caching)


def slots(baseline: Baseline) -> tuple[int, int, int, int]:
    return (
        baseline.slots_allocated,
        baseline.slots_used,
        baseline.reserved_waste_slots,
        baseline.internal_waste_slots,
    )


def test_equal_requests_fill_each_design_in_its_own_way() -> None:
    designs = compare(uniform_demand(prompt_tokens=9, output_tokens=2))

    # 100 slots: slabs of 40, of 16, 2 blocks of 8 out of 12, and 11 slots each.
    assert [designs[design].requests for design in Design] == [2, 6, 6, 9]
    assert slots(designs[Design.CONTIGUOUS]) == (80, 22, 58, 0)
    assert slots(designs[Design.BUDDY]) == (96, 66, 0, 30)
    assert slots(designs[Design.PAGED]) == (96, 66, 0, 30)
    assert slots(designs[Design.TOKEN_LEVEL]) == (99, 99, 0, 0)
    assert designs[Design.CONTIGUOUS].waste_fraction == Fraction(58, 80)


def test_a_list_of_requests_is_taken_in_order_up_to_the_first_that_does_not_fit() -> None:
    # Blocks of 8: 3, 10, 1 of 12. The second does not fit, so the third waits behind it; together they take 14.
    designs = compare(lengths_demand((20, 75, 5)), longest=75)

    assert designs[Design.PAGED].requests == 1
    assert slots(designs[Design.PAGED]) == (112, 100, 0, 12)
    assert not designs[Design.PAGED].fits
    assert designs[Design.TOKEN_LEVEL].fits


def test_a_request_longer_than_its_slab_fits_in_none() -> None:
    designs = compare(lengths_demand((41,)))

    assert designs[Design.CONTIGUOUS].requests == 0
    assert not designs[Design.CONTIGUOUS].fits
    assert designs[Design.PAGED].fits


def test_a_number_that_was_asked_for_is_counted_whether_it_fits_or_not() -> None:
    designs = compare(uniform_demand(prompt_tokens=9, output_tokens=2, requests=8))

    assert (designs[Design.PAGED].requests, designs[Design.PAGED].fits) == (6, False)
    assert slots(designs[Design.PAGED]) == (128, 88, 0, 40)
    assert designs[Design.TOKEN_LEVEL].fits


@pytest.mark.parametrize(
    ("prefix_caching", "paged", "by_token"),
    # 20 of 25 tokens are shared: 2 whole blocks of 12 leave 10 for requests of 2; 20 slots leave 80 for 5 each.
    [(True, 5, 16), (False, 3, 4)],
)
def test_a_common_prefix_is_held_once_as_far_as_it_fills_units(prefix_caching: bool, paged: int, by_token: int) -> None:
    designs = compare(
        uniform_demand(prompt_tokens=22, output_tokens=3, shared_prefix=20), prefix_caching=prefix_caching
    )

    assert designs[Design.PAGED].requests == paged
    assert designs[Design.TOKEN_LEVEL].requests == by_token


def test_the_last_token_of_a_prompt_is_never_shared() -> None:
    # A prompt of 16 that all share: only its first block of 8 is hit, since the 16th token is computed anew.
    demand = uniform_demand(prompt_tokens=16, output_tokens=1, shared_prefix=16)

    assert demand.shared_tokens(prefix_caching=True) == 15
    assert demand.shared_tokens(prefix_caching=False) == 0
    assert a_capacity(block_size=8).shared_blocks(15) == 1


@pytest.mark.parametrize(
    "demand", [uniform_demand(prompt_tokens=41, output_tokens=0, requests=2), lengths_demand((5, 41))]
)
def test_a_request_longer_than_its_slab_takes_none_instead_of_filling_it_to_the_brim(demand: Demand) -> None:
    slabs = compare(demand, longest=40)[Design.CONTIGUOUS]

    assert slots(slabs) == (0, 0, 0, 0)
    assert (slabs.requests, slabs.waste_fraction, slabs.fits) == (0, None, False)


def test_tables_are_sized_for_the_longest_request() -> None:
    designs = compare(full_length_demand(40))

    # 3 requests: 3 starts; 3 rows of 5 blocks; 4 rows of 40 tokens, one of them padding; 4 bytes an entry.
    assert [designs[design].index_bytes for design in Design] == [12, 12, 60, 640]


def test_the_null_block_holds_no_request() -> None:
    capacity = a_capacity(slots=100, engine=EngineKind.VLLM)
    paged = compare_designs(
        capacity, uniform_demand(prompt_tokens=8, output_tokens=0), table_requests=1, prefix_caching=True
    )

    assert capacity.num_blocks == 12
    assert paged[Design.PAGED].requests == 11


def test_an_empty_pool_holds_nothing_and_wastes_nothing() -> None:
    for design, baseline in compare(full_length_demand(40), slots=0).items():
        assert (baseline.requests, baseline.waste_fraction, baseline.fits) == (0, None, False), design


@pytest.mark.parametrize(("value", "power"), [(1, 1), (2, 2), (3, 4), (612, 1024), (1024, 1024), (1025, 2048)])
def test_a_buddy_slab_is_the_next_power_of_two(value: int, power: int) -> None:
    assert next_power_of_two(value) == power


def test_tail_waste_depends_on_the_residue() -> None:
    assert [tail_waste(length, 16) for length in (1, 15, 16, 17)] == [15, 1, 0, 15]
