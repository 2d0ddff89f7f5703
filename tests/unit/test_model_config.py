"""What a `config.json` says of a model's KV cache, and what is refused."""

import time
from typing import Any

import pytest

from kvengine.errors import ConfigError
from kvengine.spec import KVDtype
from kvplan.model_config import model_from_config
from kvplan.model_spec import ModelSpec
from kvplan.models.layer_parts import KeptRows

# The smallest Llama with GQA: 4 heads of 16 over hidden 64, 2 KV heads.
SMALL = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 64,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}


def read(model_type: str = "llama", **keys: Any) -> ModelSpec:
    return model_from_config({"model_type": model_type, **keys}, name="small", source="config.json")


def read_small(model_type: str = "llama", **keys: Any) -> ModelSpec:
    return read(model_type, **{**SMALL, **keys})


def refusal(model_type: str = "llama", **keys: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read_small(model_type, **keys)
    return str(caught.value)


GPT = {"n_layer": 2, "n_head": 4, "n_embd": 64, "vocab_size": 100, "n_positions": 512}
FALCON = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "vocab_size": 100}
MPT = {"n_layers": 2, "n_heads": 4, "d_model": 64, "vocab_size": 100, "max_seq_len": 512}
CHATGLM = {
    "num_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 64,
    "padded_vocab_size": 100,
    "ffn_hidden_size": 96,
    "seq_length": 512,
    "kv_channels": 16,
}


@pytest.mark.parametrize(
    ("model", "kv_heads"),
    [
        (read_small(), 2),
        (read_small(num_key_value_heads=None), 4),
        (read_small(num_key_value_heads=1), 1),
        (read("gpt2", **GPT), 4),
        (read("gpt_bigcode", **GPT), 1),
        (read("gpt_bigcode", **GPT, multi_query=False), 4),
        # The old architecture with multi_query has one head whatever the count says; the new one obeys the count.
        (read("falcon", **FALCON, num_kv_heads=4, multi_query=True), 1),
        (read("falcon", **FALCON, num_kv_heads=2, multi_query=True, new_decoder_architecture=True), 2),
        (read("falcon", **FALCON, n_head_kv=2, multi_query=False), 2),
        (read("falcon", **FALCON, multi_query=False), 4),
        (read("mpt", **MPT), 4),
        (read("mpt", **MPT, attn_config={"kv_n_heads": 2}), 2),
        (read("mpt", **MPT, attn_config={"attn_type": "multiquery_attention"}), 1),
        (read("chatglm", **CHATGLM), 4),
        (read("chatglm", **CHATGLM, multi_query_attention=True, multi_query_group_num=2), 2),
    ],
)
def test_kv_heads_are_found_under_every_spelling(model: ModelSpec, kv_heads: int) -> None:
    # 2 layers * heads * (16 + 16) * 2 bytes
    assert model.kv_cache_spec(block_size=1, dtype=KVDtype.BFLOAT16).token_bytes == 2 * kv_heads * 32 * 2


@pytest.mark.parametrize(
    ("model", "head_dim"),
    [
        (read_small(), 16),
        (read_small(head_dim=None), 16),
        (read_small(head_dim=24), 24),
        # Qwen3's class has 128, whatever hidden over heads is; Gemma's 256.
        (read_small("qwen3"), 128),
        (read_small("qwen3", head_dim=32), 32),
        (read_small("gemma"), 256),
        (read_small("qwen", kv_channels=8), 8),
    ],
)
def test_the_head_size_is_the_stated_one_else_the_class_default_else_the_quotient(
    model: ModelSpec, head_dim: int
) -> None:
    assert model.geometry.head_dim == head_dim


def test_a_missing_key_takes_the_class_default_and_says_so() -> None:
    model = read("llama")

    assert model.geometry.num_layers == 32
    assert "num_hidden_layers is absent: the class default 32 is used" in model.notes
    assert read_small().notes == ()


