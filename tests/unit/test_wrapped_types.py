"""Types that wrap, rename or extend known ones: block-sparse attention, unknown wrappers, other names, lengths."""

from typing import Any

import pytest

from kvengine.errors import ConfigError
from kvengine.spec import KVDtype
from kvplan.capacity import EngineKind
from kvplan.engine_inputs import EngineInputs
from kvplan.model_config import model_from_config
from kvplan.model_spec import ModelSpec
from kvplan.models.kv_figures import kv_figures
from kvplan.plan import MemoryInputs, PlanInputs, make_plan

GIB = 2**30
# Of MiniMax-M3's config.json: three layers without an index, then 57 with one.
M3: dict[str, Any] = {
    "architectures": ["MiniMaxM3ForCausalLM"],
    "model_type": "minimax_m3",
    "hidden_size": 6144,
    "num_hidden_layers": 60,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 3072,
    "moe_intermediate_size": 3072,
    "dense_intermediate_size": 12288,
    "shared_intermediate_size": 3072,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "moe_layer_freq": [0] * 3 + [1] * 57,
    "max_position_embeddings": 1_048_576,
    "vocab_size": 200_064,
    "tie_word_embeddings": False,
    "sparse_attention_config": {
        "use_sparse_attention": True,
        "sparse_index_dim": 128,
        "sparse_num_index_heads": 4,
        "sparse_topk_blocks": 16,
        "sparse_attention_freq": [0] * 3 + [1] * 57,
    },
}


def read(config: dict[str, Any]) -> ModelSpec:
    return model_from_config(config, name="m", source="m")


def test_block_sparse_layers_keep_an_index_key_beside_keys_and_values() -> None:
    model = read(M3)

    assert kv_figures(model.layers).bytes_per_token == 60 * 4 * 128 * 2 * 2
    assert [len(layer) for layer in model.layers] == [1] * 3 + [2] * 57
    # Of one layer: queries and outputs, keys and values; the index's queries and key; norms of heads and of layers.
    attention = 2 * 6144 * 64 * 128 + 2 * 6144 * 4 * 128 + 2 * 128
    index = 6144 * 4 * 128 + 6144 * 128 + 2 * 128
    dense = 3 * 6144 * 12_288
    experts = 129 * 3 * 6144 * 3072 + 6144 * 128 + 128
    layers = 60 * (attention + 2 * 6144) + 57 * (index + experts) + 3 * dense
    assert model.weights is not None
    assert model.weights.parameters == layers + 2 * 200_064 * 6144 + 6144


@pytest.mark.parametrize(("kv_dtype", "element_bytes"), [(None, 2), (KVDtype.FP8, 1)])
def test_block_sparse_pages_are_summed_in_one_group_and_index_keys_stay_wide(
    kv_dtype: KVDtype | None, element_bytes: int
) -> None:
    engine = EngineInputs(block_size=16, kv_dtype=kv_dtype, max_model_len=32_768, max_num_batched_tokens=8192)
    capacity = make_plan(
        PlanInputs(model=read(M3), memory=MemoryInputs(available_kv_bytes=64 * GIB), engine=engine)
    ).capacity

    block_bytes = 16 * (60 * 4 * 128 * 2 * element_bytes + 57 * 128 * 2)
    assert [len(group.layers) for group in capacity.layout.groups] == [117]
    assert capacity.block_bytes == block_bytes
    assert capacity.num_blocks == 64 * GIB // block_bytes
    if element_bytes == 2:
        # vLLM 0.32's own answer for these specs.
        assert (capacity.num_blocks, float(capacity.max_concurrency)) == (31_242, 15.2548828125)


def test_block_sparse_attention_that_is_switched_off_has_no_index() -> None:
    off = {**M3, "sparse_attention_config": {**M3["sparse_attention_config"], "use_sparse_attention": False}}

    assert all(len(layer) == 1 for layer in read(off).layers)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sparse_attention_freq": [1, 0]}, "sparse_attention_freq"),
        ({"sparse_index_dim": -4}, "sparse_index_dim"),
        ({"sparse_num_index_heads": "four"}, "sparse_num_index_heads"),
    ],
)
def test_a_damaged_index_is_refused_by_its_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read({**M3, "sparse_attention_config": {**M3["sparse_attention_config"], **change}})


INNER = {
    "model_type": "qwen3",
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "vocab_size": 151_936,
    "max_position_embeddings": 65_536,
}


def test_a_wrapper_nobody_knows_is_planned_by_the_known_model_inside_and_that_is_said() -> None:
    model = read({"model_type": "later_asr", "text_config": INNER, "audio_config": {"num_hidden_layers": 32}})

    assert kv_figures(model.layers).bytes_per_token == 28 * 8 * 128 * 2 * 2
    assert model.notes[0] == "model type 'later_asr' is not known; planned by the 'qwen3' model inside it"
    assert model.weights_unknown


@pytest.mark.parametrize(
    "outer",
    [
        {"model_type": "later", "num_hidden_layers": 8, "text_config": INNER},
        {"model_type": "later", "is_encoder_decoder": True, "text_config": INNER},
        {"model_type": "later", "cross_attention_layers": [3], "text_config": INNER},
        {"model_type": "later", "text_config": {**INNER, "model_type": "later_text"}},
        {"model_type": "later", "vision_config": INNER},
    ],
)
def test_what_has_layers_or_needs_of_its_own_is_no_wrapper(outer: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="'later' is not supported yet"):
        read(outer)


