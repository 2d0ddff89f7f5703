import json
from pathlib import Path
from typing import Any

import pytest

from kvengine.errors import ConfigError
from kvengine.gguf_file import GGUFFile, GGUFTensor
from kvengine.model_config.decoder import (
    DecoderConfig,
    DenseFeed,
    GroupedAttention,
    RopeConfig,
    RopeKind,
    uniform_layers,
)
from kvengine.model_config.gguf import config_from_gguf
from kvengine.model_config.read import read_config
from kvengine.spec import KVDtype

LLAMA_32_1B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "tie_word_embeddings": True,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "attention_bias": False,
}
"""As published with the model."""
SUPPORTED = "llama, mistral, qwen2, qwen3, gemma2, gemma3_text, mixtral, qwen3_moe, deepseek_v2, deepseek_v3, gemma3"


def grouped(config: DecoderConfig) -> GroupedAttention:
    """The attention of a model whose layers are all alike."""
    (attention,) = {layer.attention for layer in config.layers}
    assert isinstance(attention, GroupedAttention)
    return attention


def read(tmp_path: Path, config: object) -> DecoderConfig:
    (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return read_config(tmp_path)


def test_a_published_config_is_read_in_full(tmp_path: Path) -> None:
    attention = GroupedAttention(
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        scale=0.125,
        rope=RopeConfig(
            theta=500000.0,
            kind=RopeKind.LLAMA3,
            factor=32.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_model_len=8192,
        ),
    )
    assert read(tmp_path, LLAMA_32_1B) == DecoderConfig(
        layers=uniform_layers(attention, DenseFeed(intermediate_size=8192), 16),
        hidden_size=2048,
        vocab_size=128256,
        max_model_len=131072,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        eos_token_ids=frozenset({128001, 128008, 128009}),
    )


def test_a_config_file_and_its_folder_are_the_same_model(tmp_path: Path) -> None:
    assert read(tmp_path, LLAMA_32_1B) == read_config(tmp_path / "config.json")


def test_the_cache_geometry_counts_kv_heads_not_query_heads(tmp_path: Path) -> None:
    spec = read(tmp_path, LLAMA_32_1B).kv_cache_spec(KVDtype.BFLOAT16, 16)
    # 16 layers x 2 x 8 heads x 64 x 2 bytes.
    assert spec.token_bytes == 32768


def test_fields_that_old_configs_leave_out_take_their_documented_defaults(tmp_path: Path) -> None:
    old = {key: value for key, value in LLAMA_32_1B.items() if key not in ("num_key_value_heads", "head_dim")}
    for key in ("rope_theta", "rope_scaling", "tie_word_embeddings", "eos_token_id"):
        del old[key]

    config = read(tmp_path, old)

    attention = grouped(config)
    assert (attention.num_kv_heads, attention.head_dim, attention.rope) == (32, 64, RopeConfig(theta=10000.0))
    assert (config.tie_word_embeddings, config.eos_token_ids) == (False, frozenset())


def test_end_tokens_of_the_generation_config_are_added(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    assert read(tmp_path, {**LLAMA_32_1B, "eos_token_id": 7}).eos_token_ids == {7, 8}


@pytest.mark.parametrize(
    ("keys", "rope"),
    [
        ({"rope_scaling": None}, RopeConfig(theta=500000.0)),
        ({"rope_scaling": {"rope_type": "default"}}, RopeConfig(theta=500000.0)),
        (
            {"rope_scaling": {"type": "linear", "factor": 4}},
            RopeConfig(theta=500000.0, kind=RopeKind.LINEAR, factor=4.0),
        ),
        ({"rope_parameters": {"rope_theta": 1e6}, "rope_scaling": None}, RopeConfig(theta=1e6)),
        (
            {"rope_parameters": {"rope_theta": 1e6, "rope_type": "linear", "factor": 2.0}},
            RopeConfig(theta=1e6, kind=RopeKind.LINEAR, factor=2.0),
        ),
    ],
)
def test_every_spelling_of_rotary_scaling_is_read(keys: dict[str, Any], rope: RopeConfig, tmp_path: Path) -> None:
    assert grouped(read(tmp_path, {**LLAMA_32_1B, **keys})).rope == rope


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt_oss"}, f"model_type: 'gpt_oss' is not supported; supported: {SUPPORTED}"),
        ({"model_type": None}, f"model_type: missing; supported: {SUPPORTED}"),
        ({"model_type": ["llama"]}, f"model_type: ['llama'] is not supported; supported: {SUPPORTED}"),
        ({"num_hidden_layers": None}, "num_hidden_layers: missing; expected a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: expected a whole number >= 1, got 0"),
        ({"num_hidden_layers": 2**39}, "num_hidden_layers: expected a whole number <= 10000, got 549755813888"),
        ({"hidden_size": -2048}, "hidden_size: expected a whole number >= 1, got -2048"),
        ({"hidden_size": 2**41}, "hidden_size: expected a whole number <= 1099511627776, got 2199023255552"),
        (
            {"rms_norm_eps": 10**400},
            "rms_norm_eps: expected a finite number > 0, got 100000000000000000...0000000000000000000",
        ),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: expected a finite number > 0, got nan"),
        ({"vocab_size": "many"}, "vocab_size: expected a whole number, got 'many'"),
        ({"vocab_size": True}, "vocab_size: expected a whole number, got True"),
        ({"num_attention_heads": 32.0}, "num_attention_heads: expected a whole number, got 32.0"),
        ({"num_key_value_heads": 5}, "num_key_value_heads: 32 query heads cannot be shared out over 5 KV heads"),
        (
            {"head_dim": None, "num_attention_heads": 4096, "num_key_value_heads": 8},
            "head_dim: rotary positions need an even head size >= 2, got 0",
        ),
        ({"head_dim": 63}, "head_dim: rotary positions need an even head size >= 2, got 63"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps: expected a finite number > 0, got -1e-05"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps: expected a finite number > 0, got inf"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: expected true or false, got 'yes'"),
        ({"eos_token_id": 128256}, "eos_token_id: 128256 is not below the vocabulary size 128256"),
        ({"eos_token_id": "</s>"}, "eos_token_id: expected a token id or a list of them, got '</s>'"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu' is not supported; 'silu' is"),
        ({"mlp_bias": True}, "mlp_bias: True is not supported; False is"),
        ({"sliding_window": 4096}, "sliding_window: 4096 is not supported; null is"),
        (
            {"quantization_config": {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["x"] * 99}},
            "quantization_config: 'fbgemm_fp8' weights are not supported; block-quantised 'fp8' is",
        ),
        ({"rope_scaling": [8.0]}, "rope_scaling: expected an object, got [8.0]"),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
            "rope_scaling.rope_type: 'dynamic' is not supported; supported: default, linear, llama3, yarn",
        ),
        ({"rope_scaling": {"factor": 4.0}}, "rope_scaling.type: missing; supported: default, linear, llama3, yarn"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor: missing; expected a number"),
        (
            {"rope_scaling": {**LLAMA_32_1B["rope_scaling"], "high_freq_factor": 1.0}},
            "rope_scaling.high_freq_factor: expected more than low_freq_factor 1.0, got 1.0",
        ),
    ],
)
def test_each_impossible_field_is_refused_with_file_and_key(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, {**LLAMA_32_1B, **change})
    assert str(caught.value) == f"{tmp_path / 'config.json'}: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n "model_type": "llama",\n', "config.json:3: broken JSON"),
        ("[1, 2]", "expected a JSON object, got list"),
        ("", "config.json:1: broken JSON"),
        ("[" * 100_000, "not readable as JSON"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "not readable as JSON"),
    ],
)
def test_a_broken_config_file_is_one_clear_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_paths_that_are_no_model_are_refused_with_what_would_be_one(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"x")
    (tmp_path / "model.gguf").write_bytes(b"x")

    with pytest.raises(ConfigError, match="no such file or folder"):
        read_config(tmp_path / "none")
    with pytest.raises(ConfigError, match="expected a folder with config"):
        read_config(tmp_path / "weights.bin")
    with pytest.raises(ConfigError, match="the folder holds no config") as caught:
        read_config(tmp_path)
    assert caught.value.hint == f"give the file itself: {tmp_path / 'model.gguf'}"