def test_a_model_without_a_longest_context_gets_the_one_that_vllm_assumes() -> None:
    model = read_small("mamba2", max_position_embeddings=None, num_heads=4, expand=2)

    assert model.max_model_len == 2048
    assert "longest context is absent: the class default 2,048 is used" in model.notes


def test_a_missing_key_without_a_class_default_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"^config\.json: key 'num_hidden_layers' is missing$"):
        read("internlm2")


@pytest.mark.parametrize(
    ("model_type", "keys"),
    [
        ("mistral", {"sliding_window": None}),
        ("mistral", {"sliding_window": 512}),
        ("qwen2", {"sliding_window": 64}),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": False}),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 2}),
        ("qwen2_moe", {"sliding_window": 0, "use_sliding_window": True, "moe_intermediate_size": 8}),
        ("phi3", {"sliding_window": 2048}),
        ("llama", {"layer_types": ["full_attention", "full_attention"]}),
        ("minimax_m2", {"attn_type_list": [1, 1]}),
    ],
)
def test_a_window_that_never_bites_is_full_attention(model_type: str, keys: dict[str, Any]) -> None:
    assert read_small(model_type, **keys).geometry.num_layers == 2


@pytest.mark.parametrize(
    ("model_type", "keys", "named"),
    [
        ("llama", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types = a list"),
        ("llama", {"kv_lora_rank": 512}, "multi-head latent attention (kv_lora_rank = 512)"),
        ("llama", {"attention_chunk_size": 8192}, "chunked attention (attention_chunk_size = 8192)"),
        ("llama", {"num_kv_shared_layers": 4}, "layers that share KV (num_kv_shared_layers = 4)"),
        ("llama", {"mamba_d_state": 16, "attn_layer_period": 8}, "(attn_layer_period = 8, mamba_d_state = 16)"),
        ("minimax_m2", {"attn_type_list": [0, 1]}, "attn_type_list = a list"),
        ("llama", {"is_encoder_decoder": True}, "an encoder (is_encoder_decoder = True)"),
        ("llama", {"cross_attention_layers": [3]}, "cross-attention (cross_attention_layers = a list)"),
        ("llama", {"block_configs": [{}]}, "layers that differ (block_configs = a list)"),
        ("llama", {"index_topk": 2048}, "a sparse-attention index (index_topk = 2048)"),
        ("llama", {"v_head_dim": 8}, "value heads of another size (v_head_dim 8)"),
    ],
)
def test_anything_but_full_attention_is_refused_with_the_fields_named(
    model_type: str, keys: dict[str, Any], named: str
) -> None:
    message = refusal(model_type, **keys)

    assert "not supported yet" in message
    assert named in message


def test_an_unknown_model_type_lists_what_is_supported() -> None:
    with pytest.raises(ConfigError) as caught:
        read("gemma9", text_config={"num_kv_shared_layers": 15})

    message = "config.json: model type 'gemma9' is not supported yet: it needs layers that share KV"
    assert str(caught.value) == f"{message} (num_kv_shared_layers = 15)"
    assert "; supported: afmoe, " in caught.value.hint


def test_an_unknown_model_type_can_be_taken_as_standard_attention_and_says_so() -> None:
    config = {"model_type": "gemma9", **SMALL, "num_kv_shared_layers": 1}
    model = model_from_config(config, name="small", source="config.json", assume_standard=True)

    # 2 layers * 2 heads * (16 + 16) * 2 bytes
    assert model.kv_cache_spec(block_size=1, dtype=KVDtype.BFLOAT16).token_bytes == 256
    assert model.assumption == "standard attention is assumed in every layer: model type 'gemma9' is not known"


def test_fields_that_are_not_understood_can_be_planned_without() -> None:
    config = {"model_type": "llama", **SMALL, "kv_lora_rank": 512}
    model = model_from_config(config, name="small", source="config.json", assume_standard=True)

    assert model.assumption.endswith("every layer: multi-head latent attention (kv_lora_rank = 512)")


@pytest.mark.parametrize(
    ("model_type", "keys", "windows"),
    [
        ("mistral", {"sliding_window": 511}, [511, 511]),
        ("mistral", {"max_position_embeddings": 8192}, [4096, 4096]),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True}, [64, 64]),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 1}, [0, 64]),
        ("gemma2", {"sliding_window": 64, "head_dim": 16}, [64, 0]),
        ("gemma3_text", {"sliding_window": 64, "sliding_window_pattern": 2}, [64, 0]),
        ("exaone4", {"sliding_window": 64, "sliding_window_pattern": "GL"}, [0, 64]),
        ("gpt_oss", {"sliding_window": 64, "layer_types": ["full_attention", "sliding_attention"]}, [0, 64]),
        ("llama4_text", {"attention_chunk_size": 64, "no_rope_layers": [0, 1]}, [0, 64]),
        ("llama4_text", {"attention_chunk_size": None}, [0, 0]),
        (
            "gpt_neo",
            {"window_size": 64, "num_layers": 2, "num_heads": 4, "attention_types": [[["local"], 2]]},
            [64, 64],
        ),
    ],
)
def test_windows_and_chunks_are_found_in_every_spelling(
    model_type: str, keys: dict[str, Any], windows: list[int]
) -> None:
    layers = read_small(model_type, **keys).layers

    assert [layer[0].reach for layer in layers if isinstance(layer[0], KeptRows)] == windows


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers: expected a whole number from 1 to 2,000, got 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: expected a whole number from 1 to 2,000"),
        ({"num_hidden_layers": 10**400}, "got a number with more than 20 digits"),
        ({"num_hidden_layers": True}, "num_hidden_layers: expected a whole number from 1 to 2,000, got True"),
        ({"hidden_size": 64.0}, "hidden_size: expected a whole number from 1 to 4,294,967,296, got 64.0"),
        ({"hidden_size": "64"}, "hidden_size: expected a whole number from 1 to 4,294,967,296, got '64'"),
        ({"hidden_size": 66}, "no head_dim, and hidden_size 66 is not a multiple of num_attention_heads 4"),
        ({"num_key_value_heads": 3}, "4 attention heads (num_attention_heads) are not a multiple of 3 KV heads"),
        ({"num_key_value_heads": 8}, "4 attention heads (num_attention_heads) are not a multiple of 8 KV heads"),
        ({"max_position_embeddings": -1}, "max_position_embeddings: expected a whole number from 1"),
        ({"dtype": "int8"}, "dtype: expected one of float32, float16, bfloat16, got 'int8'"),
        ({"rope_scaling": [1]}, "rope_scaling: expected an object, got a list"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor: expected a number above 0"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings: expected true or false, got 'no'"),
    ],
)
def test_a_senseless_value_is_named_with_what_is_allowed(keys: dict[str, Any], message: str) -> None:
    assert message in refusal(**keys)


