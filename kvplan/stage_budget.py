"""The memory of one GPU of a pipeline stage: given, calibrated by a start-up log, or estimated."""

from dataclasses import replace
from typing import TYPE_CHECKING

from kvengine.errors import ConfigError
from kvplan.budget import MemoryBudget, Part, divide_memory, given_kv
from kvplan.estimate import Evidence, sure
from kvplan.gpu_spec import GpuSpec
from kvplan.pool import RankPool
from kvplan.weights import rank_weights

if TYPE_CHECKING:
    from kvplan.calibration.store import Stored
    from kvplan.plan import PlanInputs


def stage_budget(inputs: "PlanInputs", pool: RankPool, stage: int, *, max_model_len: int) -> MemoryBudget:
    """Divide one GPU of a pipeline stage: as given, as a log of the same start has it, else as the memory model says.

    Raises:
        ConfigError: Neither a card nor the KV memory is known, or the weights are not.
    """
    memory, engine = inputs.memory, inputs.engine
    if memory.available_kv_bytes is not None:
        return given_kv(memory.available_kv_bytes, memory.gpu)
    if memory.gpu is None and engine.num_blocks is not None:
        return given_kv(pool.fill(0).available_bytes, None)
    if memory.gpu is None:
        raise ConfigError("the memory is not known", hint="--gpu h100-sxm, --gpu-memory 80GiB or --available-kv 40GiB")
    stored = calibration_of(inputs)
    if stored is not None:
        from kvplan.calibration.apply import calibrated_budget

        gpu = memory.gpu
        return calibrated_budget(stored.calibration, inputs, stage, planned_weights=lambda: _loaded(inputs, gpu, stage))
    from kvplan.memory_parts import parts_of_start

    fraction = inputs.fraction_of(memory.gpu)
    card = parts_of_start(inputs.model, engine, memory.gpu, fraction=fraction.of_total, max_model_len=max_model_len)
    others, outside = card.charged, card.outside
    if memory.overhead_bytes is not None:
        others, outside = (Part(name="overhead", amount=sure(memory.overhead_bytes, Evidence.GIVEN)),), ()
    return divide_memory(memory.gpu, fraction, (*_loaded(inputs, memory.gpu, stage), *others), outside=outside)


def calibration_of(inputs: "PlanInputs") -> "Stored | None":
    """Return the calibration of exactly these inputs, if there is one."""
    if not inputs.memory.calibrations:
        return None
    from kvplan.calibration.match import matching

    return matching(inputs)


def _loaded(inputs: "PlanInputs", gpu: GpuSpec, stage: int) -> tuple[Part, ...]:
    """Return the weights of one GPU and what is loaded with them."""
    from kvplan.memory_parts import counts_encoder, parts_asked_for, parts_of_loading

    memory, engine, model = inputs.memory, inputs.engine, inputs.model
    if counts_encoder(model, engine):
        model = replace(model, weights_unknown="")
    weights = rank_weights(
        model,
        engine.parallel,
        stage,
        dtype=engine.dtype or model.dtype,
        given_bytes=memory.weights_bytes,
        quantization=engine.quantization,
        with_drafts=engine.speculative_tokens > 0 and model.draft_model is None,
    )
    beside = parts_of_loading(model, engine, gpu, stage) if memory.weights_bytes is None else ()
    return (Part(name="weights", amount=weights), *beside, *parts_asked_for(model, engine, stage))
