"""A plan as the document that `kvplan budget` prints: the one source of its table, its JSON and its CSV."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from kvengine.units import cdiv
from kvplan.baselines import Baseline
from kvplan.budget import Part
from kvplan.demand import DemandKind
from kvplan.hints import Hint
from kvplan.needs import needs_of
from kvplan.plan import Plan

SCHEMA = "kvplan.budget/1"

Document = dict[str, Any]
"""Plain data: mappings, lists, text, whole numbers, fractions as floats, true, false and None."""


def budget_document(plan: Plan, *, block_sizes: Sequence[int], hints: Sequence[Hint]) -> Document:
    """Return everything that a plan says, under the keys of `kvplan.budget/1`. Sizes are bytes of one GPU."""
    inputs, capacity, budget = plan.inputs, plan.capacity, plan.budget
    model, gpu, engine = inputs.model, inputs.memory.gpu, inputs.engine
    available = budget.available_kv
    return {
        "schema": SCHEMA,
        "verdict": plan.verdict.outcome.value,
        "reason": plan.verdict.reason,
        "model": {
            "name": model.name,
            "architecture": model.architecture,
            "parameters": model.weights.parameters if model.weights else None,
            "parameters_exact": model.weights.exact if model.weights else None,
            "max_model_len": model.max_model_len,
        },
        "gpu": {
            "name": (gpu.name or None) if gpu else None,
            "count": engine.tensor_parallel,
            "total_bytes": budget.total_bytes,
        },
        "engine": {"name": engine.engine.value, "version": engine.engine.version or None},
        "parts": [_part(part) for part in budget.parts],
        "available_kv": {
            "bytes": available.size_bytes,
            "low": available.low_bytes,
            "high": available.high_bytes,
            "evidence": available.evidence.value,
        },
        "kv": _kv(plan),
        "capacity": {
            "num_blocks": capacity.num_blocks,
            "usable_blocks": capacity.usable_blocks,
            "kv_cache_tokens": capacity.kv_cache_tokens,
            "blocks_per_request": capacity.blocks_per_request,
            "max_concurrency": _number(capacity.max_concurrency),
            "needed_bytes_one_request": capacity.needed_bytes,
            "estimated_max_model_len": capacity.longest_fit,
            "max_model_len": capacity.max_model_len,
            "max_num_seqs": engine.seqs_limit,
        },
        "workload": _workload(plan),
        "needed": _needed(plan),
        "baselines": {design.value: _baseline(baseline) for design, baseline in plan.baselines.items()},
        "block_sizes": [_block_size_row(plan, block_size) for block_size in block_sizes],
        "hints": [{"option": hint.option, "effect": hint.effect} for hint in hints],
    }


def _part(part: Part) -> Document:
    amount = part.amount
    return {
        "name": part.name,
        "bytes": amount.size_bytes,
        "low": amount.low_bytes,
        "high": amount.high_bytes,
        "evidence": amount.evidence.value,
    }


def _kv(plan: Plan) -> Document:
    spec = plan.capacity.spec
    return {
        "bytes_per_token": spec.token_bytes,
        "state_bytes_per_sequence": 0,
        "bytes_per_block": spec.block_bytes,
        "block_size": spec.block_size,
        "dtype": spec.dtype.value,
        "groups": [
            {
                "kind": "full",
                "layers": spec.num_layers,
                "kv_heads": spec.num_kv_heads,
                "head_dim": spec.head_dim,
                "block_size": spec.block_size,
                "page_bytes": spec.page_bytes,
                "blocks_per_request": plan.capacity.blocks_per_request,
            }
        ],
    }


def _workload(plan: Plan) -> Document:
    demand = plan.demand
    return {
        "kind": demand.kind.value,
        "requests": demand.requests,
        "tokens_mean": _number(demand.tokens_mean),
        "tokens_max": demand.tokens_max,
        "prompt_tokens": demand.prompt_tokens,
        "output_tokens": demand.output_tokens,
        "shared_prefix": demand.shared_prefix,
        "blocks_per_request": cdiv(demand.tokens_max, plan.capacity.spec.block_size),
    }


def _needed(plan: Plan) -> Document | None:
    """What a number of requests needs; only where one was asked for."""
    if plan.inputs.demand is None or plan.demand.requests is None or plan.demand.kind is DemandKind.LENGTHS:
        return None
    needs = needs_of(plan)
    return {
        "requests": plan.demand.requests,
        "blocks": needs.blocks,
        "available_kv_bytes": needs.available_kv_bytes,
        "gpu_memory_bytes": needs.gpu_memory_bytes,
        "gpu_memory_utilization": needs.utilization,
    }


def _baseline(baseline: Baseline) -> Document:
    return {
        "requests": baseline.requests,
        "slots_total": baseline.slots_total,
        "slots_allocated": baseline.slots_allocated,
        "slots_used": baseline.slots_used,
        "reserved_waste_slots": baseline.reserved_waste_slots,
        "internal_waste_slots": baseline.internal_waste_slots,
        "external_waste_slots": baseline.external_waste_slots,
        "waste_fraction": _number(baseline.waste_fraction),
        "index_bytes": baseline.index_bytes,
        "fits": baseline.fits,
    }


def _block_size_row(plan: Plan, block_size: int) -> Document:
    capacity, paged = plan.at_block_size(block_size)
    demand = plan.demand
    shared = demand.shared_blocks(block_size, prefix_caching=plan.inputs.engine.prefix_caching)
    counted = demand.requests if demand.requests is not None else paged.requests
    return {
        "block_size": block_size,
        "num_blocks": capacity.num_blocks,
        "requests": paged.requests,
        "slots_allocated": paged.slots_allocated,
        "tail_waste_tokens": paged.internal_waste_slots,
        "tail_waste_tokens_mean": _number(Fraction(paged.internal_waste_slots, counted)) if counted else None,
        "tail_waste_fraction": _number(paged.waste_fraction),
        "block_table_bytes": paged.index_bytes,
        "prefix_hit_tokens": shared * block_size,
        "fits": paged.fits,
    }


def _number(value: Fraction) -> int | float:
    """Write a whole number as one, anything else as the nearest float."""
    return value.numerator if value.denominator == 1 else float(value)