GGUF_METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 30,
    "llama.context_length": 8192,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 100000.0,
    "llama.rope.dimension_count": 64,
    "llama.vocab_size": 49152,
    "tokenizer.ggml.eos_token_id": 2,
}
"""Those of SmolLM2-135M-Instruct."""


def from_metadata(*, output_head: bool = False, **changes: Any) -> DecoderConfig:
    tensor = GGUFTensor(name="output.weight", shape=(1,), type_id=0, offset=0)
    metadata = {key: value for key, value in {**GGUF_METADATA, **changes}.items() if value is not None}
    return config_from_gguf(
        GGUFFile(path=Path("m.gguf"), metadata=metadata, tensors={"output.weight": tensor} if output_head else {})
    )


def test_gguf_metadata_gives_the_same_fields_as_a_config() -> None:
    config = from_metadata()

    attention = grouped(config)
    assert (config.num_layers, config.num_heads, attention.num_kv_heads, attention.head_dim) == (30, 9, 3, 64)
    assert (config.vocab_size, config.max_model_len, config.eos_token_ids) == (49152, 8192, {2})
    assert attention.rope == RopeConfig(theta=100000.0)
    # 30 layers x 2 x 3 heads x 64 x 4 bytes.
    assert config.kv_cache_spec(KVDtype.FLOAT32, 16).token_bytes == 46080


def test_gguf_heads_are_tied_exactly_when_there_is_no_output_tensor() -> None:
    assert from_metadata().tie_word_embeddings
    assert not from_metadata(output_head=True).tie_word_embeddings


def test_gguf_vocabulary_is_counted_where_its_size_is_not_stated() -> None:
    config = from_metadata(**{"llama.vocab_size": None, "tokenizer.ggml.tokens": ["a", "b", "c"]})
    assert config.vocab_size == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"general.architecture": "gemma3"},
            "general.architecture: 'gemma3' is not supported; supported: llama, qwen2, qwen3",
        ),
        ({"llama.block_count": None}, "llama.block_count: missing; expected a whole number"),
        (
            {"llama.attention.head_count_kv": [3, 3]},
            "llama.attention.head_count_kv: expected a whole number, got [3, 3]",
        ),
        ({"llama.rope.dimension_count": 32}, "llama.rope.dimension_count: expected the head size 64, got 32"),
        ({"llama.expert_count": 8}, "llama.expert_count: mixture-of-experts models are not supported"),
        (
            {"llama.rope.scaling.type": "yarn"},
            "llama.rope.scaling.type: 'yarn' is not supported; supported: none, linear",
        ),
    ],
)
def test_gguf_metadata_that_is_not_understood_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_metadata(**change)
    assert str(caught.value) == f"m.gguf: {message}"
