"""Engine versions whose habits can be chosen by name.

Only what is listed here differs between presets; everything else is as in vLLM 0.32.
"""

from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum

from kvengine.errors import ConfigError


class FreeOrder(StrEnum):
    """Where freed blocks without cached content go; those with it always go to the tail of the free queue."""

    HEAD = "head"
    """To the head, so that they are reused first."""
    HEAD_WITH_CACHING = "head_with_caching"
    """To the head while prefix caching is on, else to the tail."""
    TAIL = "tail"
    """To the tail, behind whatever was freed before."""

    def keeps_uncached_first(self, *, caching: bool) -> bool:
        """Whether blocks without content are reused before all others."""
        return self is FreeOrder.HEAD or (self is FreeOrder.HEAD_WITH_CACHING and caching)


class PresetName(StrEnum):
    """Names of all presets."""

    VLLM_0_32 = "vllm-0.32"
    VLLM_0_32_STALL = "vllm-0.32-stall"
    """0.32 to the last: a request that could never be finished blocks the queue, where the others refuse it."""
    VLLM_0_27 = "vllm-0.27"
    VLLM_0_21 = "vllm-0.21"
    VLLM_0_16 = "vllm-0.16"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePreset:
    """The habits of one engine version."""

    name: PresetName
    free_order: FreeOrder
    reserve_full_isl: bool
    """Whether admission waits for blocks for a whole prompt, unless the configuration says otherwise."""
    stalls: bool = False
    """Whether a request that could never be finished is queued for ever, unless the configuration says otherwise."""


VLLM_0_32 = EnginePreset(name=PresetName.VLLM_0_32, free_order=FreeOrder.HEAD, reserve_full_isl=True)
VLLM_0_27 = EnginePreset(name=PresetName.VLLM_0_27, free_order=FreeOrder.HEAD_WITH_CACHING, reserve_full_isl=True)
VLLM_0_21 = EnginePreset(name=PresetName.VLLM_0_21, free_order=FreeOrder.TAIL, reserve_full_isl=True)
VLLM_0_16 = EnginePreset(name=PresetName.VLLM_0_16, free_order=FreeOrder.TAIL, reserve_full_isl=False)

VLLM_0_32_STALL = replace(VLLM_0_32, name=PresetName.VLLM_0_32_STALL, stalls=True)

PRESETS: dict[str, EnginePreset] = {
    preset.name: preset for preset in (VLLM_0_32, VLLM_0_32_STALL, VLLM_0_27, VLLM_0_21, VLLM_0_16)
}
"""All presets by name."""


def preset_named(name: str) -> EnginePreset:
    """Find a preset.

    Raises:
        ConfigError: There is none of that name; the nearest is named.
    """
    preset = PRESETS.get(name)
    if preset is not None:
        return preset
    near = get_close_matches(name, PRESETS, n=1)
    raise ConfigError(
        f"unknown preset {name!r}; known presets: {', '.join(PRESETS)}",
        hint=f"did you mean {str(near[0])!r}?" if near else "",
    )
