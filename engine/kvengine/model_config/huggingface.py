"""A decoder's configuration from a Hugging Face `config.json`.

What is not understood is refused: a wrong guess here would run and print nonsense.
"""

import json
import reprlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvengine.errors import ConfigError
from kvengine.model_config.checks import checked
from kvengine.model_config.decoder import DecoderConfig
from kvengine.model_config.families import FAMILIES
from kvengine.model_config.fields import Fields

_GEMMA_3_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
}
"""Of transformers' Gemma3TextConfig: released configurations say only what differs from them."""
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}
SUPPORTED_MODEL_TYPES = (*FAMILIES, "gemma3")


def config_from_json(path: Path) -> DecoderConfig:
    """Read a `config.json`, and the end tokens that a `generation_config.json` beside it adds.

    Raises:
        ConfigError: As for `config_from_mapping`; or the file is missing or broken.
    """
    values = _read_object(path)
    generation = path.parent / "generation_config.json"
    more_eos = (
        Fields(_read_object(generation), where=str(generation)).ids("eos_token_id") if generation.is_file() else set()
    )
    return config_from_mapping(values, where=str(path), more_eos=frozenset(more_eos))


def config_from_mapping(
    values: Mapping[str, Any], *, where: str, more_eos: frozenset[int] = frozenset()
) -> DecoderConfig:
    """Read the fields of a `config.json`.

    Args:
        values: The fields.
        where: The file, for messages.
        more_eos: End tokens that are stated elsewhere.

    Raises:
        ConfigError: A field is missing or impossible, or the model needs something that is not built here; the
            message names file and key.
    """
    fields = Fields(values, where=where)
    model_type = fields.get("model_type")
    if model_type == "gemma3":
        return replace(_text_part(values, fields, where, more_eos), is_text_part=True)
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise fields.unsupported("model_type", SUPPORTED_MODEL_TYPES)
    _check_architecture(fields, _ARCHITECTURES[model_type])
    fields.refuse("is_causal", True)
    fields.refuse("partial_rotary_factor", 1, 1.0)
    fields.refuse("mlp_bias", False)
    return checked(FAMILIES[model_type](fields, more_eos), fields)


def _check_architecture(fields: Fields, expected: str) -> None:
    """Refuse a class that goes under another family's type: it computes something else."""
    named = fields.get("architectures")
    if named is not None and named != [expected]:
        raise fields.error("architectures", f"{reprlib.repr(named)} is not supported; supported: [{expected!r}]")


def _text_part(values: Mapping[str, Any], fields: Fields, where: str, more_eos: frozenset[int]) -> DecoderConfig:
    """The language model of one that also sees; what its configuration leaves out has the class's defaults."""
    text = fields.nested("text_config")
    if text is None:
        raise fields.error("text_config", "missing; expected an object")
    inner = _GEMMA_3_DEFAULTS | dict(values["text_config"]) | {"model_type": "gemma3_text", "architectures": None}
    inner["quantization_config"] = values.get("quantization_config")
    eos = frozenset(fields.ids("eos_token_id")) | more_eos
    return config_from_mapping(inner, where=f"{where}: text_config", more_eos=eos)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"broken JSON: {error.msg}", where=f"{path}:{error.lineno}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, a number of 5,000 digits, or 100,000 brackets
        raise ConfigError(f"not readable as JSON: {type(error).__name__}", where=str(path)) from None
    if not isinstance(value, dict):
        raise ConfigError(f"expected a JSON object, got {type(value).__name__}", where=str(path))
    return value
