"""A budget's parts as one log measured them: the KV cache to the tokens that it printed, the rest as it itemises it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

from kvengine.errors import ConfigError
from kvengine.units import GIB
from kvplan.budget import MemoryBudget, Part, divide_memory, least_sure, share_of
from kvplan.calibration.record import Calibration
from kvplan.capacity import Capacity, EngineKind
from kvplan.engine_start import limits_of_step
from kvplan.estimate import Amount, Evidence, sure
from kvplan.gpu_spec import GpuSpec
from kvplan.pool import RankPool, rank_pool

if TYPE_CHECKING:
    from kvplan.plan import PlanInputs

_ROUNDING_BYTES = GIB // 20
"""Of several figures with two decimals of a GiB."""


def calibrated_budget(
    calibration: Calibration, inputs: "PlanInputs", stage: int, *, planned_weights: Callable[[], tuple[Part, ...]]
) -> MemoryBudget:
    """Divide a card as a log has it; at another share of the card the KV cache gets the difference.

    Args:
        calibration: One of exactly this engine, model and card.
        inputs: What is planned.
        stage: Which pipeline stage.
        planned_weights: Works out what is loaded, for a log that does not print it.
    """
    assert inputs.memory.gpu is not None, "calibrations are of cards"
    gpu = _card_as_seen(calibration, inputs.memory.gpu)
    fraction = inputs.fraction_of(gpu)
    kept = kept_by_log(calibration, inputs, stage)
    taken_there = share_of(gpu.process_bytes, calibration.utilization)
    total_bytes = max(0, taken_there - kept.likely)
    if any(part.name == "weights" for part in calibration.parts):
        charged = _itemised(calibration, total_bytes, inputs.engine.engine)
    else:
        charged = _around_weights(total_bytes, planned_weights)
    off = (kept.likely - kept.low, kept.high - kept.likely)
    return divide_memory(gpu, fraction, charged, outside=_outside(calibration), measured=off)


@dataclass(frozen=True, slots=True)
class Kept:
    """KV memory in bytes: all of `low` to `high` is printed as the log prints it."""

    low: int
    likely: int
    high: int
    follows: bool = True
    """Whether the printed tokens follow from the printed memory by the model's layout."""


def kept_by_log(calibration: Calibration, inputs: "PlanInputs", stage: int) -> Kept:
    """Return the KV memory of a log, as narrow as its figures tell it.

    Memory is printed of one rank; where tokens or blocks take less, another rank decided, and they count.
    """
    printed = _printed_memory(calibration)
    counted, is_exact = _counted_memory(calibration, inputs, stage)
    if printed is None or counted is None:
        found = printed or counted
        assert found is not None, "a calibration has one of them"
        return _middle(*found, follows=is_exact or counted is None)
    if not is_exact:
        return _middle(*printed, follows=False)
    low, high = max(printed[0], counted[0]), min(printed[1], counted[1])
    if low <= high:
        return _middle(low, high, follows=True)
    is_smaller_rank = counted[1] < printed[0] and _ranks(calibration) > 1
    return _middle(*(counted if is_smaller_rank else printed), follows=is_smaller_rank)


