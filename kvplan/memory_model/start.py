"""How an engine is started, and the limits of its steps where none are given: vLLM's defaults by version and card.

Read in the packages: 0.8.5, 0.9.2, 0.10.2, 0.11.2, 0.13.0, 0.15.1, 0.16.0, 0.17.1, 0.19.0, 0.20.0, 0.21.0, 0.24.0,
0.26.0, 0.28.0 to 0.30.0 and 0.32.0 (`engine/arg_utils.py`, `config/cache.py`). Where a rule changed between two that
were read, the later one counts as its first.
"""

from dataclasses import dataclass
from enum import StrEnum

from kvengine.units import GIB
from kvplan.kv_layout.rules import Version
from kvplan.memory_model.shape import StepShape

LATEST: Version = (0, 32, 0)
"""The version that is meant where none is named."""


class Generation(StrEnum):
    """vLLM's two engines."""

    V0 = "V0"
    V1 = "V1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What an engine asks a card before it starts."""

    name: str = ""
    process_bytes: int
    """The total that a process sees."""
    compute_capability: float | None = None
    """CUDA's; None where it is not known, which counts as a recent one."""
    is_unified: bool = False
    """Whether it shares the host's memory: its driver tells no total, and vLLM takes it for a small card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStart:
    """What vLLM's start-up memory depends on besides the model. None means: the engine's default."""

    card: Card
    max_model_len: int
    version: Version = LATEST
    generation: Generation | None = None
    """Where it was chosen; None for the version's own choice."""
    tensor_parallel: int = 1
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enforce_eager: bool = False
    speculative_tokens: int = 0

    @property
    def runs_v0(self) -> bool:
        """Whether it is the V0 engine: before 0.8, and before 0.11 on cards older than Ampere."""
        if self.generation is not None:
            return self.generation is Generation.V0
        capability = self.card.compute_capability
        is_old = capability is not None and capability < 8.0
        return self.version < (0, 8, 0) or (is_old and self.version < (0, 11, 0))

    @property
    def counts_context(self) -> bool:
        """Whether all that is in use counts as the engine's own, the CUDA context included.

        V0 takes what was there before it off from 0.6.5 on, V1 from 0.9 on.
        """
        return self.version < ((0, 6, 5) if self.runs_v0 else (0, 9, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """The largest step, which the profiling run at start-up tries."""

    num_seqs: int
    num_tokens: int


def default_utilization(version: Version) -> float:
    """Return vLLM's `gpu_memory_utilization` where none is given: 0.9 to 0.19, 0.92 from 0.20.0 on."""
    return 0.92 if version >= (0, 20, 0) else 0.9


def step_limits(start: EngineStart, shape: StepShape) -> StepLimits:
    """Return the limits of a step: those that were given, else what the version's server takes on that card."""
    default = _v0_limits(start, shape) if start.runs_v0 else _v1_limits(start)
    num_seqs = start.max_num_seqs or default.num_seqs
    num_tokens = start.max_num_batched_tokens or min(default.num_tokens, num_seqs * start.max_model_len)
    if start.max_num_seqs is None:
        num_seqs = min(num_seqs, num_tokens)
    return StepLimits(num_seqs=num_seqs, num_tokens=num_tokens)


_LONG_CONTEXT = 32_768
"""Above it, V0 splits prompts (chunked prefill)."""


def _v0_limits(start: EngineStart, shape: StepShape) -> StepLimits:
    """V0 profiles a step of whole prompts; only plain models of long context split them."""
    if start.max_model_len > _LONG_CONTEXT and not (shape.latent or shape.encoder):
        return StepLimits(num_seqs=256, num_tokens=2048)
    return StepLimits(num_seqs=256, num_tokens=max(2048, start.max_model_len))


def _v1_limits(start: EngineStart) -> StepLimits:
    version, card = start.version, start.card
    name = card.name.lower()
    if version < (0, 8, 0):
        is_large = "h100" in name or "h200" in name
        return StepLimits(num_seqs=256, num_tokens=8192 if is_large else 2048)
    is_spared = "a100" in name and version >= (0, 9, 0)
    if card.is_unified or is_spared or card.process_bytes < 70 * GIB:
        return StepLimits(num_seqs=256, num_tokens=2048)
    if card.process_bytes >= 160 * GIB and version >= (0, 28, 0):
        return StepLimits(num_seqs=1024, num_tokens=16_384)
    return StepLimits(num_seqs=1024, num_tokens=8192)
