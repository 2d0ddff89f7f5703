"""Finds what is known of a model type; the modules that describe types are imported as they are needed."""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from kvplan.models.family import Family

_MODULES = ("full_attention", "windowed", "latents", "hybrids", "encoders", "recent", "block_sparse")

NESTED: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "apertus1p5": ("text_config", "apertus1p5_text"),
        "aria": ("text_config", "aria_text"),
        "audioflamingo3": ("text_config", "qwen2"),
        "aya_vision": ("text_config", "cohere2"),
        "blip-2": ("text_config", "opt"),
        "cohere2_vision": ("text_config", "cohere2"),
        "deepseek_vl": ("language_config", "llama"),
        "deepseek_vl_hybrid": ("text_config", "llama"),
        "deepseek_vl_v2": ("language_config", "deepseek_v2"),
        "ernie4_5_vl_moe": ("text_config", "ernie4_5_vl_moe_text"),
        "exaone4_5": ("text_config", "exaone4"),
        "fast_vlm": ("text_config", "qwen2"),
        "fuyu": ("text_config", "persimmon"),
        "gemma3": ("text_config", "gemma3_text"),
        "gemma3n": ("text_config", "gemma3n_text"),
        "gemma4": ("text_config", "gemma4_text"),
        "glm46v": ("text_config", "glm4v_text"),
        "glm4v": ("text_config", "glm4v_text"),
        "glm4v_moe": ("text_config", "glm4v_moe_text"),
        "glm_ocr": ("text_config", "glm_ocr_text"),
        "got_ocr2": ("text_config", "qwen2"),
        "granite4_vision": ("text_config", "granite4_vision_text"),
        "granite_speech": ("text_config", "granite"),
        "hunyuan_vl": ("text_config", "hunyuan_vl_text"),
        "idefics2": ("text_config", "mistral"),
        "idefics3": ("text_config", "llama"),
        "instructblip": ("text_config", "opt"),
        "internvl": ("text_config", "qwen2"),
        "internvl_chat": ("llm_config", "llama"),
        "janus": ("text_config", "llama"),
        "kimi_k25": ("text_config", "kimi_k2"),
        "kimi_k3": ("text_config", "kimi_linear"),
        "kimi_vl": ("text_config", "deepseek_v3"),
        "lfm2_vl": ("text_config", "lfm2"),
        "lighton_ocr": ("text_config", "qwen3"),
        "llama4": ("text_config", "llama4_text"),
        "llava": ("text_config", "llama"),
        "llava_next": ("text_config", "llama"),
        "llava_next_video": ("text_config", "llama"),
        "llava_onevision": ("text_config", "qwen2"),
        "minicpmv4_6": ("text_config", "qwen3_5_text"),
        "minimax_m3_vl": ("text_config", "minimax_m3_vl_text"),
        "mistral3": ("text_config", "mistral"),
        "mllama": ("text_config", "mllama_text_model"),
        "multi_modality": ("language_config", "llama"),
        "nemotron_h_omni": ("text_config", "nemotron_h"),
        "ovis": ("llm_config", "qwen2"),
        "ovis2": ("text_config", "qwen2"),
        "paddleocr_vl": ("text_config", "paddleocr_vl_text"),
        "paligemma": ("text_config", "gemma"),
        "perception_lm": ("text_config", "llama"),
        "qwen2_5_omni": ("thinker_config", "qwen2_5_omni_thinker"),
        "qwen2_5_omni_thinker": ("text_config", "qwen2_5_omni_text"),
        "qwen2_5_vl": ("text_config", "qwen2_5_vl_text"),
        "qwen2_audio": ("text_config", "qwen2"),
        "qwen2_vl": ("text_config", "qwen2_vl_text"),
        "qwen3_5": ("text_config", "qwen3_5_text"),
        "qwen3_5_moe": ("text_config", "qwen3_5_moe_text"),
        "qwen3_omni_moe": ("thinker_config", "qwen3_omni_moe_thinker"),
        "qwen3_omni_moe_thinker": ("text_config", "qwen3_omni_moe_text"),
        "qwen3_vl": ("text_config", "qwen3_vl_text"),
        "qwen3_vl_moe": ("text_config", "qwen3_vl_moe_text"),
        "shieldgemma2": ("text_config", "gemma3_text"),
        "smolvlm": ("text_config", "llama"),
        "step3p7": ("text_config", "step3p5"),
        "ultravox": ("text_config", "llama"),
        "video_llama_3": ("text_config", "qwen2"),
        "video_llava": ("text_config", "llama"),
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


ALIASES: Mapping[str, Mapping[str, str]] = MappingProxyType({"deepseek_ref": {"DeepseekV4ForCausalLM": "deepseek_v4"}})
"""Types that converters write in place of the usual one, which the architecture tells."""
