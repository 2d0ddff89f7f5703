"""Host memory for the blocks of preempted requests: how many it holds, and whether the engine uses it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.capacity import EngineKind
from kvplan.engine_start import engine_start

if TYPE_CHECKING:
    from kvplan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapSpace:
    """Swap space beside one GPU; it is the host's memory and no part of the card."""

    size_bytes: int
    """For one GPU."""
    num_blocks: int
    """As vLLM's V0 prints them: `# CPU blocks`."""
    is_used: bool
    reason: str
    """Why it is used, or is not."""


def swap_space(plan: "Plan") -> SwapSpace | None:
    """Return the swap space that was asked for; None without one.

    Worked value (vLLM 0.7.2, V0): 4 GiB in blocks of 458,752 bytes, those of Qwen2.5-1.5B, are 9,362 blocks.
    """
    engine = plan.inputs.engine
    if engine.swap_bytes is None:
        return None
    is_used, reason = _use(plan)
    return SwapSpace(
        size_bytes=engine.swap_bytes,
        num_blocks=engine.swap_bytes // plan.capacity.block_bytes,
        is_used=is_used,
        reason=reason,
    )


def _use(plan: "Plan") -> tuple[bool, str]:
    engine, gpu = plan.inputs.engine, plan.inputs.memory.gpu
    if engine.engine is EngineKind.SGLANG:
        return False, "SGLang has no swap space: it retracts requests and computes them again"
    if engine.engine is EngineKind.PAGED:
        return True, "blocks of preempted requests wait there"
    if engine_start(engine, gpu, max_model_len=plan.capacity.max_model_len).runs_v0:
        return True, "V0 keeps blocks of preempted requests there"
    return False, "vLLM's V1 swaps nothing: it frees the blocks of a preempted request and computes them again"
