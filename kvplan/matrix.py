"""A table of plans: every combination of some options' values."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice, product
from typing import Any

from kvengine.errors import ConfigError
from kvplan.baselines import Design
from kvplan.needs import needs_of
from kvplan.plan import Plan, PlanInputs, make_plan

SCHEMA = "kvplan.budget-matrix/1"
_MAX_PLANS = 2_000


def matrix_document(
    axes: Mapping[str, Sequence[str]], inputs_of: Callable[[dict[str, str]], PlanInputs]
) -> dict[str, Any]:
    """Plan every combination.

    Args:
        axes: Options and their values; the last one varies fastest.
        inputs_of: What a plan is made of, for one value of each.

    Raises:
        ConfigError: There are too many combinations, or none can be planned.
    """
    combinations = list(islice(product(*axes.values()), _MAX_PLANS + 1))
    if len(combinations) > _MAX_PLANS:
        raise ConfigError(f"more than {_MAX_PLANS:,} combinations are too many", where="--matrix")
    plans: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    for values in combinations:
        chosen = dict(zip(axes, values, strict=True))
        try:
            plans.append(chosen | _row(inputs_of(chosen)))
        except ConfigError as error:
            refused.append(chosen | {"reason": error.message})
    return {"schema": SCHEMA, "axes": list(axes), "plans": plans, "refused": refused}


def _row(inputs: PlanInputs) -> dict[str, Any]:
    plan = make_plan(inputs)
    capacity, parts = plan.capacity, {part.name: part.size_bytes for part in plan.budget.parts}
    return {
        "verdict": plan.verdict.outcome.value,
        "gpus": inputs.engine.parallel.gpus,
        "weights_bytes": parts.get("weights"),
        "available_kv_bytes": plan.budget.available_kv.size_bytes,
        "num_blocks": capacity.num_blocks,
        "kv_cache_tokens": capacity.kv_cache_tokens,
        "max_model_len": capacity.max_model_len,
        "max_concurrency": float(capacity.max_concurrency),
        "requests_fit": plan.baselines[Design.PAGED].requests if inputs.demand else None,
        "needed_utilization": _needed_share(plan),
        "estimated_max_model_len": capacity.longest_fit,
        "reason": plan.verdict.reason,
    }


def _needed_share(plan: Plan) -> float | None:
    """Share of the card in which the requests fit, where a number was asked for; above 1 on a card too small."""
    if plan.inputs.demand is None or plan.demand.together is None:
        return None
    needs = needs_of(plan)
    return None if needs is None else needs.utilization