def test_a_converters_name_is_read_as_the_type_that_its_architecture_tells() -> None:
    config = {
        "model_type": "deepseek_ref",
        "architectures": ["DeepseekV4ForCausalLM"],
        "num_hidden_layers": 2,
        "compress_ratios": [0, 4],
    }
    named = read({**config, "model_type": "deepseek_v4"})

    assert read(config).layers == named.layers
    with pytest.raises(ConfigError, match="not supported yet"):
        read({**config, "architectures": ["OtherForCausalLM"]})


def test_gemma_3_limits_its_length_by_its_own_number_whatever_the_scaling() -> None:
    # Of gemma-3-27b-it's config.json; vLLM 0.32 prints a limit of 131,072.
    text = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21_504,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }

    assert read({"model_type": "gemma3", "text_config": text}).max_model_len == 131_072


def test_vllm_keeps_every_head_of_minicpm_3_and_sglang_its_latents() -> None:
    # 62 layers of 40 heads; keys and values of 64 + 32; latents of 256 + 32.
    model = read({"model_type": "minicpm3"})
    memory = MemoryInputs(available_kv_bytes=64 * GIB)

    def blocks(engine: EngineKind) -> tuple[int, int]:
        inputs = EngineInputs(engine=engine, block_size=16, max_model_len=32_768)
        capacity = make_plan(PlanInputs(model=model, memory=memory, engine=inputs)).capacity
        return capacity.block_bytes, capacity.num_blocks

    # vLLM 0.32 answers 4,510 blocks for its own class on this configuration.
    assert blocks(EngineKind.VLLM) == (62 * 16 * 40 * 96 * 2 * 2, 4510)
    assert blocks(EngineKind.SGLANG)[0] == 62 * 16 * 288 * 2


@pytest.mark.parametrize(
    ("engine", "longest"),
    [
        (EngineInputs(), 4096),
        (EngineInputs(version=(0, 16, 0)), 4096),
        (EngineInputs(version=(0, 11, 0)), 131_072),
        (EngineInputs(engine=EngineKind.SGLANG), 131_072),
        (EngineInputs(max_model_len=65_536), 65_536),
    ],
)
def test_vllm_keeps_long_rope_to_its_short_factors_where_no_length_is_typed(engine: EngineInputs, longest: int) -> None:
    # Of Phi-3-mini-128k's config.json; vLLM 0.32 answers 4,096 for it.
    model = read(
        {
            **INNER,
            "model_type": "phi3",
            "max_position_embeddings": 131_072,
            "original_max_position_embeddings": 4096,
            "rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]},
        }
    )
    memory = MemoryInputs(available_kv_bytes=64 * GIB)

    assert model.max_model_len == 131_072
    assert make_plan(PlanInputs(model=model, memory=memory, engine=engine)).capacity.max_model_len == longest


def test_a_length_that_releases_read_in_two_ways_is_said() -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
    model = read({**INNER, "rope_scaling": yarn})

    assert model.max_model_len == 65_536
    assert "yarn reaches 131,072 tokens" in model.notes[0]
    assert not read({**INNER, "max_position_embeddings": 131_072, "rope_scaling": yarn}).notes


def test_a_language_model_that_stands_alone_has_no_vision_part() -> None:
    alone = {**INNER, "model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"]}

    assert not read(alone).weights_unknown
    assert read({**alone, "architectures": ["Qwen3_5ForConditionalGeneration"]}).weights_unknown
    assert read({"model_type": "qwen3_5", "text_config": alone, "vision_config": {}}).weights_unknown


@pytest.mark.parametrize(("version", "state_blocks"), [((0, 27, 1), 2), ((0, 32, 0), 3)])
def test_mamba_2_states_have_a_checkpoint_block_from_0_32_on(version: tuple[int, int, int], state_blocks: int) -> None:
    # 32 layers of attention and a state of 128 heads of 8 x 256 each, one group of either.
    model = read(
        {
            "model_type": "falcon_h1",
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "vocab_size": 128_000,
            "max_position_embeddings": 8192,
            "mamba_d_ssm": 1024,
            "mamba_n_heads": 128,
            "mamba_d_head": 8,
            "mamba_n_groups": 1,
            "mamba_d_state": 256,
            "mamba_d_conv": 4,
        }
    )
    engine = EngineInputs(version=version, block_size=16, max_model_len=8192)
    memory = MemoryInputs(available_kv_bytes=64 * GIB)
    capacity = make_plan(PlanInputs(model=model, memory=memory, engine=engine)).capacity

    # vLLM 0.32 answers 3,640 blocks of 144 tokens, 60.67 such requests: 57 blocks of attention and 3 of states.
    assert (capacity.num_blocks, capacity.block_size) == (3640, 144)
    assert capacity.blocks_per_request == -(-8192 // 144) + state_blocks


@pytest.mark.parametrize(("engine", "blocks"), [(EngineKind.VLLM, 257), (EngineKind.PAGED, 256)])
def test_vllm_gives_a_window_that_drops_nothing_a_block_more(engine: EngineKind, blocks: int) -> None:
    # Of Phi-3-mini-128k's config.json: a window of 262,144 and 131,072 positions, 32 layers of 32 heads of 96.
    model = read(
        {
            **INNER,
            "model_type": "phi3",
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "head_dim": 96,
            "max_position_embeddings": 131_072,
            "sliding_window": 262_144,
        }
    )
    inputs = EngineInputs(engine=engine, block_size=16, max_model_len=4096)
    capacity = make_plan(
        PlanInputs(model=model, memory=MemoryInputs(available_kv_bytes=64 * GIB), engine=inputs)
    ).capacity

    # vLLM 0.32 answers 10,922 blocks and 42.498 requests.
    assert capacity.num_blocks == 10_922
    assert capacity.blocks_per_request == blocks
