"""Qwen models as GGUF files, with the names that the `gguf` package gives their tensors, against transformers."""

from pathlib import Path
from typing import Any

import gguf
import pytest

pytest.importorskip("transformers", reason="needs transformers, the reference of these tests")

from kvengine.errors import ConfigError
from kvengine.spec import KVDtype
from kvengine.torch_runner import load_model
from tests.differential.model_families import FAMILIES
from tests.differential.test_model_families import MAX_ERROR, engine_config, largest_error

ARCHITECTURES = {"Qwen2": gguf.MODEL_ARCH.QWEN2, "Qwen3": gguf.MODEL_ARCH.QWEN3}


def write_gguf(reference: Any, architecture: gguf.MODEL_ARCH, path: Path) -> Path:
    """Write a model of transformers as llama.cpp's converter does: these families keep the order of all rows."""
    config, name = reference.config, gguf.MODEL_ARCH_NAMES[architecture]
    writer = gguf.GGUFWriter(path, name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(8)
    writer.add_value_length(8)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for key, tensor in reference.state_dict().items():
        stored = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert stored is not None, key
        writer.add_tensor(stored, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_logits_from_a_gguf_file_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    reference = FAMILIES[family].build()
    path = write_gguf(reference, ARCHITECTURES[family], tmp_path / "m.gguf")
    model = load_model(path, dtype=KVDtype.FLOAT32, device="cpu")

    config = engine_config(model, block_size=4, budget=16, num_blocks=200, caching=True)
    assert largest_error((model, reference), config) < MAX_ERROR


def test_a_file_that_lacks_a_bias_is_refused(tmp_path: Path) -> None:
    reference = FAMILIES["Qwen2"].build()
    reference.model.layers[1].self_attn.k_proj.bias = None
    path = write_gguf(reference, gguf.MODEL_ARCH.QWEN2, tmp_path / "m.gguf")

    with pytest.raises(ConfigError, match=r"'model\.layers\.1\.self_attn\.k_proj\.bias' is missing"):
        load_model(path, dtype=KVDtype.FLOAT32, device="cpu")