def _middle(low: int, high: int, *, follows: bool) -> Kept:
    return Kept(low, (low + high) // 2, high, follows)


def _ranks(calibration: Calibration) -> int:
    settings = calibration.settings
    return settings.tensor_parallel * settings.pipeline_parallel * settings.data_parallel


def _printed_memory(calibration: Calibration) -> tuple[int, int] | None:
    """Return the least and the most bytes that are printed so."""
    text = calibration.pool.available_gib
    if text is None:
        return None
    half = GIB / 10 ** len(text.partition(".")[2]) / 2
    if calibration.engine == "sglang":
        half *= 2  # K and V, rounded each
    middle = float(text) * GIB
    return ceil(middle - half), int(middle + half)


def _counted_memory(calibration: Calibration, inputs: "PlanInputs", stage: int) -> tuple[tuple[int, int] | None, bool]:
    """Return the least and the most bytes that make the printed tokens, or blocks, and whether any do exactly."""
    printed, gpu = calibration.pool, inputs.memory.gpu
    assert gpu is not None, "calibrations are of cards"
    pool = _pool_of_log(calibration, inputs, stage)
    if pool is not None and printed.kv_cache_tokens is not None:
        return _memory_for(pool, lambda filled: filled.kv_cache_tokens, printed.kv_cache_tokens, gpu.total_bytes)
    if pool is not None and printed.num_blocks is not None:
        return _memory_for(pool, lambda filled: filled.num_blocks, printed.num_blocks, gpu.total_bytes)
    return None, True


def _pool_of_log(calibration: Calibration, inputs: "PlanInputs", stage: int) -> RankPool | None:
    model = inputs.model
    length = calibration.max_model_len or model.max_model_len
    engine = replace(inputs.engine, max_model_len=length, fit_max_model_len=False, num_blocks=None)
    limits = limits_of_step(model, engine, inputs.memory.gpu, max_model_len=length)
    return rank_pool(model, engine, stage, max_model_len=length, step_tokens=limits.num_tokens)


def _memory_for(
    pool: RankPool, count: Callable[[Capacity], int], wanted: int, most_bytes: int
) -> tuple[tuple[int, int], bool]:
    """Return the range of bytes in which a pool counts exactly so many; the least with more where no memory does."""

    def least(number: int) -> int:
        low, high = 0, most_bytes
        while low < high:
            middle = (low + high) // 2
            if count(pool.fill(middle)) < number:
                low = middle + 1
            else:
                high = middle
        return low

    first = least(wanted)
    if count(pool.fill(first)) == wanted:
        return (first, least(wanted + 1) - 1), True
    return (first, first), False


def _card_as_seen(calibration: Calibration, gpu: GpuSpec) -> GpuSpec:
    """Return the card with the memory that the engine saw, where the log prints it."""
    if calibration.gpu.total_gib is None:
        return gpu
    reserve = gpu.total_bytes - _bytes(float(calibration.gpu.total_gib))
    return replace(gpu, driver_reserve=sure(reserve, Evidence.CALIBRATED))


def _itemised(calibration: Calibration, total_bytes: int, engine: EngineKind) -> list[Part]:
    """Return what is taken off before the KV cache: what the log itemises, and the rest under one name.

    Where what it itemises is more than there is, beyond rounding, only the weights keep a name.
    """
    items: list[tuple[str, int]] = [(part.name, _bytes(part.gib)) for part in calibration.parts]
    rest = total_bytes - sum(size for _, size in items)
    if rest < -_ROUNDING_BYTES:
        items = [(name, min(size, total_bytes)) for name, size in items if name == "weights"]
        rest = total_bytes - sum(size for _, size in items)
    elif rest < 0:
        largest = max(items, key=lambda item: item[1])
        items[items.index(largest)] = (largest[0], largest[1] + rest)
    if rest > 0:
        items.append((_rest_name({name for name, _ in items}, engine), rest))
    return [_calibrated(name, size) for name, size in items]


def _around_weights(total_bytes: int, planned_weights: Callable[[], tuple[Part, ...]]) -> list[Part]:
    """Return the weights as planned, and what a log says is taken beside them; both together where they are unknown."""
    try:
        weights = planned_weights()
    except ConfigError:
        weights = ()
    planned = sum(part.size_bytes for part in weights)
    if not weights or planned > total_bytes:
        return [_calibrated("weights_and_overhead", total_bytes)]
    rest = total_bytes - planned
    amount = Amount(
        size_bytes=rest,
        low_bytes=max(0, total_bytes - sum(part.amount.high_bytes for part in weights)),
        high_bytes=total_bytes - sum(part.amount.low_bytes for part in weights),
        evidence=max(least_sure(*(part.amount for part in weights)), Evidence.CALIBRATED, key=list(Evidence).index),
    )
    return [*weights, Part(name="overhead", amount=amount)]


def _outside(calibration: Calibration) -> tuple[Part, ...]:
    graphs = calibration.graphs_outside_gib
    return () if graphs is None else (_calibrated("cuda_graphs", _bytes(graphs)),)


def _rest_name(names: set[str], engine: EngineKind) -> str:
    if engine is EngineKind.SGLANG:
        return "before_load"
    return "unaccounted" if names - {"weights"} else "overhead"


def _calibrated(name: str, size_bytes: int) -> Part:
    return Part(name=name, amount=sure(size_bytes, Evidence.CALIBRATED))


def _bytes(gib: float) -> int:
    return round(gib * GIB)
