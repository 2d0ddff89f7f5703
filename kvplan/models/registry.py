"""Finds what is known of a model type; the modules that describe types are imported as they are needed."""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from kvplan.models.family import Family

_MODULES = ("full_attention", "windowed", "latents", "hybrids", "encoders")

NESTED: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "aya_vision": ("text_config", "cohere2"),
        "deepseek_vl": ("language_config", "llama"),
        "deepseek_vl_v2": ("language_config", "deepseek_v2"),
        "exaone4_5": ("text_config", "exaone4"),
        "gemma3": ("text_config", "gemma3_text"),
        "gemma3n": ("text_config", "gemma3n_text"),
        "gemma4": ("text_config", "gemma4_text"),
        "glm4v": ("text_config", "glm4"),
        "glm4v_moe": ("text_config", "glm4_moe"),
        "idefics3": ("text_config", "llama"),
        "internvl": ("text_config", "qwen2"),
        "internvl_chat": ("llm_config", "llama"),
        "janus": ("text_config", "llama"),
        "kimi_k25": ("text_config", "kimi_k2"),
        "kimi_k3": ("text_config", "kimi_linear"),
        "kimi_vl": ("text_config", "deepseek_v3"),
        "lfm2_vl": ("text_config", "lfm2"),
        "llama4": ("text_config", "llama4_text"),
        "llava": ("text_config", "llama"),
        "llava_next": ("text_config", "llama"),
        "llava_next_video": ("text_config", "llama"),
        "llava_onevision": ("text_config", "qwen2"),
        "mistral3": ("text_config", "mistral"),
        "mllama": ("text_config", "mllama_text_model"),
        "multi_modality": ("language_config", "llama"),
        "ovis": ("llm_config", "qwen2"),
        "paligemma": ("text_config", "gemma"),
        "qwen2_5_omni_thinker": ("text_config", "qwen2"),
        "qwen2_5_vl": ("text_config", "qwen2_5_vl_text"),
        "qwen2_audio": ("text_config", "qwen2"),
        "qwen2_vl": ("text_config", "qwen2_vl_text"),
        "qwen3_5": ("text_config", "qwen3_5_text"),
        "qwen3_5_moe": ("text_config", "qwen3_5_moe_text"),
        "qwen3_vl": ("text_config", "qwen3_vl_text"),
        "qwen3_vl_moe": ("text_config", "qwen3_vl_moe_text"),
        "smolvlm": ("text_config", "llama"),
        "step3p7": ("text_config", "step3p5"),
        "vipllava": ("text_config", "llama"),
        "voxtral": ("text_config", "llama"),
    }
)
"""Types whose language model is described by an object of its own: the key of that object, and its type where it does
not say one."""


def find_family(model_type: str) -> Family | None:
    """Return what is known of a type; None for a type that is not known."""
    for module in _MODULES:
        family: Family | None = import_module(f"kvplan.models.{module}").FAMILIES.get(model_type)
        if family is not None:
            return family
    return None


def known_types() -> list[str]:
    """Name every type that is known, in order."""
    modules = (import_module(f"kvplan.models.{module}").FAMILIES for module in _MODULES)
    return sorted({*NESTED, *(name for families in modules for name in families)})
