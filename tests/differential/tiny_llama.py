"""Tiny random Llama models on disk, in Hugging Face form and as GGUF."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file


def a_llama_config(**changes: Any) -> dict[str, Any]:
    """Two layers, three query heads on one KV head of 8 (a group that is no power of two), 50 tokens."""
    return {
        "model_type": "llama",
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "vocab_size": 50,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "eos_token_id": 2,
        **changes,
    }


def random_llama_weights(config: dict[str, Any], *, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Every tensor that such a config needs, under its Hugging Face name; large enough that attention matters."""
    rng = np.random.default_rng(seed)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    q_size = config["num_attention_heads"] * config["head_dim"]
    kv_size = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    for index in range(config["num_hidden_layers"]):
        for name, shape in (
            ("input_layernorm", (hidden,)),
            ("self_attn.q_proj", (q_size, hidden)),
            ("self_attn.k_proj", (kv_size, hidden)),
            ("self_attn.v_proj", (kv_size, hidden)),
            ("self_attn.o_proj", (hidden, q_size)),
            ("post_attention_layernorm", (hidden,)),
            ("mlp.gate_proj", (inner, hidden)),
            ("mlp.up_proj", (inner, hidden)),
            ("mlp.down_proj", (hidden, inner)),
        ):
            shapes[f"model.layers.{index}.{name}.weight"] = shape
    return {
        name: (rng.normal(size=shape, scale=0.4) if len(shape) == 2 else rng.uniform(0.5, 1.5, size=shape)).astype(
            np.float32
        )
        for name, shape in shapes.items()
    }


def save_llama(
    folder: Path, config: dict[str, Any], weights: dict[str, NDArray[np.float32]], *, num_files: int = 1
) -> Path:
    """Write `config.json` and safetensors, with an index where there are several files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(weights)
    if num_files == 1:
        save_file({name: torch.from_numpy(weights[name]) for name in names}, folder / "model.safetensors")
        return folder
    weight_map = {}
    for part in range(num_files):
        file = f"model-{part + 1:05}-of-{num_files:05}.safetensors"
        save_file({name: torch.from_numpy(weights[name]) for name in names[part::num_files]}, folder / file)
        weight_map.update(dict.fromkeys(names[part::num_files], file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder
