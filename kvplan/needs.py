"""The budget solved backwards: from the requests that shall fit to the memory that they need."""

import math
from dataclasses import dataclass

from kvplan.baselines import Design
from kvplan.plan import Plan, demand_counts


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
    others = {part.name: part.amount.high_bytes for part in plan.budget.parts if part.name in ("weights", "overhead")}
    gpu = inputs.memory.gpu
    if gpu is None or not others:
        return Needs(blocks=blocks, available_kv_bytes=available, gpu_memory_bytes=None, utilization=None)
    taken, reserve = available + sum(others.values()), gpu.driver_reserve.high_bytes
    return Needs(
        blocks=blocks,
        available_kv_bytes=available,
        gpu_memory_bytes=math.ceil(taken / inputs.memory.fraction.of_total) + reserve,
        utilization=taken / (gpu.total_bytes - reserve),
    )


def _demand_blocks(plan: Plan) -> int:
    if plan.demand.requests is not None:
        return plan.baselines[Design.PAGED].slots_allocated // plan.capacity.block_slots
    return plan.capacity.blocks_for(plan.demand.tokens_max)
