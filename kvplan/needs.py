"""The budget solved backwards: from the requests that shall fit to the memory that they need."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from kvengine.errors import ConfigError
from kvengine.units import GIB, MIB, cdiv
from kvplan.baselines import Design
from kvplan.budget import MemoryFraction
from kvplan.demand import DemandKind
from kvplan.gpu_spec import GpuSpec, gpu_of_size
from kvplan.plan import (
    MemoryInputs,
    Outcome,
    Plan,
    PlanInputs,
    demand_counts,
    longest_asked,
    make_plan,
    seqs_are_limited,
)

_MOST_TRIES = 16
_MOST_BYTES = 2**60
_SHARE_STEPS = 1000
_TOO_SMALL = (_SHARE_STEPS + 1) / _SHARE_STEPS
"""The share of a card of which all is not enough."""


class Decider(StrEnum):
    """What the need is that of."""

    REQUESTS = "requests"
    """All that were asked for, together."""
    LONGEST_REQUEST = "longest_request"
    """One of the longest length, without which the engine does not start: it takes more than those asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What must be there for the verdict to be `fits`, with estimates at their worst."""

    blocks: int
    """The null block included."""
    available_kv_bytes: int
    decider: Decider
    max_num_seqs: int | None
    """The limit that must be typed too; None where the one that counts is enough."""
    gpu_memory_bytes: int | None
    """Of one card, at the same utilisation; None where the rest of the card is not modelled."""
    utilization: float | None
    """Of the same card; above 1 when it is too small; None where the rest of the card is not modelled."""


def needs_of(plan: Plan) -> Needs | None:
    """Work out what the requests of a plan need: one of the longest length, and those that were asked for.

    None: no memory is enough, since a request is longer than the engine allows.
    """
    if _is_too_long(plan):
        return None
    together, longest = _demand_blocks(plan), _longest_blocks(plan)
    blocks = max(together, longest) + plan.capacity.engine.null_blocks
    seqs = _missing_seqs(plan)
    inputs = _with_room(plan.inputs, blocks, seqs)
    available = _needed_kv(inputs, blocks * plan.capacity.block_bytes)
    gpu = inputs.memory.gpu
    on_card = gpu is not None and bool(plan.budget.charged)
    return Needs(
        blocks=blocks,
        available_kv_bytes=available,
        decider=Decider.REQUESTS if together >= longest else Decider.LONGEST_REQUEST,
        max_num_seqs=seqs,
        gpu_memory_bytes=_needed_card(inputs, gpu, available) if gpu and on_card else None,
        utilization=_needed_share(inputs, gpu, available) if gpu and on_card else None,
    )


def _is_too_long(plan: Plan) -> bool:
    return plan.demand.tokens_max > longest_asked(plan.inputs)


def _demand_blocks(plan: Plan) -> int:
    """Blocks of the requests that were asked for; 0 where none must fit together."""
    demand = plan.inputs.demand
    if demand is None or not demand_counts(plan.inputs):
        return 0
    if plan.inputs.engine.fit_max_model_len and demand.kind is DemandKind.FULL_LENGTH:
        return (demand.requests or 1) * plan.capacity.blocks_for(demand.tokens_max)
    if demand.together is not None:
        return plan.baselines[Design.PAGED].slots_allocated // plan.capacity.block_slots
    return plan.capacity.blocks_for(demand.tokens_max)


def _longest_blocks(plan: Plan) -> int:
    """Blocks of the one request that must fit; a fitted length is no longer than the requests."""
    if plan.inputs.demand is not None and plan.inputs.engine.fit_max_model_len:
        return plan.capacity.blocks_for(plan.inputs.demand.tokens_max)
    return plan.capacity.blocks_per_request


def _missing_seqs(plan: Plan) -> int | None:
    wanted = plan.demand.together
    too_many = wanted is not None and wanted > plan.limits.num_seqs and seqs_are_limited(plan.inputs)
    return wanted if too_many else None


def _with_room(inputs: PlanInputs, blocks: int, seqs: int | None) -> PlanInputs:
    """Lift what limits the pool besides memory."""
    engine = inputs.engine
    if engine.num_blocks is not None:
        engine = replace(engine, num_blocks=blocks)
    return replace(inputs, engine=engine if seqs is None else replace(engine, max_num_seqs=seqs))


def _needed_kv(inputs: PlanInputs, likely_bytes: int) -> int:
    """Return the KV memory in which it fits: that of the blocks, and what is kept beside them."""

    def fits(available_bytes: int) -> bool:
        return _fits(inputs, MemoryInputs(available_kv_bytes=available_bytes))

    return likely_bytes if fits(likely_bytes) else _least(fits, above=likely_bytes, step=1) or likely_bytes


def _needed_card(inputs: PlanInputs, gpu: GpuSpec, available_bytes: int) -> int | None:
    """Return the smallest card of a kind on which it fits, in a size that can be typed; None where none is found.

    What an engine takes grows with the card, so a card is tried, and with what it takes the next, until one is enough.
    """

    def fits(size_bytes: int) -> bool:
        cards = (replace(gpu, total_bytes=size_bytes), gpu_of_size(size_bytes))
        return all(_fits(inputs, replace(inputs.memory, gpu=card, available_kv_bytes=None)) for card in cards)

    size_bytes = _typed_size(_estimated_card(inputs, gpu, available_bytes))
    if fits(size_bytes):
        return size_bytes
    found = _least(lambda size: fits(_typed_size(size)), above=size_bytes, step=MIB)
    return None if found is None else _typed_size(found)


def _estimated_card(inputs: PlanInputs, gpu: GpuSpec, available_bytes: int) -> int:
    size_bytes = 0
    for _ in range(_MOST_TRIES):
        fraction = max(inputs.fraction_of(gpu).of_total, 0.01)
        charged = _charged_at_worst(inputs, gpu, inputs.memory.fraction)
        needed = math.ceil((available_bytes + charged) / fraction) + gpu.driver_reserve.high_bytes
        if needed <= size_bytes:
            break
        size_bytes = needed
        gpu = replace(gpu, total_bytes=size_bytes)
    return size_bytes


def _needed_share(inputs: PlanInputs, gpu: GpuSpec, available_bytes: int) -> float:
    """Return the share of the same card; what an engine takes may grow with it."""
    process_bytes = gpu.total_bytes - gpu.driver_reserve.high_bytes
    fraction, share = inputs.memory.fraction, 0.0
    for _ in range(_MOST_TRIES):
        needed = (available_bytes + _charged_at_worst(inputs, gpu, fraction)) / process_bytes
        if needed <= share:
            break
        share, fraction = needed, MemoryFraction(of_total=min(needed, 1.0))
    return share if share > 1 else _verified_share(inputs, gpu, share)


def _verified_share(inputs: PlanInputs, gpu: GpuSpec, share: float) -> float:
    """Return the share, or where another pipeline stage decides with it, the next that is enough, in thousandths."""

    def fits(of_total: float) -> bool:
        fraction = MemoryFraction(of_total=of_total)
        return _fits(inputs, replace(inputs.memory, gpu=gpu, fraction=fraction, available_kv_bytes=None))

    if fits(share):
        return share
    if not fits(1.0):
        return _TOO_SMALL
    found = _least(lambda count: fits(min(count / _SHARE_STEPS, 1.0)), above=int(share * _SHARE_STEPS), step=1)
    return 1.0 if found is None else min(found / _SHARE_STEPS, 1.0)


def _charged_at_worst(inputs: PlanInputs, gpu: GpuSpec, fraction: MemoryFraction | None) -> int:
    plan = make_plan(replace(inputs, memory=replace(inputs.memory, gpu=gpu, fraction=fraction)))
    return sum(part.amount.high_bytes for part in plan.budget.charged)


def _fits(inputs: PlanInputs, memory: MemoryInputs) -> bool:
    try:
        return make_plan(replace(inputs, memory=memory)).verdict.outcome is Outcome.FITS
    except ConfigError:
        return False


def _least(is_enough: Callable[[int], bool], *, above: int, step: int) -> int | None:
    """Return a size that is enough, to a step more than one that is not; None where none is found."""
    too_small, enough = above // step, cdiv(above, step) + 1
    while not is_enough(enough * step):
        too_small, enough = enough, enough * 2
        if enough * step > _MOST_BYTES:
            return None
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        if is_enough(middle * step):
            enough = middle
        else:
            too_small = middle
    return enough * step


def _typed_size(size_bytes: int) -> int:
    """Round up to a size that reads the same when it is printed and typed again: hundredths of a GiB, or whole MiB."""
    if size_bytes < GIB:
        return cdiv(size_bytes, MIB) * MIB
    return cdiv(size_bytes * 100, GIB) * GIB // 100
