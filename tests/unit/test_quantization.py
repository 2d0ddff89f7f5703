"""Which weights a quantised checkpoint leaves in 16 bits."""

import pytest

from kvplan.config_reader import ConfigReader
from kvplan.parameters import Role
from kvplan.quantization import read_quantization


def quantised_roles(method: str, **said: object) -> set[Role]:
    config = {"quantization_config": {"quant_method": method, **said}}
    quantization = read_quantization(ConfigReader(config, "a test"))
    assert quantization is not None
    return set(quantization.roles)


EVERYTHING = {Role.ATTENTION, Role.STATE, Role.MLP, Role.SHARED_EXPERT, Role.EXPERT}


def test_usual_forms_leave_out_what_their_recipes_do() -> None:
    assert quantised_roles("fp8") == EVERYTHING
    assert quantised_roles("mxfp4") == {Role.EXPERT}
    assert quantised_roles("fbgemm_fp8") == {Role.MLP, Role.SHARED_EXPERT, Role.EXPERT}


def test_experts_of_fewer_bits_than_the_rest_count_with_theirs() -> None:
    config = {"quantization_config": {"quant_method": "fp8"}, "expert_dtype": "fp4"}
    quantization = read_quantization(ConfigReader(config, "a test"))
    assert quantization is not None

    # 4 bits and an 8-bit scale for every 32 of them; 8 bits; 16 bits.
    sizes = [quantization.size_bytes(role, 320, plain_bytes=2) for role in (Role.EXPERT, Role.ATTENTION, Role.TABLE)]
    assert sizes == [170, 320, 640]


@pytest.mark.parametrize(
    ("patterns", "left_out"),
    [
        # ModelOpt lists every layer, below the language model of a multimodal one.
        ([f"model.language_model.layers.{layer}.self_attn*" for layer in range(60)], {Role.ATTENTION}),
        # Three of four layers keep a state; those are all there are of that kind.
        ([f"model.language_model.layers.{layer}.linear_attn*" for layer in range(48) if layer % 4 != 3], {Role.STATE}),
        ([f"model.layers.{layer}.self_attn.o_proj" for layer in range(78)], {Role.ATTENTION}),
        ([f"model.layers.{layer}.mlp.shared_expert*" for layer in range(8)], {Role.SHARED_EXPERT}),
        # The first and the last layer alone.
        (["model.layers.0.mlp.down_proj", "model.layers.125.mlp.down_proj", "model.layers.0.self_attn.o_proj"], set()),
        # Routers and norms are no matrices that count.
        ([f"model.layers.{layer}.mlp.gate" for layer in range(48)], set()),
        (["lm_head"], set()),
    ],
)
def test_exceptions_that_are_listed_layer_by_layer_count(patterns: list[str], left_out: set[Role]) -> None:
    assert quantised_roles("modelopt", ignore=patterns) == EVERYTHING - left_out


def test_a_mixture_of_formats_counts_each_role_with_the_one_most_of_its_modules_have() -> None:
    # In the form of NVIDIA's mixed checkpoints of MiniMax-M3 and Nemotron-3.5.
    layers = {
        **{
            f"model.layers.{layer}.block_sparse_moe.experts.{expert}.w1": {"quant_algo": "NVFP4", "group_size": 16}
            for layer in range(4)
            for expert in range(8)
        },
        **{f"model.layers.{layer}.self_attn.q_proj": {"quant_algo": "MXFP8"} for layer in range(4)},
        "model.layers.0.self_attn.o_proj": {"quant_algo": "NVFP4"},
        "backbone.layers.2.mixer.in_proj": {"quant_algo": "FP8"},
        "backbone.layers.3.mixer.q_proj": {"quant_algo": "MXFP8"},
        "lm_head": {"quant_algo": "NVFP4"},
    }
    said = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    quantization = read_quantization(ConfigReader({"quantization_config": said}, "a test"))
    assert quantization is not None

    # Of 1,280 parameters: 4 bits and a scale for 16; 8 bits and a scale for 32; 8 bits; 16 bits for what is not named.
    roles = (Role.EXPERT, Role.ATTENTION, Role.STATE, Role.MLP)
    sizes = [quantization.size_bytes(role, 1280, plain_bytes=2) for role in roles]
    assert sizes == [640 + 80, 1280 + 40, 1280, 2560]


@pytest.mark.parametrize("layers", [{}, {"model.layers.0.mlp.up_proj": {"quant_algo": "LATER_2BIT"}}, {"a": 3}])
def test_a_mixture_that_is_not_understood_has_no_size(layers: dict[str, object]) -> None:
    said = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    quantization = read_quantization(ConfigReader({"quantization_config": said}, "a test"))

    assert quantization is not None
    assert quantization.bits is None
