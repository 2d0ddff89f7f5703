"""What sets the families of models apart, read from published spellings of their configurations."""

from typing import Any

import pytest

from kvengine.errors import ConfigError
from kvengine.model_config.decoder import (
    DecoderConfig,
    ExpertFeed,
    GroupedAttention,
    LatentAttention,
    RopeConfig,
    RopeKind,
    Scoring,
)
from kvengine.model_config.huggingface import config_from_mapping

BASE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
}
DEEPSEEK: dict[str, Any] = {
    **BASE,
    "model_type": "deepseek_v3",
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "moe_intermediate_size": 20,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 2,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
    },
}
QWEN3_MOE: dict[str, Any] = {
    **BASE,
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}


def read(model_type: str, **changes: Any) -> DecoderConfig:
    return config_from_mapping({**BASE, "model_type": model_type, **changes}, where="config.json")


def windows(config: DecoderConfig) -> list[int | None]:
    return [layer.attention.window for layer in config.layers]


def first(config: DecoderConfig) -> GroupedAttention:
    attention = config.layers[0].attention
    assert isinstance(attention, GroupedAttention)
    return attention


@pytest.mark.parametrize(
    ("model_type", "keys", "expected"),
    [
        ("mistral", {"sliding_window": None}, [None] * 6),
        ("mistral", {"sliding_window": 8}, [8] * 6),
        ("mistral", {"sliding_window": 256}, [None] * 6),
        # Published with a window that is switched off.
        ("qwen2", {"sliding_window": 8, "use_sliding_window": False, "max_window_layers": 2}, [None] * 6),
        ("qwen2", {"sliding_window": 8}, [None] * 6),
        ("qwen3", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 4}, [None] * 4 + [8] * 2),
        ("gemma2", {"sliding_window": 8}, [8, None] * 3),
        ("gemma3_text", {"sliding_window": 8}, [8] * 5 + [None]),
        ("gemma3_text", {"sliding_window": 8, "sliding_window_pattern": 3}, [8, 8, None] * 2),
        (
            "gemma3_text",
            {"sliding_window": 8, "layer_types": ["full_attention"] + ["sliding_attention"] * 5},
            [None] + [8] * 5,
        ),
    ],
)
def test_each_familys_windows_are_those_of_its_layers(
    model_type: str, keys: dict[str, Any], expected: list[int | None]
) -> None:
    assert windows(read(model_type, **keys)) == expected


def test_biases_and_norms_of_heads_belong_to_families() -> None:
    def parts(model_type: str, **keys: Any) -> tuple[bool, bool, bool]:
        attention = first(read(model_type, **keys))
        return attention.qkv_bias, attention.out_bias, attention.qk_norm

    assert parts("llama") == (False, False, False)
    assert parts("llama", attention_bias=True) == (True, True, False)
    assert parts("qwen2") == (True, False, False)
    assert parts("qwen3") == (False, False, True)


def test_gemma_3_turns_its_two_kinds_of_layers_differently() -> None:
    # The spelling of the release, before transformers 5.
    config = read(
        "gemma3_text",
        sliding_window=8,
        rope_theta=1e6,
        rope_local_base_freq=10000,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        query_pre_attn_scalar=16,
    )

    assert config.layers[5].attention.rope == RopeConfig(theta=1e6, kind=RopeKind.LINEAR, factor=8.0)
    assert config.layers[0].attention.rope == RopeConfig(theta=10000.0)
    assert config.layers[0].attention.scale == 0.25
    assert (config.norm_offset, config.sandwich_norms, config.tie_word_embeddings) == (1.0, True, True)
    assert config.embedding_scale == pytest.approx(32**0.5)


def test_deepseek_r1_keeps_one_row_and_chooses_among_groups_of_experts() -> None:
    config = config_from_mapping(DEEPSEEK, where="config.json")

    attention, feed = config.layers[2].attention, config.layers[2].feed
    assert isinstance(attention, LatentAttention)
    assert isinstance(feed, ExpertFeed)
    assert attention.kv_row == (1, 20, 0)
    # 1 / sqrt(16), times the square of 0.1 ln 40 + 1 = 1.368888.
    assert attention.scale == pytest.approx(0.25 * 1.8738, rel=1e-4)
    assert attention.rope.amplitude == 1.0
    assert (feed.scoring, feed.num_groups, feed.top_groups, feed.shared_size) == (Scoring.SIGMOID, 4, 2, 40)
    assert (feed.normalize, feed.routed_scale, feed.selection_bias) == (True, 2.5, True)
    assert [isinstance(layer.feed, ExpertFeed) for layer in config.layers] == [False, False, True, True, True, True]


