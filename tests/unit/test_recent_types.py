"""Class defaults of rarer types: parameters as transformers 5.24 counts them on its own models, and KV by hand."""

import json

import pytest

from kvengine.errors import ConfigError
from kvplan.model_config import model_from_config
from kvplan.models.kv_figures import kv_figures

# Layers, KV heads and size of a head of plain attention; bytes of a latent row.
DEFAULTS = [
    ("apertus1p5_text", 8_091_086_912, 32 * 32 * 128 * 4),
    ("aria_text", 18_517_069_824, 32 * 32 * 128 * 4),
    ("axk1", 518_983_052_288, 61 * 1152),
    ("biogpt", 346_763_264, 24 * 16 * 64 * 4),
    ("cohere2_moe", 190_004_928_512, 40 * 64 * 128 * 4),
    ("diffllama", 1_204_885_504, 16 * 32 * 64 * 4),
    ("flex_olmo", 33_270_665_216, 32 * 32 * 128 * 4),
    # 4,096 over 96 heads is rounded down to 42.
    ("glm4_moe", 103_481_200_640, 46 * 8 * 42 * 4),
    ("granite_swa", 2_144_463_840, 24 * 4 * 128 * 4),
    ("granitemoe_swa", 37_039_117_312, 32 * 32 * 128 * 4),
    ("hy_v3", 295_033_528_320, 80 * 8 * 128 * 4),
    ("hyperclovax", 6_738_677_760, 32 * 32 * 128 * 4),
    ("jais2", 8_090_401_280, 32 * 26 * 128 * 4),
    ("laguna", 33_189_975_808, 40 * 8 * 128 * 4),
    ("mellum", 12_149_923_072, 28 * 4 * 128 * 4),
    ("nanochat", 256_573_440, 12 * 6 * 128 * 4),
    ("sarvam_mla", 106_031_763_456, 32 * 1152),
    ("sarvam_moe", 32_152_648_064, 19 * 4 * 64 * 4),
    ("solar_open", 102_651_793_408, 48 * 8 * 128 * 4),
    ("xglm", 564_463_616, 24 * 16 * 64 * 4),
    ("youtu", 1_961_560_064, 32 * 1152),
]


@pytest.mark.parametrize(("model_type", "parameters", "token_bytes"), DEFAULTS)
def test_a_type_alone_stands_for_its_class_defaults(model_type: str, parameters: int, token_bytes: int) -> None:
    model = model_from_config({"model_type": model_type}, name=model_type, source=model_type)

    assert model.weights is not None
    assert model.weights.parameters == parameters
    assert kv_figures(model.layers).naive_bytes_per_token == token_bytes


def test_cohere_counts_windows_anew_after_its_dense_layers() -> None:
    config = {"model_type": "cohere2_moe", "num_hidden_layers": 10, "first_k_dense_replace": 2}
    windows = kv_figures(model_from_config(config, name="m", source="m").layers)

    # Two full layers at the start, then S S S F S S S F.
    assert windows.bytes_per_token == 4 * 64 * 128 * 4


def test_a_type_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="not supported yet"):
        model_from_config(json.loads('{"model_type": "later_still"}'), name="m", source="m")
