"""What would make it fit, or fit more: options whose effect was worked out by planning again with them."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from kvengine.errors import ConfigError
from kvengine.spec import KVDtype
from kvengine.units import MIB
from kvplan.budget import MemoryFraction
from kvplan.capacity import EngineKind
from kvplan.gpu_spec import GpuSpec, known_gpus
from kvplan.kv_packing import KVPacking
from kvplan.needs import needs_of
from kvplan.plan import Outcome, Plan, PlanInputs, make_plan
from kvplan.swap_space import swap_space

_MAX_HINTS = 5
_HIGHEST_UTILIZATION = 0.97
"""Above it, engines run out of memory outside their own accounting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """An option, and what the plan becomes with it."""

    option: str
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    option: str
    inputs: PlanInputs


def find_hints(plan: Plan) -> list[Hint]:
    """Return what helps: of a plan that may not fit, what makes it fit; of one that does, what makes room for more."""
    if plan.verdict.outcome is Outcome.FITS:
        return [*_room_for_more(plan), *_idle_swap_space(plan)]
    found = (hint for source in _SOURCES if (hint := _first_that_fits(source(plan))) is not None)
    return [*islice(found, _MAX_HINTS), *_idle_swap_space(plan)]


def _idle_swap_space(plan: Plan) -> Iterator[Hint]:
    """Name host memory that was asked for and that the engine never takes."""
    swap = swap_space(plan)
    if swap is not None and not swap.is_used:
        yield Hint(option="without --swap-space", effect=f"the same plan: {swap.reason}")


def _first_that_fits(changes: Iterable[_Change]) -> Hint | None:
    for change in changes:
        changed = _try_plan(change.inputs)
        if changed is not None and changed.verdict.outcome is Outcome.FITS:
            return Hint(option=change.option, effect=f"fits: {changed.verdict.reason}")
    return None


def _in_the_same_memory(plan: Plan, inputs: PlanInputs) -> PlanInputs:
    """Compare with the memory that a log tells, where one does: what differs there only in form has as much."""
    if plan.calibration is None:
        return inputs
    return replace(inputs, memory=replace(inputs.memory, available_kv_bytes=plan.budget.available_kv.size_bytes))


def _room_for_more(plan: Plan) -> list[Hint]:
    hints = []
    for change in _smaller_kv(plan):
        changed = _try_plan(_in_the_same_memory(plan, change.inputs))
        if changed is None:
            continue
        before, after = plan.capacity.num_blocks, changed.capacity.num_blocks
        if before and after > before:
            hints.append(Hint(option=change.option, effect=f"{after:,} blocks instead of {before:,}"))
    return hints


def _try_plan(inputs: PlanInputs) -> Plan | None:
    try:
        return make_plan(inputs)
    except ConfigError:
        return None


def _shorter_requests(plan: Plan) -> Iterator[_Change]:
    """The longest length that fits even where the estimates turn out worst."""
    worst = replace(plan.capacity, available_bytes=plan.budget.available_kv.low_bytes)
    if plan.inputs.engine.num_blocks is not None:
        worst = plan.capacity
    if 0 < worst.longest_fit < plan.capacity.max_model_len:
        yield _with_engine(plan, f"--max-model-len {worst.longest_fit}", max_model_len=worst.longest_fit)


def _longer_limit(plan: Plan) -> Iterator[_Change]:
    wanted = plan.demand.tokens_max
    if wanted > plan.capacity.max_model_len:
        yield _with_engine(plan, f"--max-model-len {wanted}", max_model_len=wanted)


def _more_seqs(plan: Plan) -> Iterator[_Change]:
    wanted = plan.demand.together
    if wanted is not None and wanted > plan.limits.num_seqs:
        yield _with_engine(plan, f"--max-num-seqs {wanted}", max_num_seqs=wanted)


def _smaller_kv(plan: Plan) -> Iterator[_Change]:
    engine, model = plan.inputs.engine, plan.inputs.model
    dtype = model.kv_dtype(engine.kv_dtype, engine.dtype)
    if dtype is not KVDtype.FP8 and engine.num_blocks is None and engine.kv_packing is KVPacking.PLAIN:
        yield _with_engine(plan, "--kv-cache-dtype fp8", kv_dtype=KVDtype.FP8)


