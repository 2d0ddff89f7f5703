"""Engine versions whose habits can be chosen by name.

Only what is listed here differs between presets; everything else is as in vLLM 0.32.
"""

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePreset:
    """The habits of one engine version."""

    name: str
    free_order: FreeOrder
    reserve_full_isl: bool
    """Whether admission waits for blocks for a whole prompt, unless the configuration says otherwise."""


VLLM_0_32 = EnginePreset(name="vllm-0.32", free_order=FreeOrder.HEAD, reserve_full_isl=True)
VLLM_0_27 = EnginePreset(name="vllm-0.27", free_order=FreeOrder.HEAD_WITH_CACHING, reserve_full_isl=True)
VLLM_0_21 = EnginePreset(name="vllm-0.21", free_order=FreeOrder.TAIL, reserve_full_isl=True)
VLLM_0_16 = EnginePreset(name="vllm-0.16", free_order=FreeOrder.TAIL, reserve_full_isl=False)

PRESETS = {preset.name: preset for preset in (VLLM_0_32, VLLM_0_27, VLLM_0_21, VLLM_0_16)}
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
        hint=f"did you mean {near[0]!r}?" if near else "",
    )
