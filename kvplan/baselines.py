"""The same requests under four ways of handing out KV memory, and what each of them wastes.

contiguous    a slab of the longest length for every request          reserved, never used
buddy         the next power of two above the request's length        unused inside the slab
paged         whole blocks                                            unused in the last block
token_level   single tokens                                           nothing
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from kvplan.capacity import Capacity
from kvplan.consecutive import ConsecutiveRequests
from kvplan.demand import Demand, DemandKind
from kvplan.shared_prefixes import NOTHING_SHARED, SharedPrefixes

_INDEX_ENTRY_BYTES = 4
"""Block tables and token tables hold 32-bit integers."""


class Design(StrEnum):
    """Ways of handing out KV memory."""

    CONTIGUOUS = "contiguous"
    BUDDY = "buddy"
    PAGED = "paged"
    TOKEN_LEVEL = "token_level"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What one design does with the demand. Slots are tokens' worth of KV memory.

    `slots_allocated == slots_used + reserved_waste_slots + internal_waste_slots`. Where the demand says how many
    requests there are, the slots are those that all of them take, whether they fit or not; where it does not, those of
    the requests that fit.
    """

    requests: int
    """Requests that fit at the same time; of a list, those that fit in order; of a workload, any so many in a row."""
    slots_total: int
    """Slots that the design can hand out."""
    slots_allocated: int
    slots_used: int
    reserved_waste_slots: int
    """Kept for tokens that never come."""
    internal_waste_slots: int
    """Unused because of the unit in which slots are handed out."""
    external_waste_slots: int
    """Free but in pieces too small to use: none, since nothing has been freed yet; holes come with churn."""
    index_bytes: int
    """Tables that say where each token is, for `table_requests` requests of the longest length."""
    fits: bool
    """Whether all requests fit that are asked for, or at least one where no number is."""
    requests_mean: Fraction | None = None
    """Of a workload: requests in a row that fit, on average over the ones that they may begin with."""
    requests_most: int | None = None
    """The same where one begins at the best place."""

    @property
    def waste_fraction(self) -> Fraction | None:
        """Waste over slots allocated; None when none are."""
        wasted = self.reserved_waste_slots + self.internal_waste_slots
        return Fraction(wasted, self.slots_allocated) if self.slots_allocated else None


def compare_designs(
    capacity: Capacity, demand: Demand, *, table_requests: int, prefix_caching: bool
) -> dict[Design, Baseline]:
    """Work out all four designs for the same memory and the same requests.

    The designs other than the paged one keep every token in every attention layer. A model without attention keeps one
    state per request in all of them.
    """
    paged = paged_baseline(capacity, demand, table_requests=table_requests, prefix_caching=prefix_caching)
    if not capacity.token_bytes:
        return dict.fromkeys(Design, paged)
    longest, slots = capacity.max_model_len, capacity.token_slots
    row_bytes = table_requests * _INDEX_ENTRY_BYTES
    # A token-level table has one row more, for padding (SGLang's request-to-token pool).
    token_table_bytes = (table_requests + 1) * longest * _INDEX_ENTRY_BYTES
    return {
        Design.CONTIGUOUS: _slabs(demand, slots, lambda _: longest, reserved=True, index_bytes=row_bytes),
        Design.BUDDY: _slabs(demand, slots, next_power_of_two, reserved=False, index_bytes=row_bytes),
        Design.PAGED: paged,
        Design.TOKEN_LEVEL: _tokens(demand, slots, prefix_caching=prefix_caching, index_bytes=token_table_bytes),
    }


def paged_baseline(capacity: Capacity, demand: Demand, *, table_requests: int, prefix_caching: bool) -> Baseline:
    """Work out whole blocks."""
    return _units(
        demand,
        _Units(
            count=capacity.usable_blocks,
            slots=capacity.block_slots,
            needed=capacity.blocks_for,
            unused=capacity.tail_waste,
            filled=capacity.shared_blocks,
            most_requests=capacity.state_slots,
        ),
        prefix_caching=prefix_caching,
        index_bytes=table_requests * capacity.blocks_per_request * _INDEX_ENTRY_BYTES,
    )


def next_power_of_two(value: int) -> int:
    """Round up to a power of two: 612 to 1,024."""
    return 1 << (value - 1).bit_length()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Units:
    """What is handed out: so many units, each of so many slots."""

    count: int
    slots: int
    needed: Callable[[int], int]
    """Units of a request of a length."""
    unused: Callable[[int], int]
    """Slots of these that hold no token."""
    filled: Callable[[int], int]
    """Units that so many tokens at the start of prompts fill, and that requests can hold once between them."""
    most_requests: int | None = None
    """Requests that there are states for, where these have a pool of their own."""


