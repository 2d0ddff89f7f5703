"""How many GPUs, or which KV type, make it fit: what a plan needs that is not a size."""

from dataclasses import dataclass, replace

from kvengine.errors import ConfigError
from kvengine.spec import KVDtype
from kvplan.kv_packing import KVPacking
from kvplan.plan import Outcome, Plan, PlanInputs, make_plan

_RANKS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Enough:
    """Of each kind the least that is enough, all else as it is."""

    tensor_parallel: int | None
    """Ranks of tensor parallelism on cards like this one; None: no number that was tried, or no card is planned."""
    kv_dtype: KVDtype | None
    """The widest KV type, of the one that is used and fp8; None: neither is enough."""


def what_is_enough(plan: Plan, *, max_num_seqs: int | None) -> Enough:
    """Find it by planning again.

    Args:
        plan: What does or does not fit.
        max_num_seqs: The limit of requests that must be typed too, if any.
    """
    inputs = plan.inputs
    if max_num_seqs is not None:
        inputs = replace(inputs, engine=replace(inputs.engine, max_num_seqs=max_num_seqs))
    return Enough(tensor_parallel=_least_ranks(inputs), kv_dtype=_widest_type(inputs))


def _least_ranks(inputs: PlanInputs) -> int | None:
    memory, least = inputs.memory, inputs.engine.decode_context_parallel
    if memory.gpu is None or memory.available_kv_bytes is not None or memory.weights_bytes is not None:
        return None
    candidates = [ranks for ranks in _RANKS if ranks % least == 0 and inputs.model.divides_over(ranks)]
    return next((ranks for ranks in candidates if _fits(inputs, tensor_parallel=ranks)), None)


def _widest_type(inputs: PlanInputs) -> KVDtype | None:
    engine = inputs.engine
    used = inputs.model.kv_dtype(engine.kv_dtype, engine.dtype)
    if _fits(inputs):
        return used
    is_plain = engine.kv_packing is KVPacking.PLAIN
    return KVDtype.FP8 if is_plain and used is not KVDtype.FP8 and _fits(inputs, kv_dtype=KVDtype.FP8) else None


def _fits(inputs: PlanInputs, **changes: object) -> bool:
    engine = replace(inputs.engine, **changes)  # type: ignore[arg-type]
    try:
        return make_plan(replace(inputs, engine=engine)).verdict.outcome is Outcome.FITS
    except ConfigError:
        return False
