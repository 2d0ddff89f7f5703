from dataclasses import replace

import pytest

from kvengine.errors import ConfigError
from kvengine.spec import KVDtype
from kvplan.checkpoint import StoredTensor, StoredWeights, weights_of
from kvplan.estimate import Amount, Evidence, estimated, sure
from kvplan.model_config import model_from_config
from kvplan.model_spec import ModelSpec
from kvplan.parameters import Geometry, Parallelism
from kvplan.tensor_shares import ShareRules, held_bytes
from kvplan.weights import rank_weights

GEOMETRY = Geometry(
    num_layers=4, num_attention_heads=16, num_kv_heads=2, head_dim=64, hidden_size=1024, vocab_size=1000,
    max_model_len=4096,
)  # fmt: skip


def tensor(name: str, *shape: int, dtype: str = "BF16", width: int = 2) -> StoredTensor:
    size = width
    for extent in shape:
        size *= extent
    return StoredTensor(name, dtype, shape, size)


def held(stored: StoredTensor, *, stage: int = 0, with_drafts: bool = False, **parallel: int | bool) -> int:
    rules = ShareRules(
        geometry=GEOMETRY,
        parallel=Parallelism(**parallel),  # type: ignore[arg-type]  # counts and one switch, by name
        stage=stage,
        with_drafts=with_drafts,
    )
    return held_bytes(stored, stored.size_bytes, rules)


@pytest.mark.parametrize(
    ("name", "shape", "ranks", "expected"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (1024, 1024), 4, 2 * 1024 * 256),
        # Two KV heads: each of four ranks holds one of them.
        ("model.layers.0.self_attn.k_proj.weight", (128, 1024), 2, 2 * 64 * 1024),
        ("model.layers.0.self_attn.k_proj.weight", (128, 1024), 4, 2 * 64 * 1024),
        ("model.layers.0.self_attn.v_proj.bias", (128,), 8, 2 * 64),
        ("model.layers.0.self_attn.o_proj.weight", (1024, 1024), 2, 1024 * 1024),
        # A bias after the sum over ranks is whole on each; norms, routers and latent down-projections are too.
        ("model.layers.0.self_attn.o_proj.bias", (1024,), 2, 2048),
        ("model.layers.0.input_layernorm.weight", (1024,), 4, 2048),
        ("model.layers.0.mlp.gate.weight", (64, 1024), 4, 2 * 64 * 1024),
        ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", (576, 1024), 4, 2 * 576 * 1024),
        ("model.layers.0.mlp.gate_proj.weight", (2048, 1024), 4, 2 * 512 * 1024),
        # 1,000 rows are padded to 1,024.
        ("model.embed_tokens.weight", (1000, 1024), 4, 2 * 256 * 1024),
        ("lm_head.weight", (1000, 1024), 1, 2 * 1024 * 1024),
        ("model.layers.0.self_attn.q_proj.weight_scale", (1,), 4, 2),
    ],
)
def test_a_rank_holds_its_part_of_a_tensor(name: str, shape: tuple[int, ...], ranks: int, expected: int) -> None:
    assert held(tensor(name, *shape), tensor=ranks) == expected


def test_experts_are_sliced_or_handed_out_whole_over_all_ranks() -> None:
    expert = tensor("model.layers.1.mlp.experts.7.up_proj.weight", 512, 1024)
    stacked = tensor("blk.1.ffn_up_exps.weight", 8, 512, 1024)

    assert held(expert, tensor=4) == expert.size_bytes // 4
    assert held(expert, tensor=2, data=4, experts=True) == expert.size_bytes // 8
    assert held(expert, tensor=2, data=4) == expert.size_bytes // 8
    assert held(stacked, tensor=4) == stacked.size_bytes // 4


def test_stages_hold_their_own_layers_and_the_ends_their_tables() -> None:
    early, late = (tensor(f"model.layers.{index}.mlp.up_proj.weight", 8, 8) for index in (1, 2))
    embedding, head, norm = (
        tensor(name, 1000, 8) for name in ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight")
    )

    first, last = ([held(one, stage=stage, pipeline=2) > 0 for one in (early, late, embedding, head, norm)]
                   for stage in (0, 1))  # fmt: skip
    assert first == [True, False, True, False, False]
    assert last == [False, True, False, True, True]


def test_draft_layers_are_loaded_only_to_speculate_and_on_the_last_stage() -> None:
    draft = tensor("model.layers.4.mlp.up_proj.weight", 8, 8)

    assert held(draft) == 0
    assert held(draft, with_drafts=True) == draft.size_bytes
    assert held(draft, with_drafts=True, pipeline=2, stage=0) == 0
    assert held(draft, with_drafts=True, pipeline=2, stage=1) == draft.size_bytes


def test_layers_of_a_tower_are_no_drafts() -> None:
    tower = tensor("model.vision_tower.blocks.30.attn.qkv.weight", 8, 8)

    assert held(tower) == tower.size_bytes
    assert held(tower, pipeline=2, stage=1) == 0


def a_model(weights: StoredWeights | None, **more: object) -> ModelSpec:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "vocab_size": 1024,
        **more,
    }
    return replace(model_from_config(config, name="m", source="m"), stored_weights=weights)