def _smaller_steps(plan: Plan) -> Iterator[_Change]:
    """Sampling for fewer requests, shorter steps and no graphs leave more for the pool where a card is planned."""
    engine, memory = plan.inputs.engine, plan.inputs.memory
    if memory.gpu is None or memory.available_kv_bytes is not None or memory.overhead_bytes is not None:
        return
    wanted = plan.demand.together or 1
    for seqs in (256, 64, 16):
        if wanted <= seqs < plan.limits.num_seqs:
            yield _with_engine(plan, f"--max-num-seqs {seqs}", max_num_seqs=seqs)
    if plan.limits.num_tokens > 2048:
        yield _with_engine(plan, "--max-num-batched-tokens 2048", max_num_batched_tokens=2048)
    if not engine.enforce_eager:
        yield _with_engine(plan, "--enforce-eager", enforce_eager=True)


def _smaller_blocks(plan: Plan) -> Iterator[_Change]:
    """Smaller blocks waste less of each request's last one; engines on GPUs take no fewer than 16 tokens."""
    engine = plan.inputs.engine
    if plan.inputs.demand is None or engine.num_blocks is not None:
        return
    smallest = 16 if engine.engine is EngineKind.VLLM else 1
    size = plan.capacity.block_size // 2
    while size >= smallest:
        yield _with_engine(plan, f"--block-size {size}", block_size=size)
        size //= 2


def _more_of_the_card(plan: Plan) -> Iterator[_Change]:
    memory = plan.inputs.memory
    needs = needs_of(plan)
    if memory.gpu is None or needs is None or needs.utilization is None or needs.utilization > _HIGHEST_UTILIZATION:
        return
    fraction = math.ceil(max(needs.utilization, plan.inputs.fraction_of(memory.gpu).of_total) * 100) / 100
    flag = "--mem-fraction-static" if plan.inputs.engine.engine is EngineKind.SGLANG else "--gpu-memory-utilization"
    option = f"{flag} {fraction}"
    yield _Change(
        option=option, inputs=replace(plan.inputs, memory=replace(memory, fraction=MemoryFraction(of_total=fraction)))
    )


def _more_gpus(plan: Plan) -> Iterator[_Change]:
    memory, engine = plan.inputs.memory, plan.inputs.engine
    if memory.gpu is None or memory.available_kv_bytes is not None or memory.weights_bytes is not None:
        return
    for ranks in (2, 4, 8, 16):
        if ranks > engine.tensor_parallel and plan.inputs.model.divides_over(ranks):
            yield _with_engine(plan, f"--tp {ranks}", tensor_parallel=ranks)


def _larger_card(plan: Plan) -> Iterator[_Change]:
    """Cards of the same kind that are known, from small to large."""
    memory = plan.inputs.memory
    if memory.gpu is None or memory.available_kv_bytes is not None:
        return
    cards = ((card.total_bytes, name, card) for name, card in known_gpus().items())
    for total_bytes, name, card in sorted(cards, key=lambda entry: entry[:2]):
        if total_bytes > memory.gpu.total_bytes and _could_replace(memory.gpu, card):
            yield _Change(option=f"--gpu {name}", inputs=replace(plan.inputs, memory=replace(memory, gpu=card)))


def _could_replace(gpu: GpuSpec, card: GpuSpec) -> bool:
    """Whether a card may take another's place: of the same vendor, and with memory of its own where that has."""
    return card.vendor == (gpu.vendor or card.vendor) and card.is_unified <= gpu.is_unified


def _more_memory(plan: Plan) -> Iterator[_Change]:
    memory = plan.inputs.memory
    if memory.available_kv_bytes is None:
        return
    needs = needs_of(plan)
    if needs is None:
        return
    needed = needs.available_kv_bytes
    without_card = None if memory.gpu is not None and needed > memory.gpu.total_bytes else memory.gpu
    yield _Change(
        option=f"--available-kv {needed // MIB}MiB" if needed % MIB == 0 else f"--available-kv {needed}B",
        inputs=replace(plan.inputs, memory=replace(memory, available_kv_bytes=needed, gpu=without_card)),
    )


_SOURCES: tuple[Callable[[Plan], Iterator[_Change]], ...] = (
    _longer_limit,
    _more_seqs,
    _shorter_requests,
    _smaller_blocks,
    _smaller_kv,
    _smaller_steps,
    _more_of_the_card,
    _more_gpus,
    _larger_card,
    _more_memory,
)


def _with_engine(plan: Plan, option: str, **changes: object) -> _Change:
    engine = replace(plan.inputs.engine, **changes)  # type: ignore[arg-type]
    return _Change(option=option, inputs=replace(plan.inputs, engine=engine))