def test_experts_are_in_the_layers_that_say_so() -> None:
    config = config_from_mapping({**QWEN3_MOE, "decoder_sparse_step": 2, "mlp_only_layers": [3]}, where="config.json")
    assert [isinstance(layer.feed, ExpertFeed) for layer in config.layers] == [False, True, False, False, False, True]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**DEEPSEEK, "topk_method": "greedy"}, "topk_method: 'greedy' is not supported; 'noaux_tc' is"),
        (
            {**DEEPSEEK, "n_group": 8, "topk_group": 4},
            "n_group: a group is ranked by its two best experts, and these have one each",
        ),
        ({**DEEPSEEK, "n_group": 3}, "n_group: 8 experts cannot be chosen from 2 of 3 groups"),
        (
            {**DEEPSEEK, "num_experts_per_tok": 5},
            "num_experts_per_tok: expected at most the 4 experts there are, got 5",
        ),
        ({**DEEPSEEK, "qk_rope_head_dim": 5}, "qk_rope_head_dim: rotary positions need an even head size >= 2, got 5"),
        ({**DEEPSEEK, "kv_lora_rank": None}, "kv_lora_rank: missing; expected a whole number"),
        ({**DEEPSEEK, "attention_bias": True}, "attention_bias: True is not supported; False is"),
        (
            {**QWEN3_MOE, "layer_types": ["linear_attention"] * 6, "use_sliding_window": True, "sliding_window": 8}
            | {"max_window_layers": 0},
            "layer_types: 'linear_attention' is not supported; supported: full_attention, sliding_attention",
        ),
        ({**QWEN3_MOE, "num_experts": None}, "num_experts: missing; expected a whole number"),
        (
            {**BASE, "model_type": "gemma2", "hidden_activation": "gelu", "sliding_window": 8},
            "hidden_activation: 'gelu' is not supported; 'gelu_pytorch_tanh' is",
        ),
        (
            {**BASE, "model_type": "gemma2", "sliding_window": 8, "layer_types": ["full_attention"]},
            "layer_types: expected 6 words, one for each layer, got 1",
        ),
        ({"model_type": "gemma3"}, "text_config: missing; expected an object"),
        # Published so: another model under a known type, a model without a head, and one that looks ahead.
        (
            {**BASE, "model_type": "mixtral", "architectures": ["Grok1ModelForCausalLM"]},
            "architectures: ['Grok1ModelForCausalLM'] is not supported; supported: ['MixtralForCausalLM']",
        ),
        (
            {**BASE, "model_type": "mistral", "architectures": ["MistralModel"]},
            "architectures: ['MistralModel'] is not supported; supported: ['MistralForCausalLM']",
        ),
        ({**BASE, "model_type": "qwen2", "is_causal": False}, "is_causal: False is not supported; True is"),
        (
            {"model_type": "gemma3", "text_config": {**BASE, "num_key_value_heads": 3}},
            "text_config: num_key_value_heads: 4 query heads cannot be shared out over 3 KV heads",
        ),
        ({**BASE, "model_type": "mistral", "attention_bias": True}, "attention_bias: True is not supported; False is"),
        (
            {**BASE, "model_type": "qwen3", "quantization_config": {"quant_method": "fp8"}},
            "quantization_config: 'fp8' weights without a weight_block_size of two numbers are not supported; "
            "block-quantised 'fp8' is",
        ),
        (
            {**BASE, "model_type": "llama", "rope_theta": 1, "rope_scaling": {"type": "yarn", "factor": 4.0}},
            "rope_scaling.rope_theta: yarn blends over the logarithm of theta: expected more than 1, got 1",
        ),
        (
            {**BASE, "model_type": "llama", "rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 1}},
            "rope_scaling.beta_fast: expected more than beta_slow 1.0, got 1.0",
        ),
    ],
)
def test_what_is_not_built_is_refused_in_one_line_with_its_field(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(values, where="config.json")
    assert str(caught.value) == f"config.json: {message}"