def test_floats_take_the_engines_type_and_quantised_tensors_and_scales_stay() -> None:
    stored = weights_of(
        [
            tensor("model.norm.weight", 1024, dtype="F32", width=4),
            tensor("model.layers.0.mlp.up_proj.weight", 512, 512, dtype="F8_E4M3", width=1),
            tensor("model.layers.0.mlp.up_proj.weight_scale_inv", 4, 4, dtype="F32", width=4),
        ],
        source="3 tensors",
    )

    amount = rank_weights(a_model(stored), Parallelism(), 0, dtype=KVDtype.BFLOAT16)
    assert amount.size_bytes == 2 * 1024 + 512 * 512 + 64
    assert amount.evidence is Evidence.EXACT
    wider = rank_weights(a_model(stored), Parallelism(), 0, dtype=KVDtype.FLOAT32)
    assert wider.size_bytes == 4 * 1024 + 512 * 512 + 64


def test_headers_and_shapes_agree_to_the_byte_on_a_plain_model() -> None:
    names = {
        "embed_tokens": (1024, 1024), "self_attn.q_proj": (1024, 1024), "self_attn.k_proj": (128, 1024),
        "self_attn.v_proj": (128, 1024), "self_attn.o_proj": (1024, 1024), "mlp.gate_proj": (2048, 1024),
        "mlp.up_proj": (2048, 1024), "mlp.down_proj": (1024, 2048), "input_layernorm": (1024,),
        "post_attention_layernorm": (1024,),
    }  # fmt: skip
    tensors = [
        tensor(f"model.layers.{layer}.{name}.weight", *shape)
        for layer in range(4)
        for name, shape in names.items()
        if name != "embed_tokens"
    ]
    tensors += [tensor("model.embed_tokens.weight", 1024, 1024), tensor("lm_head.weight", 1024, 1024)]
    tensors += [tensor("model.norm.weight", 1024)]
    from_headers, from_shape = a_model(weights_of(tensors, source="x")), a_model(None)

    for parallel, stage in (
        (Parallelism(), 0),
        (Parallelism(tensor=2), 0),
        (Parallelism(tensor=8), 0),
        (Parallelism(tensor=2, pipeline=2), 0),
        (Parallelism(tensor=4, pipeline=2), 1),
    ):
        one, other = (
            rank_weights(model, parallel, stage, dtype=KVDtype.BFLOAT16) for model in (from_headers, from_shape)
        )
        assert one.size_bytes == other.size_bytes


def test_weights_that_nobody_knows_are_asked_for() -> None:
    odd = a_model(None, quantization_config={"quant_method": "odd"})

    with pytest.raises(ConfigError, match="its weights are quantised"):
        rank_weights(odd, Parallelism(), 0, dtype=KVDtype.BFLOAT16)
    given = rank_weights(odd, Parallelism(), 0, dtype=KVDtype.BFLOAT16, given_bytes=5)
    assert (given.size_bytes, given.evidence) == (5, Evidence.GIVEN)


# a_model: 4 layers of 2 * 1024 * 1024 for queries and output, 2 * 128 * 1024 for keys and values, 3 * 2048 * 1024 and
# two norms of 1024; two tables of 1024 * 1024; a norm of 1024.
PARAMETERS = 4 * 8_652_800 + 2 * 1_048_576 + 1024


def test_a_known_shape_may_take_half_a_percent_more_and_no_less_than_its_vocabulary() -> None:
    def amount(model: ModelSpec) -> Amount:
        return rank_weights(model, Parallelism(), 0, dtype=KVDtype.BFLOAT16)

    # 73,418,752 bytes and a 200th of them.
    assert amount(a_model(None)) == estimated(73_418_752, 73_418_752, 73_785_845)
    # 1,000 entries are padded to 1,024: 24 rows of 2,048 bytes in both tables that may not be there.
    assert amount(a_model(None, vocab_size=1000)) == estimated(73_418_752 - 98_304, 73_418_752, 73_785_845)


def test_a_quantised_shape_is_known_to_a_20th() -> None:
    model = a_model(None, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    amount = rank_weights(model, Parallelism(), 0, dtype=KVDtype.BFLOAT16)

    assert amount.evidence is Evidence.ESTIMATED
    assert amount.size_bytes < PARAMETERS * 2
    assert amount.high_bytes - amount.size_bytes == amount.size_bytes // 20
    assert amount.size_bytes - amount.low_bytes == amount.size_bytes // 50


def test_a_total_is_shared_out_with_a_margin_for_what_is_not_split() -> None:
    total = StoredWeights(source="index", stored_bytes=PARAMETERS * 2, float_width=2)
    amount = rank_weights(a_model(total), Parallelism(tensor=2), 0, dtype=KVDtype.BFLOAT16)

    # The 9 norms of 1,024 are on both ranks: half of the rest and 9,216, in 2 bytes; at least a half of all, at most a
    # 50th of the total more.
    assert amount == estimated(36_709_376, 36_718_592, 36_718_592 + 1_468_375)
    assert rank_weights(a_model(total), Parallelism(), 0, dtype=KVDtype.BFLOAT16) == sure(73_418_752, Evidence.EXACT)
