"""The parts of a card beside weights and KV cache, as the memory model sees an engine's start."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.budget import Part
from kvplan.capacity import EngineKind
from kvplan.engine_inputs import EngineInputs
from kvplan.engine_start import engine_start
from kvplan.estimate import Amount
from kvplan.gpu_spec import GpuSpec
from kvplan.memory_model.adapters import DEFAULT_RANK, adapter_buffers
from kvplan.memory_model.amounts import scaled
from kvplan.memory_model.constants import sglang_constants, vllm_constants
from kvplan.memory_model.loading import absorbed_projections, expert_padding
from kvplan.memory_model.sglang import LATEST_SGLANG, SglangStart, before_load, default_static_fraction
from kvplan.memory_model.start import LATEST, default_utilization
from kvplan.memory_model.vllm import cuda_graphs, graphs_are_charged, vllm_parts
from kvplan.model_spec import ModelSpec
from kvplan.parameters import Parallelism, Role
from kvplan.weights import rank_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class CardParts:
    """Parts of one GPU."""

    charged: tuple[Part, ...]
    """What the engine takes off its share before it sizes the KV cache."""
    outside: tuple[Part, ...] = ()
    """What comes out of the rest of the card."""


def parts_of_start(
    model: ModelSpec, engine: EngineInputs, gpu: GpuSpec, *, fraction: float, max_model_len: int
) -> CardParts:
    """Return what an engine takes of one GPU besides weights and KV cache.

    Args:
        model: The model.
        engine: How the engine is started.
        gpu: The card.
        fraction: The engine's share of it.
        max_model_len: The longest request.
    """
    if engine.engine is EngineKind.SGLANG:
        gone = before_load(sglang_start(model, engine, gpu), sglang_constants())
        return CardParts(charged=(Part(name="before_load", amount=scaled(gone, fraction)),))
    start, constants = engine_start(engine, gpu, max_model_len=max_model_len), vllm_constants()
    charged = tuple(Part(name=part.name, amount=part.amount) for part in vllm_parts(start, model.step, constants))
    if graphs_are_charged(start) or start.enforce_eager:
        return CardParts(charged=charged)
    return CardParts(charged=charged, outside=(Part(name="cuda_graphs", amount=cuda_graphs(start, constants)),))


def parts_of_loading(model: ModelSpec, engine: EngineInputs, gpu: GpuSpec, stage: int) -> tuple[Part, ...]:
    """Return what one GPU loads beside the language model's weights: an image encoder, padding, products of weights."""
    found: list[tuple[str, Amount]] = []
    stored_as = engine.quantization or model.quantization
    if counts_encoder(model, engine) and model.step.encoder is not None:
        found.append(("image_encoder", model.step.encoder.weights(engine.tensor_parallel)))
    if engine.engine is EngineKind.VLLM:
        method = stored_as.method if stored_as else ""
        found.append(("expert_padding", expert_padding(model.step, _expert_bytes(model, engine, stage), method=method)))
        start = engine_start(engine, gpu, max_model_len=model.max_model_len)
        found.append(("absorbed_weights", absorbed_projections(start, model.step, is_fp8="fp8" in method)))
    return _named(found)


def parts_asked_for(model: ModelSpec, engine: EngineInputs, stage: int) -> tuple[Part, ...]:
    """Return what one GPU loads besides the model: another model that drafts, and buffers for adapters."""
    found: list[tuple[str, Amount]] = []
    if model.draft_model is not None and stage == engine.pipeline_parallel - 1:
        found.append(("draft_model", _draft_weights(model.draft_model, engine)))
    if engine.max_loras:
        found.append(("lora_adapters", _adapters(model, engine)))
    return _named(found)


def _named(found: Sequence[tuple[str, Amount]]) -> tuple[Part, ...]:
    return tuple(Part(name=name, amount=amount) for name, amount in found if amount.high_bytes)


def _draft_weights(draft: ModelSpec, engine: EngineInputs) -> Amount:
    """Return the weights of a draft model: it is split over the same ranks, whole on the last pipeline stage."""
    return rank_weights(draft, Parallelism(tensor=engine.tensor_parallel), 0, dtype=engine.dtype or draft.dtype)


def _adapters(model: ModelSpec, engine: EngineInputs) -> Amount:
    buffers = adapter_buffers(
        model.geometry,
        model.step,
        count=engine.max_loras,
        rank=engine.max_lora_rank or DEFAULT_RANK,
        tensor_parallel=engine.tensor_parallel,
        num_experts=_experts_of_layer(model),
    )
    return scaled(buffers, 1 / engine.pipeline_parallel)


def _experts_of_layer(model: ModelSpec) -> int:
    layers = model.weights.layers if model.weights else ()
    return max((piece.experts for layer in set(layers) for piece in layer), default=0)


def counts_encoder(model: ModelSpec, engine: EngineInputs) -> bool:
    """Whether the encoder's weights come on top: where they are worked out, not read from files that hold them too."""
    return model.step.encoder is not None and (model.stored_weights is None or engine.quantization is not None)


def default_share(model: ModelSpec, engine: EngineInputs, gpu: GpuSpec) -> float:
    """Return the share of a card that an engine takes where none is given."""
    if engine.engine is EngineKind.SGLANG:
        # A small card is less than what is kept free by default: SGLang does not start there.
        return max(0.0, default_static_fraction(sglang_start(model, engine, gpu)))
    return default_utilization(engine.version or LATEST)


def sglang_start(model: ModelSpec, engine: EngineInputs, gpu: GpuSpec) -> SglangStart:
    """Return a start of SGLang."""
    return SglangStart(
        card_bytes=gpu.total_bytes,
        version=engine.version or LATEST_SGLANG,
        tensor_parallel=engine.tensor_parallel * engine.pipeline_parallel,
        chunked_prefill_size=engine.max_num_batched_tokens,
        captures_graphs=not engine.enforce_eager,
        speculative=engine.speculative_tokens > 0,
        is_latent=model.step.latent is not None,
        encoder=model.step.encoder,
    )


def _expert_bytes(model: ModelSpec, engine: EngineInputs, stage: int) -> int:
    stored_as = engine.quantization or model.quantization
    if model.weights is None or stored_as is None:
        return 0
    return model.weights.stage_amount(
        engine.parallel,
        stage,
        lambda role, params: stored_as.size_bytes(role, params, plain_bytes=2) if role is Role.EXPERT else 0,
    )
