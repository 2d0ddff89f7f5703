"""The budget solved backwards: from the requests that shall fit to the memory that they need."""

import math
from dataclasses import dataclass, replace

from kvengine.units import MIB, cdiv
from kvplan.baselines import Design
from kvplan.capacity import EngineKind
from kvplan.gpu_spec import GpuSpec
from kvplan.plan import Plan, demand_counts, make_plan

_MOST_TRIES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What must be there for the verdict to be `fits`, with estimates at their worst."""

    blocks: int
    """The null block included."""
    available_kv_bytes: int
    gpu_memory_bytes: int | None
    """Of one card, at the same utilisation; None where the rest of the card is not modelled."""
    utilization: float | None
    """Of the same card; above 1 when it is too small; None where the rest of the card is not modelled."""


def needs_of(plan: Plan) -> Needs:
    """Work out what the requests of a plan need: one of the longest length, and those that were asked for."""
    capacity, inputs = plan.capacity, plan.inputs
    blocks = capacity.blocks_per_request
    if inputs.demand is not None and demand_counts(inputs):
        blocks = max(blocks, _demand_blocks(plan))
    blocks += capacity.engine.null_blocks
    available = blocks * capacity.block_bytes
    gpu = inputs.memory.gpu
    if gpu is None or not plan.budget.charged:
        return Needs(blocks=blocks, available_kv_bytes=available, gpu_memory_bytes=None, utilization=None)
    taken = available + _charged_at_worst(plan)
    default_varies = inputs.memory.fraction is None and inputs.engine.engine is EngineKind.SGLANG
    return Needs(
        blocks=blocks,
        available_kv_bytes=available,
        gpu_memory_bytes=_smallest_card(plan, gpu, available) if default_varies else _needed_card(plan, gpu, available),
        utilization=taken / (gpu.total_bytes - gpu.driver_reserve.high_bytes),
    )


def _needed_card(plan: Plan, gpu: GpuSpec, available_bytes: int) -> int:
    """Return the smallest card of a kind that leaves so much, with estimates at their worst.

    What an engine takes grows with the card, so a card is tried, and with what it takes the next, until one is enough.
    """
    size_bytes = 0
    for _ in range(_MOST_TRIES):
        fraction = plan.inputs.fraction_of(gpu).of_total
        needed = math.ceil((available_bytes + _charged_at_worst(plan)) / fraction) + gpu.driver_reserve.high_bytes
        if needed <= size_bytes:
            break
        size_bytes = needed
        gpu = replace(gpu, total_bytes=size_bytes)
        plan = make_plan(replace(plan.inputs, memory=replace(plan.inputs.memory, gpu=gpu)))
    return size_bytes


def _smallest_card(plan: Plan, gpu: GpuSpec, available_bytes: int) -> int:
    """Return the smallest card of a kind that leaves so much, to 1 MiB: the default share varies with it."""
    too_small, enough = 0, cdiv(gpu.total_bytes, MIB)
    while not _leaves(plan, gpu, enough * MIB, available_bytes):
        too_small, enough = enough, enough * 2
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        if _leaves(plan, gpu, middle * MIB, available_bytes):
            enough = middle
        else:
            too_small = middle
    return enough * MIB


def _leaves(plan: Plan, gpu: GpuSpec, card_bytes: int, available_bytes: int) -> bool:
    memory = replace(plan.inputs.memory, gpu=replace(gpu, total_bytes=card_bytes))
    return make_plan(replace(plan.inputs, memory=memory)).budget.available_kv.low_bytes >= available_bytes


def _charged_at_worst(plan: Plan) -> int:
    return sum(part.amount.high_bytes for part in plan.budget.charged)


def _demand_blocks(plan: Plan) -> int:
    if plan.demand.requests is not None:
        return plan.baselines[Design.PAGED].slots_allocated // plan.capacity.block_slots
    return plan.capacity.blocks_for(plan.demand.tokens_max)