@pytest.mark.parametrize(
    ("keys", "longest"),
    [
        ({}, 512),
        ({"seq_length": 256}, 256),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 2048),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 512),
        ({"rope_scaling": {"type": "longrope"}}, 512),
        # Of vLLM 0.32, asked: yarn leaves the stated length alone.
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100}}, 512),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, 512),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2}}, 1024),
        ({"rope_scaling": None}, 512),
    ],
)
def test_the_longest_context_is_what_vllm_reads(keys: dict[str, Any], longest: int) -> None:
    assert read_small(**keys).max_model_len == longest


@pytest.mark.parametrize(
    ("keys", "dtype", "kv_dtype"),
    [
        ({}, "bfloat16", "bfloat16"),
        ({"torch_dtype": "float16"}, "float16", "float16"),
        ({"dtype": "torch.bfloat16", "torch_dtype": "float16"}, "bfloat16", "bfloat16"),
        ({"torch_dtype": "float32"}, "bfloat16", "bfloat16"),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}}, "bfloat16", "fp8"),
        ({"quantization_config": {"kv_cache_scheme": "FP8"}}, "bfloat16", "fp8"),
        ({"quantization_config": {"kv_cache_scheme": None}}, "bfloat16", "bfloat16"),
        ({"quantization_config": {"kv_cache_quant_algo": "FP8"}}, "bfloat16", "fp8"),
    ],
)
def test_element_types_follow_the_checkpoint_but_engines_run_in_16_bits(
    keys: dict[str, Any], dtype: str, kv_dtype: str
) -> None:
    model = read_small(**keys)

    assert model.dtype == dtype
    assert model.kv_dtype(None) == kv_dtype
    assert model.kv_dtype(KVDtype.FLOAT16) is KVDtype.FLOAT16


