"""A model from the head of a GGUF file: its metadata as a configuration, and the bytes of its tensors.

Source of names: github.com/ggml-org/ggml, docs/gguf.md; of block sizes: ggml's type table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from types import MappingProxyType

from kvengine.errors import ConfigError
from kvengine.gguf_file import GGUFFile, GGUFTensor, GGUFValue, read_gguf
from kvplan.checkpoint import StoredTensor, weights_of
from kvplan.config_reader import shown
from kvplan.model_spec import ModelSpec

_MODEL_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "command-r": "cohere",
        "cohere2": "cohere2",
        "deepseek2": "deepseek_v2",
        "exaone": "exaone",
        "exaone4": "exaone4",
        "falcon": "falcon",
        "gemma": "gemma",
        "gemma2": "gemma2",
        "gemma3": "gemma3_text",
        "gpt-oss": "gpt_oss",
        "gpt2": "gpt2",
        "glm4": "glm4",
        "granite": "granite",
        "internlm2": "internlm2",
        "llama": "llama",
        "mistral3": "ministral3",
        "nemotron": "nemotron",
        "olmo2": "olmo2",
        "phi2": "phi",
        "phi3": "phi3",
        "qwen2": "qwen2",
        "qwen2moe": "qwen2_moe",
        "qwen3": "qwen3",
        "qwen3moe": "qwen3_moe",
        "seed_oss": "seed_oss",
        "smollm3": "smollm3",
        "stablelm": "stablelm",
        "starcoder2": "starcoder2",
    }
)
"""Architectures of GGUF whose layers keep what a model type of `config.json` keeps."""
_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "block_count": "num_hidden_layers",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "context_length": "max_position_embeddings",
        "vocab_size": "vocab_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "attention.value_length": "v_head_dim",
        "attention.sliding_window": "sliding_window",
        "attention.kv_lora_rank": "kv_lora_rank",
        "attention.q_lora_rank": "q_lora_rank",
        "rope.dimension_count": "qk_rope_head_dim",
        "expert_count": "num_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        "expert_shared_count": "n_shared_experts",
        "leading_dense_block_count": "first_k_dense_replace",
    }
)
"""Keys of the architecture, and what configurations call them."""
_LATENT_KEYS = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim")
_GPT_KEYS = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "hidden_size": "n_embd"}

# Elements and bytes of one block, by type.
_TYPES: Mapping[int, tuple[str, int, int]] = MappingProxyType(
    {
        0: ("F32", 1, 4),
        1: ("F16", 1, 2),
        2: ("Q4_0", 32, 18),
        3: ("Q4_1", 32, 20),
        6: ("Q5_0", 32, 22),
        7: ("Q5_1", 32, 24),
        8: ("Q8_0", 32, 34),
        9: ("Q8_1", 32, 40),
        10: ("Q2_K", 256, 84),
        11: ("Q3_K", 256, 110),
        12: ("Q4_K", 256, 144),
        13: ("Q5_K", 256, 176),
        14: ("Q6_K", 256, 210),
        15: ("Q8_K", 256, 292),
        16: ("IQ2_XXS", 256, 66),
        17: ("IQ2_XS", 256, 74),
        18: ("IQ3_XXS", 256, 98),
        19: ("IQ1_S", 256, 50),
        20: ("IQ4_NL", 32, 18),
        21: ("IQ3_S", 256, 110),
        22: ("IQ2_S", 256, 82),
        23: ("IQ4_XS", 256, 136),
        24: ("I8", 1, 1),
        25: ("I16", 1, 2),
        26: ("I32", 1, 4),
        27: ("I64", 1, 8),
        28: ("F64", 1, 8),
        29: ("IQ1_M", 256, 56),
        30: ("BF16", 1, 2),
        34: ("TQ1_0", 256, 54),
        35: ("TQ2_0", 256, 66),
        39: ("MXFP4", 32, 17),
        40: ("NVFP4", 64, 36),
    }
)


def load_gguf_model(path: Path) -> ModelSpec:
    """Read a model from a GGUF file; of a split model, from its first part and the parts beside it.

    Raises:
        ConfigError: The file is damaged, or its architecture is not known.
    """
    from kvplan.model_config import model_from_config

    file = read_gguf(path)
    model = model_from_config(gguf_config(file), name=path.stem, source=str(path))
    parts = [(part, _stored_tensors(part)) for part in (file, *_other_parts(path, file))]
    stored = weights_of([tensor for _, tensors in parts for tensor in tensors], source="GGUF header")
    cut_off = [note for part, tensors in parts if (note := _cut_off(part, tensors))]
    return replace(model, stored_weights=stored, weights_unknown="", notes=(*model.notes, *cut_off))


def gguf_config(file: GGUFFile) -> dict[str, object]:
    """Return the metadata under the keys of a `config.json`.

    Raises:
        ConfigError: The architecture is not known.
    """
    architecture = file.metadata.get("general.architecture")
    model_type = _MODEL_TYPES.get(architecture) if isinstance(architecture, str) else None
    if model_type is None:
        raise ConfigError(
            f"GGUF architecture {shown(architecture)} is not supported yet",
            where=str(file.path),
            hint=f"supported: {', '.join(_MODEL_TYPES)}",
        )
    config: dict[str, object] = {"model_type": model_type, "torch_dtype": "float16"}
    for key, name in _KEYS.items():
        value = file.metadata.get(f"{architecture}.{key}")
        if value is not None:
            config[name] = _one_number(value)
    if not config.get("kv_lora_rank"):
        config = {name: value for name, value in config.items() if name not in _LATENT_KEYS}
    if config.get("v_head_dim") == config.get("head_dim"):
        config.pop("v_head_dim", None)
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list):
        config["vocab_size"] = len(tokens)
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    if model_type == "gpt2":
        config = {_GPT_KEYS.get(name, name): value for name, value in config.items()}
    return config


def _one_number(value: GGUFValue) -> object:
    """Layers that all have the same number may list it for each."""
    return value[0] if isinstance(value, list) and value and all(entry == value[0] for entry in value) else value


def _other_parts(path: Path, file: GGUFFile) -> list[GGUFFile]:
    count = file.metadata.get("split.count")
    if not isinstance(count, int) or not 1 < count < 1_000 or "-of-" not in path.stem:
        return []
    base, _, total = path.stem.rpartition("-of-")
    stem = base.rpartition("-")[0]
    names = [f"{stem}-{index:05d}-of-{total}.gguf" for index in range(1, count + 1)]
    return [read_gguf(path.with_name(name)) for name in names if name != path.name]


def _stored_tensors(file: GGUFFile) -> list[StoredTensor]:
    return [_stored(tensor, file.path) for tensor in file.tensors.values()]


def _stored(tensor: GGUFTensor, path: Path) -> StoredTensor:
    if tensor.type_id not in _TYPES:
        raise ConfigError(f"tensor {tensor.name!r} has the unknown type {tensor.type_id}", where=str(path))
    name, block_elements, block_bytes = _TYPES[tensor.type_id]
    elements = prod(tensor.shape)
    if elements % block_elements or elements >= 2**60:
        raise ConfigError(f"tensor {tensor.name!r} is not made of whole blocks of {name}", where=str(path))
    return StoredTensor(tensor.name, name, tensor.shape, elements // block_elements * block_bytes)


def _cut_off(file: GGUFFile, stored: Sequence[StoredTensor]) -> str:
    """Say that a file ends before its tensors do: enough to plan with, and no engine loads it."""
    ends = [tensor.offset + size.size_bytes for tensor, size in zip(file.tensors.values(), stored, strict=True)]
    described, there = max(ends, default=0), file.path.stat().st_size
    if described <= there:
        return ""
    return f"{file.path.name} is cut off: by its head it has {described:,} bytes, and {there:,} are there"