def _tokens(demand: Demand, slots: int, *, prefix_caching: bool, index_bytes: int) -> Baseline:
    """Work out single tokens."""
    units = _Units(count=slots, slots=1, needed=_all, unused=lambda _: 0, filled=_all)
    return _units(demand, units, prefix_caching=prefix_caching, index_bytes=index_bytes)


def _all(tokens: int) -> int:
    return tokens


def _units(demand: Demand, units: _Units, *, prefix_caching: bool, index_bytes: int) -> Baseline:
    """Work out whole units; a common prefix is held once, as far as it fills units."""
    if demand.kind is DemandKind.WORKLOAD:
        prefixes = demand.prefixes if prefix_caching else NOTHING_SHARED
        return _workload(demand, units, prefixes, index_bytes=index_bytes)
    shared = units.filled(demand.shared_tokens(prefix_caching=prefix_caching))
    fitting = _fitting(demand, units.count - shared, lambda length: units.needed(length) - shared)
    if units.most_requests is not None:
        fitting = min(fitting, units.most_requests)
    counted = demand.requests if demand.requests is not None else fitting
    waste = _over_requests(demand, counted, units.unused)
    private = _over_requests(demand, counted, lambda length: units.needed(length) - shared)
    allocated = (private + (shared if counted else 0)) * units.slots
    return Baseline(
        requests=fitting,
        slots_total=units.count * units.slots,
        slots_allocated=allocated,
        slots_used=allocated - waste,
        reserved_waste_slots=0,
        internal_waste_slots=waste,
        external_waste_slots=0,
        index_bytes=index_bytes,
        fits=fitting >= (demand.requests or 1),
    )


def _workload(
    demand: Demand, units: _Units, prefixes: SharedPrefixes, *, index_bytes: int, reserved: bool = False
) -> Baseline:
    """Work out any requests of a workload in a row; the slots are those of the run that takes most."""
    of_length = {length: (units.needed(length), units.unused(length)) for length in set(demand.lengths)}
    requests = ConsecutiveRequests(
        [of_length[length][0] for length in demand.lengths],
        prefixes,
        [units.filled(end) - units.filled(begin) for begin, end in prefixes.stretches],
    )
    wanted = demand.requests or len(demand.lengths)
    runs, heaviest = requests.fitting(units.count, units.most_requests), requests.heaviest(wanted)
    waste = sum(of_length[length][1] for length in demand.lengths[heaviest.start : heaviest.start + wanted])
    allocated = heaviest.units * units.slots
    return Baseline(
        requests=runs.fewest,
        slots_total=units.count * units.slots,
        slots_allocated=allocated,
        slots_used=allocated - waste,
        reserved_waste_slots=waste if reserved else 0,
        internal_waste_slots=0 if reserved else waste,
        external_waste_slots=0,
        index_bytes=index_bytes,
        fits=runs.fewest >= wanted,
        requests_mean=runs.mean,
        requests_most=runs.most,
    )


def _slabs(
    demand: Demand, slots_total: int, slab: Callable[[int], int], *, reserved: bool, index_bytes: int
) -> Baseline:
    """Work out one slab per request; none are handed out when one of them is longer than its slab."""
    too_long = any(length > slab(length) for length in demand.lengths)
    if demand.kind is DemandKind.WORKLOAD and not too_long:
        units = _Units(
            count=slots_total,
            slots=1,
            needed=slab,
            unused=lambda length: slab(length) - length,
            filled=lambda _: 0,
        )
        return _workload(demand, units, NOTHING_SHARED, index_bytes=index_bytes, reserved=reserved)
    fitting = 0 if too_long else _fitting(demand, slots_total, slab)
    counted = demand.requests if demand.requests is not None else fitting
    allocated = 0 if too_long else _over_requests(demand, counted, slab)
    used = 0 if too_long else _over_requests(demand, counted, lambda length: length)
    return Baseline(
        requests=fitting,
        slots_total=slots_total,
        slots_allocated=allocated,
        slots_used=used,
        reserved_waste_slots=allocated - used if reserved else 0,
        internal_waste_slots=0 if reserved else allocated - used,
        external_waste_slots=0,
        index_bytes=index_bytes,
        fits=fitting >= (demand.requests or 1),
    )


def _fitting(demand: Demand, room: int, measure: Callable[[int], int]) -> int:
    """Count the requests that fit: of a list in order, up to the first that does not; of equal ones as many as can."""
    if demand.kind is not DemandKind.LENGTHS:
        return max(0, room) // max(1, measure(demand.lengths[0]))
    fitting = 0
    for length in demand.lengths:
        room -= measure(length)
        if room < 0:
            break
        fitting += 1
    return fitting


def _over_requests(demand: Demand, count: int, measure: Callable[[int], int]) -> int:
    """Add a measure up over the requests that are counted."""
    if demand.kind is DemandKind.LENGTHS:
        return sum(measure(length) for length in demand.lengths)
    return count * measure(demand.lengths[0])