def test_a_kv_type_that_is_not_supported_needs_a_choice() -> None:
    model = read_small(quantization_config={"kv_cache_scheme": {"num_bits": 4, "type": "int"}})

    with pytest.raises(ConfigError, match="the checkpoint states a KV cache of an object, which is not supported yet"):
        model.kv_dtype(None)
    assert model.kv_dtype(KVDtype.FP8) is KVDtype.FP8


@pytest.mark.parametrize("key", ["text_config", "llm_config"])
def test_a_language_model_inside_is_read_and_its_weights_are_not_guessed(key: str) -> None:
    model_type = {"text_config": "mistral3", "llm_config": "internvl_chat"}[key]
    config = {key: {"model_type": "qwen2", **SMALL}, "vision_config": {"num_hidden_layers": 99}, "dtype": "float16"}
    model = read(model_type, **config)

    assert model.geometry.num_layers == 2
    assert model.dtype is KVDtype.FLOAT16
    assert model.weights_unknown == "its vision or audio part is not counted yet"


def test_a_profile_may_not_hold_a_key_that_is_not_read() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'num_hiden_layers'; did you mean 'num_hidden_layers'\?"):
        model_from_config(
            {"model_type": "llama", "num_hiden_layers": 3}, name="x", source="x.yaml", refuse_unread_keys=True
        )


@pytest.mark.parametrize(("ranks", "kv_heads"), [(1, 8), (2, 4), (8, 1), (16, 1), (32, 1)])
def test_kv_heads_split_down_to_one_and_are_then_repeated(ranks: int, kv_heads: int) -> None:
    model = read("llama", num_attention_heads=32, num_key_value_heads=8)

    assert model.kv_cache_spec(block_size=16, dtype=KVDtype.FP8, tensor_parallel=ranks).num_kv_heads == kv_heads


@pytest.mark.parametrize("ranks", [3, 6, 64])
def test_ranks_that_do_not_divide_the_heads_are_refused_with_those_that_do(ranks: int) -> None:
    model = read("llama", num_attention_heads=32, num_key_value_heads=8)

    with pytest.raises(ConfigError, match=f"cannot be divided over {ranks} GPUs") as caught:
        model.kv_cache_spec(block_size=16, dtype=KVDtype.FP8, tensor_parallel=ranks)
    assert caught.value.hint == "this model takes --tp 1, 2, 4, 8, 16, 32"


def test_ranks_that_would_do_are_found_at_once_for_the_largest_model_that_is_read() -> None:
    heads = {"num_attention_heads": 65_535, "num_key_value_heads": 1, "head_dim": 16}
    model = read_small(num_hidden_layers=2_000, **heads)

    began = time.process_time()
    with pytest.raises(ConfigError) as refused:
        model.check_divides_over(2)

    # 65,535 = 3 x 5 x 17 x 257
    assert refused.value.hint == "this model takes --tp 1, 3, 5, 15, 17, 51, 85, 255"
    # Looking at all layers for each number of ranks takes a minute.
    assert time.process_time() - began < 5
