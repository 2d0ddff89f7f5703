"""A Llama decoder as plainly as it can be written, in numpy and float64: one position, one head at a time.

It shares nothing with the engine: no fused weights, no cache, no paging, rotary positions as complex numbers.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def next_token_logits(config: dict[str, Any], weights: dict[str, Array], token_ids: list[int]) -> Array:
    """Logits after each position, [len(token_ids), vocab_size]; `config` is a Hugging Face `config.json`."""
    hidden = weights["model.embed_tokens.weight"][token_ids]
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}."
        normed = _rms_norm(hidden, weights[layer + "input_layernorm.weight"], config["rms_norm_eps"])
        hidden = hidden + _attention(config, weights, layer + "self_attn.", normed)
        normed = _rms_norm(hidden, weights[layer + "post_attention_layernorm.weight"], config["rms_norm_eps"])
        gate = normed @ weights[layer + "mlp.gate_proj.weight"].T
        up = normed @ weights[layer + "mlp.up_proj.weight"].T
        hidden = hidden + (gate / (1 + np.exp(-gate)) * up) @ weights[layer + "mlp.down_proj.weight"].T
    normed = _rms_norm(hidden, weights["model.norm.weight"], config["rms_norm_eps"])
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return normed @ weights[head].T


def _rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def _attention(config: dict[str, Any], weights: dict[str, Array], name: str, x: Array) -> Array:
    num_heads, num_kv_heads, head_dim = (
        config["num_attention_heads"],
        config["num_key_value_heads"],
        config["head_dim"],
    )
    length = len(x)
    q = (x @ weights[name + "q_proj.weight"].T).reshape(length, num_heads, head_dim)
    k = (x @ weights[name + "k_proj.weight"].T).reshape(length, num_kv_heads, head_dim)
    v = (x @ weights[name + "v_proj.weight"].T).reshape(length, num_kv_heads, head_dim)
    turn = np.exp(1j * np.arange(length)[:, None] * _frequencies(config)[None, :])
    out = np.zeros((length, num_heads, head_dim))
    for head in range(num_heads):
        kv_head = head * num_kv_heads // num_heads
        queries, keys = _rotated(q[:, head], turn), _rotated(k[:, kv_head], turn)
        for position in range(length):
            scores = keys[: position + 1] @ queries[position] / np.sqrt(head_dim)
            shares = np.exp(scores - scores.max())
            out[position, head] = shares @ v[: position + 1, kv_head] / shares.sum()
    return out.reshape(length, -1) @ weights[name + "o_proj.weight"].T


def _rotated(x: Array, turn: NDArray[np.complex128]) -> Array:
    half = x.shape[1] // 2
    turned = (x[:, :half] + 1j * x[:, half:]) * turn
    return np.concatenate([turned.real, turned.imag], axis=1)


def _frequencies(config: dict[str, Any]) -> Array:
    head_dim, scaling = config["head_dim"], config.get("rope_scaling")
    frequencies = np.array([config["rope_theta"] ** (-2 * i / head_dim) for i in range(head_dim // 2)])
    if scaling is None:
        return frequencies
    if scaling["rope_type"] == "linear":
        return frequencies / scaling["factor"]
    return np.array([_llama3(frequency, scaling) for frequency in frequencies])


def _llama3(frequency: float, scaling: dict[str, Any]) -> float:
    """As in the Llama 3.1 release: by wavelength, long ones scaled, short ones kept, those between blended."""
    wavelength = 2 * np.pi / frequency
    old_length, low, high = (
        scaling["original_max_position_embeddings"],
        scaling["low_freq_factor"],
        scaling["high_freq_factor"],
    )
    if wavelength < old_length / high:
        return frequency
    if wavelength > old_length / low:
        return frequency / scaling["factor"]
    smooth = (old_length / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / scaling["factor"] + smooth * frequency
