"""vLLM's parts beside weights and KV: how large each is, and whether the KV cache pays for it."""

from dataclasses import dataclass

from kvplan.estimate import Amount
from kvplan.memory_model.activation import activation_peak
from kvplan.memory_model.amounts import exactly, total
from kvplan.memory_model.constants import Constant, VllmConstants
from kvplan.memory_model.shape import StepShape
from kvplan.memory_model.start import EngineStart, Generation

_GRAPHS_CHARGED_FROM = (0, 20, 0)
"""From here on the engine takes its estimate of CUDA graphs off before it sizes the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedAmount:
    """A part and its size."""

    name: str
    amount: Amount


def vllm_parts(start: EngineStart, shape: StepShape, constants: VllmConstants) -> tuple[NamedAmount, ...]:
    """Return what the engine takes off its share of one GPU before it sizes the KV cache, beside the weights."""
    parts = [
        NamedAmount(name="activation_peak", amount=activation_peak(start, shape, constants)),
        NamedAmount(name="non_torch", amount=_non_torch(start, constants)),
    ]
    if start.tensor_parallel > 1:
        parts.append(NamedAmount(name="communication", amount=_communication(start, constants)))
    if graphs_are_charged(start):
        parts.append(NamedAmount(name="cuda_graphs", amount=cuda_graphs(start, constants)))
    parts.append(NamedAmount(name="unaccounted", amount=constants.unaccounted_of_card.times(start.card.process_bytes)))
    return tuple(parts)


def graphs_are_charged(start: EngineStart) -> bool:
    """Whether the KV cache pays for CUDA graphs; before, they came out of what the engine leaves alone."""
    return start.version >= _GRAPHS_CHARGED_FROM and not start.enforce_eager


def cuda_graphs(start: EngineStart, constants: VllmConstants) -> Amount:
    """Return the memory of captured graphs on one GPU."""
    return exactly(0) if start.enforce_eager else constants.cuda_graphs_bytes.times(1)


def _non_torch(start: EngineStart, constants: VllmConstants) -> Amount:
    own = (constants.non_torch_v0_bytes if start.runs_v0 else constants.non_torch_v1_bytes).times(1)
    return total(own, constants.context_bytes.times(1)) if start.counts_context else own


def _communication(start: EngineStart, constants: VllmConstants) -> Amount:
    generation = Generation.V0 if start.runs_v0 else Generation.V1
    return communication_constant(constants.communication_bytes, generation, start.tensor_parallel).times(1)


def communication_constant(known: dict[str, Constant], generation: Generation, ranks: int) -> Constant:
    """Return the number of the largest known group that is not larger, of the same engine where it has such a one."""

    def rank(key: str) -> tuple[bool, bool, int]:
        engine, _, least = key.partition("-")
        fits = int(least) <= ranks
        return fits, engine == generation.value, int(least) if fits else -int(least)

    return known[max(known, key=rank)]
