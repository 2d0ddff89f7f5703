"""The demo model as a folder in Hugging Face form, for peers that read no GGUF file, or take minutes to."""

import json
from pathlib import Path

import torch

from kvengine.model_config.decoder import DenseFeed, GroupedAttention
from kvengine.model_config.read import read_config
from kvengine.model_files import find_demo_model
from kvengine.models.tensor_reader import TensorReader
from kvengine.models.weights import open_weights


def export_demo_model(folder: Path) -> None:
    """Write `config.json` and the weights in float32; peers convert them."""
    from safetensors.torch import save_file

    path = find_demo_model()
    config = read_config(path)
    source = open_weights(path, config)
    layer = config.layers[0]
    attention, feed = layer.attention, layer.feed
    assert isinstance(attention, GroupedAttention)
    assert isinstance(feed, DenseFeed)
    heads, kv_heads, dim, hidden = attention.num_heads, attention.num_kv_heads, attention.head_dim, config.hidden_size
    inner = feed.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (config.vocab_size, hidden),
        "model.norm": (hidden,),
    }
    for index in range(config.num_layers):
        shapes |= {
            f"model.layers.{index}.{name}": shape
            for name, shape in {
                "input_layernorm": (hidden,),
                "post_attention_layernorm": (hidden,),
                "self_attn.q_proj": (heads * dim, hidden),
                "self_attn.k_proj": (kv_heads * dim, hidden),
                "self_attn.v_proj": (kv_heads * dim, hidden),
                "self_attn.o_proj": (hidden, heads * dim),
                "mlp.gate_proj": (inner, hidden),
                "mlp.up_proj": (inner, hidden),
                "mlp.down_proj": (hidden, inner),
            }.items()
        }
    reader = TensorReader(source, dtype=torch.float32, device=torch.device("cpu"))
    weights = {f"{name}.weight": reader.tensor(f"{name}.weight", shape) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    geometry = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_model_len,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": attention.rope.theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "hidden_act": "silu",
        "eos_token_id": min(config.eos_token_ids),
        "bos_token_id": 1,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(geometry, indent=1))
