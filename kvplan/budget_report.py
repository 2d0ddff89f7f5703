"""A plan as the document that `kvplan budget` prints: the one source of its table, its JSON and its CSV."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from kvplan.baselines import Baseline
from kvplan.budget import Part
from kvplan.capacity import Capacity
from kvplan.demand import Demand, DemandKind
from kvplan.enough import what_is_enough
from kvplan.estimate import Evidence
from kvplan.hints import Hint
from kvplan.kv_layout.groups import KVGroup, padding_layers
from kvplan.kv_layout.layers import AttentionKind, AttentionLayer
from kvplan.kv_packing import packed_index_bytes
from kvplan.models.layer_parts import KeptRows, KeptState, LayerParts, RowUse
from kvplan.needs import needs_of
from kvplan.plan import Plan
from kvplan.pool import cache_form, cached_layers
from kvplan.quantiles import nearest_rank
from kvplan.rank_layers import rank_state_bytes
from kvplan.swap_space import swap_space

SCHEMA = "kvplan.budget/1"
_LISTED = (DemandKind.LENGTHS, DemandKind.WORKLOAD)

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
            "assumption": model.assumption or None,
        },
        "gpu": {
            "name": (gpu.name or None) if gpu else None,
            "count": engine.parallel.gpus,
            "total_bytes": budget.total_bytes,
        },
        "engine": {"name": engine.engine.value, "version": engine.version_text or None},
        "parallelism": {
            "tensor": engine.tensor_parallel,
            "pipeline": engine.pipeline_parallel,
            "data": engine.data_parallel,
            "experts": engine.expert_parallel,
            "decode_context": engine.decode_context_parallel,
            "stage": plan.stage,
        },
        "parts": [part_record(part) for part in budget.parts],
        "calibration": _calibration(plan),
        "swap_space": _swap_space(plan),
        "available_kv": {
            "bytes": available.size_bytes,
            "low": available.low_bytes,
            "high": available.high_bytes,
            "evidence": available.evidence.value,
        },
        "kv": _kv(plan),
        "capacity": {
            "num_blocks": capacity.num_blocks,
            "num_blocks_override": engine.num_blocks,
            "usable_blocks": capacity.usable_blocks,
            "kv_cache_tokens": capacity.kv_cache_tokens,
            "blocks_per_request": capacity.blocks_per_request,
            "max_concurrency": _number(capacity.max_concurrency),
            "needed_bytes_one_request": capacity.needed_bytes,
            "estimated_max_model_len": capacity.longest_fit,
            "max_model_len": capacity.max_model_len,
            "max_num_seqs": plan.limits.num_seqs,
            "max_num_batched_tokens": plan.limits.num_tokens,
            "table_requests": inputs.table_requests,
        },
        "workload": _workload(plan),
        "needed": _needed(plan),
        "baselines": {design.value: _baseline(baseline) for design, baseline in plan.baselines.items()},
        "block_sizes": [_block_size_row(plan, block_size) for block_size in block_sizes],
        "hints": [{"option": hint.option, "effect": hint.effect} for hint in hints],
    }


def _swap_space(plan: Plan) -> Document | None:
    """Host memory beside one GPU: no part of the card."""
    swap = swap_space(plan)
    if swap is None:
        return None
    return {
        "bytes": swap.size_bytes,
        "num_blocks": swap.num_blocks,
        "evidence": Evidence.GIVEN.value,
        "used": swap.is_used,
        "reason": swap.reason,
    }


def _calibration(plan: Plan) -> Document | None:
    """Name the log that the parts are from."""
    stored = plan.calibration
    if stored is None:
        return None
    calibration = stored.calibration
    return {"file": str(stored.path), "log": calibration.log, "saved": calibration.saved}


def part_record(part: Part) -> Document:
    """One part of a card: its likely size, its range, and how it is known."""
    amount = part.amount
    return {
        "name": part.name,
        "bytes": amount.size_bytes,
        "low": amount.low_bytes,
        "high": amount.high_bytes,
        "evidence": amount.evidence.value,
    }


def _kv(plan: Plan) -> Document:
    """Bytes per token count the layers that keep every token; keys of a sparse-attention index are counted apart."""
    capacity, inputs = plan.capacity, plan.inputs
    layers = [layer for group in capacity.layout.groups for layer in group.layers if isinstance(layer, AttentionLayer)]
    growing = [layer for layer in layers if layer.kind in (AttentionKind.FULL, AttentionKind.MLA)]
    kept = cached_layers(inputs.model, inputs.engine, plan.stage)
    index_bytes = _index_bytes(kept)
    return {
        "bytes_per_token": _number(_token_bytes(growing) - index_bytes),
        "index_bytes_per_token": _number(index_bytes),
        "naive_bytes_per_token": _number(Fraction(capacity.token_bytes)),
        "state_bytes_per_sequence": _state_bytes(plan),
        "bytes_per_block": capacity.block_bytes,
        "block_size": capacity.block_size,
        "dtype": inputs.model.kv_dtype(inputs.engine.kv_dtype, inputs.engine.dtype).value,
        "packing": inputs.engine.kv_packing.value,
        "padding_layers": padding_layers(capacity.layout.groups),
        "state_slots": capacity.state_slots,
        "groups": [_group(group, capacity) for group in capacity.layout.groups],
    }


def _group(group: KVGroup, capacity: Capacity) -> Document:
    first = group.layers[0]
    attention = first if isinstance(first, AttentionLayer) else None
    heads = attention.shape if attention else ()
    return {
        "kind": attention.kind.value if attention else "mamba",
        "layers": len(group.layers),
        "index_layers": sum(isinstance(layer, AttentionLayer) and layer.shape != heads for layer in group.layers),
        "kv_heads": heads[0] if heads else None,
        "head_dim": heads[1] if heads else None,
        "window": (attention.reach or None) if attention else None,
        "block_size": group.block_size,
        "page_bytes": group.page_bytes,
        "blocks_per_request": group.blocks_for(capacity.bound),
    }


def _token_bytes(layers: Sequence[AttentionLayer]) -> Fraction:
    return sum((Fraction(layer.token_bytes, layer.tokens_per_row) for layer in layers), Fraction(0))


def _index_bytes(layers: Sequence[LayerParts]) -> Fraction:
    """Bytes of keys for every token; a compressed stream's own index belongs to the stream."""
    rows = [part for layer in layers for part in layer if isinstance(part, KeptRows)]
    plain = [row for row in rows if row.use is RowUse.INDEX and row.tokens_per_row == 1]
    return Fraction(sum(packed_index_bytes(row) for row in plain))


def _state_bytes(plan: Plan) -> int:
    inputs = plan.inputs
    form = cache_form(inputs.model, inputs.engine, max_model_len=plan.capacity.max_model_len)
    kept = cached_layers(inputs.model, inputs.engine, plan.stage)
    return sum(rank_state_bytes(part, form) for layer in kept for part in layer if isinstance(part, KeptState))


def _workload(plan: Plan) -> Document:
    demand = plan.demand
    lengths = sorted(demand.lengths)
    return {
        "kind": demand.kind.value,
        "name": demand.name or None,
        "requests": demand.requests,
        "requests_listed": len(demand.lengths) if demand.kind in _LISTED else None,
        "requests_together": demand.together,
        "tokens_mean": _number(demand.tokens_mean),
        "tokens_p50": nearest_rank(lengths, 0.5),
        "tokens_p90": nearest_rank(lengths, 0.9),
        "tokens_p99": nearest_rank(lengths, 0.99),
        "tokens_max": demand.tokens_max,
        "prompt_tokens": demand.prompt_tokens,
        "output_tokens": demand.output_tokens,
        "shared_prefix": demand.shared_prefix,
        "prompt_tokens_sum": sum(demand.prompts) if demand.prompts else None,
        "shareable_tokens_sum": _shareable_tokens(demand, 1) if demand.prompts else None,
        "blocks_per_request": plan.capacity.blocks_for(demand.tokens_max),
    }


def _needed(plan: Plan) -> Document | None:
    """What a number of requests needs; only where one was asked for."""
    if plan.inputs.demand is None or plan.demand.together is None or plan.demand.kind is DemandKind.LENGTHS:
        return None
    needs = needs_of(plan)
    if needs is None:
        return None
    enough = what_is_enough(plan, max_num_seqs=needs.max_num_seqs)
    return {
        "requests": plan.demand.together,
        "blocks": needs.blocks,
        "decided_by": needs.decider.value,
        "max_num_seqs": needs.max_num_seqs,
        "available_kv_bytes": needs.available_kv_bytes,
        "gpu_memory_bytes": needs.gpu_memory_bytes,
        "gpu_memory_utilization": needs.utilization,
        "tensor_parallel": enough.tensor_parallel,
        "kv_cache_dtype": enough.kv_dtype.value if enough.kv_dtype else None,
    }


def _baseline(baseline: Baseline) -> Document:
    return {
        "requests": baseline.requests,
        "requests_mean": _known(baseline.requests_mean),
        "requests_most": baseline.requests_most,
        "slots_total": baseline.slots_total,
        "slots_allocated": baseline.slots_allocated,
        "slots_used": baseline.slots_used,
        "reserved_waste_slots": baseline.reserved_waste_slots,
        "internal_waste_slots": baseline.internal_waste_slots,
        "external_waste_slots": baseline.external_waste_slots,
        "waste_fraction": _known(baseline.waste_fraction),
        "index_bytes": baseline.index_bytes,
        "fits": baseline.fits,
    }


def _block_size_row(plan: Plan, block_size: int) -> Document:
    capacity, paged = plan.at_block_size(block_size)
    demand = plan.demand
    counted = demand.requests if demand.requests is not None else paged.requests
    return {
        "block_size": block_size,
        "num_blocks": capacity.num_blocks,
        "requests": paged.requests,
        "slots_allocated": paged.slots_allocated,
        "tail_waste_tokens": paged.internal_waste_slots,
        "tail_waste_tokens_mean": _number(Fraction(paged.internal_waste_slots, counted)) if counted else None,
        "tail_waste_fraction": _known(paged.waste_fraction),
        "block_table_bytes": paged.index_bytes,
        "prefix_hit_tokens": _hit_tokens(plan, capacity.block_size),
        "fits": paged.fits,
    }


def _hit_tokens(plan: Plan, block_size: int) -> int:
    """Prompt tokens found in whole blocks: of one of equal requests, of a workload over all requests."""
    demand = plan.demand
    if demand.kind is DemandKind.WORKLOAD:
        return _shareable_tokens(demand, block_size) if plan.prefix_caching else 0
    return demand.shared_tokens(prefix_caching=plan.prefix_caching) // block_size * block_size


def _shareable_tokens(demand: Demand, block_size: int) -> int:
    """Prompt tokens in whole blocks that a request before has too, over a whole workload: the most there is to find."""
    return sum(known // block_size * block_size for known in demand.prefixes.known_tokens)


def _known(value: Fraction | None) -> int | float | None:
    return None if value is None else _number(value)


def _number(value: Fraction) -> int | float:
    """Write a whole number as one, anything else as the nearest float."""
    return value.numerator if value.denominator == 1 else float(value)
