"""Parameters counted by hand for the smallest models that have every kind of part."""

from typing import Any

import pytest

from kvplan.model_config import model_from_config
from kvplan.parameters import WeightShape

BASE = {
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 8,
    "head_dim": 2,
    "intermediate_size": 16,
    "vocab_size": 10,
    "max_position_embeddings": 32,
}


def weights(model_type: str, **keys: Any) -> WeightShape:
    shape = model_from_config({"model_type": model_type, **BASE, **keys}, name="x", source="x").weights
    assert shape is not None
    return shape


# Queries 8 * 8, keys and values 8 * 4 each, output 8 * 8; gated MLP 3 * 8 * 16; two norms of 8; last norm 8.
LLAMA_LAYER, TABLE, LAST_NORM = 64 + 32 + 32 + 64 + 384 + 16, 80, 8


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        (weights("llama"), LLAMA_LAYER + 2 * TABLE + LAST_NORM),
        (weights("llama", tie_word_embeddings=True), LLAMA_LAYER + TABLE + LAST_NORM),
        (weights("llama", num_hidden_layers=3), 3 * LLAMA_LAYER + 2 * TABLE + LAST_NORM),
        # Biases of queries, keys and values: 8 + 4 + 4.
        (weights("qwen2"), LLAMA_LAYER + 16 + 2 * TABLE + LAST_NORM),
        (weights("llama", attention_bias=True), LLAMA_LAYER + 16 + 8 + 2 * TABLE + LAST_NORM),
        # A norm of queries and one of keys, of the head's 2.
        (weights("qwen3"), LLAMA_LAYER + 4 + 2 * TABLE + LAST_NORM),
        # Norms over all channels: 8 of queries, 4 of keys.
        (weights("olmo2"), LLAMA_LAYER + 12 + 2 * TABLE + LAST_NORM),
        # Three experts in the place of one MLP, and a router of 8 * 3.
        (weights("mixtral", num_local_experts=3), LLAMA_LAYER + 2 * 384 + 24 + 2 * TABLE + LAST_NORM),
        # Two experts of width 4, a shared one of width 6 with its gate of 8, a router of 16, biases of 16.
        (
            weights("qwen2_moe", num_experts=2, moe_intermediate_size=4, shared_expert_intermediate_size=6),
            LLAMA_LAYER - 384 + 2 * 96 + 144 + 8 + 16 + 16 + 2 * TABLE + LAST_NORM,
        ),
        # The first of two layers is dense.
        (
            weights(
                "glm4_moe",
                num_hidden_layers=2,
                first_k_dense_replace=1,
                n_routed_experts=2,
                n_shared_experts=0,
                moe_intermediate_size=4,
            ),
            2 * LLAMA_LAYER - 384 + 2 * 96 + 16 + 2 * TABLE + LAST_NORM,
        ),
    ],
)
def test_a_model_is_counted_to_the_last_parameter(shape: WeightShape, parameters: int) -> None:
    assert shape.exact
    assert shape.parameters == parameters


def test_a_rank_holds_its_share_with_whole_norms_repeated_kv_heads_and_a_padded_vocabulary() -> None:
    shape = weights("llama")

    # Vocabulary 10 padded to 64, halved; queries 8 * 4, keys and values 8 * 2, output 4 * 8; MLP 192; norms 16 + 8.
    assert shape.rank_parameters(2) == 2 * 32 * 8 + 32 + 16 + 16 + 32 + 192 + 16 + 8
    # Four ranks: one query head each, and a KV head that two ranks share.
    assert shape.rank_parameters(4) == 2 * 16 * 8 + 16 + 16 + 16 + 16 + 96 + 16 + 8


def test_llama_8b_has_the_published_number_of_parameters() -> None:
    from kvplan.model_spec import load_model

    shape = load_model("llama-3.1-8b").weights
    assert shape is not None
    assert shape.parameters == 8_030_261_248
    # Its vocabulary is a multiple of 64 already.
    assert shape.rank_parameters(1) == shape.parameters
