"""How the memory model sees the start of an engine, and the limits of a step that follow from it."""

from dataclasses import replace

from kvplan.capacity import EngineKind
from kvplan.engine_inputs import EngineInputs
from kvplan.gpu_spec import GpuSpec
from kvplan.memory_model.start import LATEST, Card, EngineStart, StepLimits, step_limits
from kvplan.model_spec import ModelSpec

_UNNAMED_CARD_BYTES = 80 * 2**30
"""Where no card is named, steps are those of a large one."""


def limits_of_step(model: ModelSpec, engine: EngineInputs, gpu: GpuSpec | None, *, max_model_len: int) -> StepLimits:
    """Return the most requests and tokens of a step: as was asked, else what the engine takes on such a card.

    SGLang's requests follow from its pool where they were not asked for: `default_running_requests`.
    """
    limits = step_limits(engine_start(engine, gpu, max_model_len=max_model_len), model.step)
    if engine.engine is not EngineKind.SGLANG or engine.max_num_batched_tokens is not None:
        return limits
    from kvplan.memory_model.sglang import default_chunk

    return replace(limits, num_tokens=default_chunk(gpu.total_bytes if gpu else _UNNAMED_CARD_BYTES))


def engine_start(engine: EngineInputs, gpu: GpuSpec | None, *, max_model_len: int) -> EngineStart:
    """Return a start of vLLM; the textbook engine starts as its latest version."""
    version = engine.version if engine.engine is EngineKind.VLLM else None
    return EngineStart(
        card=_card(gpu),
        max_model_len=max_model_len,
        version=version or LATEST,
        tensor_parallel=engine.tensor_parallel,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        enforce_eager=engine.enforce_eager,
        speculative_tokens=engine.speculative_tokens,
    )


def _card(gpu: GpuSpec | None) -> Card:
    if gpu is None:
        return Card(process_bytes=_UNNAMED_CARD_BYTES)
    return Card(
        name=gpu.name,
        process_bytes=gpu.process_bytes,
        compute_capability=gpu.compute_capability,
        is_unified=gpu.is_unified,
    )
