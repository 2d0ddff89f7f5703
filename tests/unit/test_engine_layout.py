"""The groups and blocks that a live model gets, against what is worked out by hand."""

from typing import Any

import pytest

from kvengine.errors import ConfigError
from kvengine.kv_groups.kinds import FullAttention, LatentAttention, SlidingWindow
from kvengine.model_config.huggingface import config_from_mapping
from kvengine.spec import KVDtype
from kvplan.engine_layout import EngineLayout, decoder_layers, engine_layout, spec_layers
from kvplan.model_spec import load_model

GEMMA_3: dict[str, Any] = {
    "model_type": "gemma3_text",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "sliding_window": 9,
    "sliding_window_pattern": 3,
}
MISTRAL = {key: value for key, value in GEMMA_3.items() if key != "sliding_window_pattern"} | {"model_type": "mistral"}
DEEPSEEK: dict[str, Any] = {
    **{key: value for key, value in GEMMA_3.items() if not key.startswith("sliding") and key != "head_dim"},
    "model_type": "deepseek_v2",
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 6,
    "v_head_dim": 10,
    "moe_intermediate_size": 24,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
}


def layout_of(values: dict[str, Any], *, block_size: int = 4) -> EngineLayout:
    layers = decoder_layers(config_from_mapping(values, where="test"), KVDtype.BFLOAT16, block_size)
    return engine_layout(layers, KVDtype.BFLOAT16, where="test")


def test_sliding_and_full_layers_share_blocks_in_groups_of_equal_size() -> None:
    layout = layout_of(GEMMA_3)

    # s s f s s f s: five sliding layers beside two full ones, so groups of two; the sliding ones are dealt out in turn.
    assert layout.group_layers == ((0, 4), (1, 6), (3,), (2, 5))
    window = SlidingWindow(block_size=4, window=9)
    assert layout.groups == (window, window, window, FullAttention(block_size=4))
    # Two pages of 4 tokens x 2 heads x 8 x K and V x 2 bytes; the third group leaves half of each of its blocks unused.
    assert layout.spec.block_bytes == layout.layout.bytes_per_block == 2 * 4 * 2 * 8 * 2 * 2


def test_windows_in_every_layer_are_one_group() -> None:
    layout = layout_of(MISTRAL)

    assert layout.groups == (SlidingWindow(block_size=4, window=9),)
    assert layout.group_layers == ()
    assert layout.spec.block_bytes == 7 * 4 * 2 * 8 * 2 * 2


def test_allocators_that_know_no_groups_keep_what_lies_behind_windows() -> None:
    layers = decoder_layers(config_from_mapping(GEMMA_3, where="test"), KVDtype.BFLOAT16, 4)
    layout = engine_layout(layers, KVDtype.BFLOAT16, where="test", keeps_all=True)

    assert (layout.groups, layout.group_layers) == ((), ())
    assert layout.spec.block_bytes == 7 * 4 * 2 * 8 * 2 * 2


def test_latent_attention_keeps_one_row_of_rank_and_rotated_key() -> None:
    layout = layout_of(DEEPSEEK)

    assert layout.groups == (LatentAttention(block_size=4),)
    # 7 layers x 4 tokens x (16 + 6) x 2 bytes, and no values.
    assert layout.spec.block_bytes == 7 * 4 * 22 * 2


def test_layers_that_keep_every_token_need_no_groups() -> None:
    layout = layout_of({**MISTRAL, "sliding_window": None})
    assert (layout.groups, layout.group_layers, layout.spec.num_layers) == ((), (), 7)


@pytest.mark.parametrize("name", ["jamba-v0.1", "glm-5.2", "mamba-codestral-7b", "deepseek-v4-flash", "whisper-tiny"])
def test_layers_that_keep_something_else_have_no_live_pool(name: str) -> None:
    model = load_model(name)
    with pytest.raises(ConfigError, match="its layers do not all keep tokens, in rows of one size"):
        engine_layout(spec_layers(model, KVDtype.BFLOAT16, 16, tensor_parallel=1), KVDtype.BFLOAT16, where=name)


def test_a_planned_model_with_windows_can_be_simulated_in_its_groups() -> None:
    layers = spec_layers(load_model("gemma-3-1b"), KVDtype.BFLOAT16, 16, tensor_parallel=1)
    layout = engine_layout(layers, KVDtype.BFLOAT16, where="gemma-3-1b")

    # 26 layers, every sixth full: 4 full ones beside 22 sliding ones, which fill 6 groups of at most 4.
    assert sorted(map(len, layout.group_layers)) == [3, 3, 4, 4, 4, 4, 4]
    assert [group.name for group in layout.groups].count("sliding_window") == 6
    assert layout.spec.block_bytes == 4 * 16 * 1 * 256 * 2 * 2
