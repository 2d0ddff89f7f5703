import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from kvengine.errors import CapacityError, ConfigError
from kvengine.model_config.huggingface import config_from_mapping
from kvengine.model_config.read import read_config
from kvengine.models.decoder import Decoder
from kvengine.models.random_weights import RandomWeights
from kvengine.models.weights import open_weights
from kvengine.spec import KVDtype
from kvengine.torch_runner import load_model, random_model
from kvplan.checkpoint import read_stored_weights
from tests.differential.tiny_llama import a_llama_config, random_llama_weights, save_llama


def a_folder(tmp_path: Path) -> Path:
    config = a_llama_config()
    return save_llama(tmp_path, config, random_llama_weights(config))


def load(path: Path) -> Decoder:
    return load_model(path, dtype=KVDtype.FLOAT32, device="cpu")


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_stored_types_are_handed_on_as_they_are(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    tensors = {
        "b": torch.tensor([1.5], dtype=torch.bfloat16),
        "h": torch.tensor([1.5], dtype=torch.float16),
        "f": torch.tensor([1.5]),
    }
    save_file(tensors, folder / "model.safetensors")

    source = open_weights(folder, read_config(folder))

    assert set(source.names) == {"b", "h", "f"}
    for name, tensor in tensors.items():
        assert source.tensor(name, (1,)).dtype == tensor.dtype
        assert source.tensor(name, (1,)).item() == 1.5


def test_a_type_that_cannot_be_computed_with_is_refused(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    weights = {name: torch.from_numpy(value) for name, value in random_llama_weights(a_llama_config()).items()}
    weights["model.norm.weight"] = torch.ones(24, dtype=torch.int8)
    save_file(weights, folder / "model.safetensors")

    assert refused(folder) == f"{folder}: tensor 'model.norm.weight' is stored as I8; BF16, F16, F32 are read"


def test_a_cut_off_safetensors_file_is_refused_at_every_length_tried(tmp_path: Path) -> None:
    file = a_folder(tmp_path) / "model.safetensors"
    whole = file.read_bytes()
    for length in (0, 4, 8, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        assert f"{file}: broken or cut-off safetensors file" in refused(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    config = a_llama_config()
    weights = random_llama_weights(config)
    del weights["model.layers.1.mlp.up_proj.weight"]

    assert refused(save_llama(tmp_path, config, weights)) == (
        f"{tmp_path}: the tensor 'model.layers.1.mlp.up_proj.weight' is missing"
    )


def test_a_tensor_of_another_shape_is_refused_with_both_shapes(tmp_path: Path) -> None:
    config = a_llama_config()
    weights = random_llama_weights(config)

    # The config says 2 KV heads of 8, the weights were made for 1.
    assert refused(save_llama(tmp_path, {**config, "num_attention_heads": 2, "num_key_value_heads": 2}, weights)) == (
        f"{tmp_path}: tensor 'model.layers.0.self_attn.q_proj.weight' has shape [24, 24]; the geometry says [16, 24]"
    )


def test_weights_that_the_configuration_has_no_place_for_are_refused(tmp_path: Path) -> None:
    config = a_llama_config()
    weights = random_llama_weights(config) | {"model.layers.0.self_attn.q_proj.bias": np.zeros(24, dtype=np.float32)}

    assert "q_proj.bias' has no place in this model" in refused(save_llama(tmp_path, config, weights))


def test_pickled_weights_are_never_loaded(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save({"model.norm.weight": torch.ones(24)}, folder / "pytorch_model.bin")

    assert refused(folder) == (
        f"{folder}: the only weights are pickled (pytorch_model.bin), which could run code and are never loaded"
    )


def test_a_folder_without_weights_says_so(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    (folder / "model.safetensors").unlink()
    assert refused(folder) == f"{folder}: the folder holds no *.safetensors"


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "expected a JSON object with a 'weight_map' of tensor to file"),
        ("[]", "expected a JSON object with a 'weight_map' of tensor to file"),
        ('{"weight_map": ["a"]}', "expected a JSON object with a 'weight_map' of tensor to file"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "the index names 'gone.safetensors', which is not there"),
        ('{"weight_map": {"a": "../x.safetensors"}}', "the index names a file outside the folder: '../x.safetensors'"),
    ],
)
def test_a_broken_index_is_refused(index: str, message: str, tmp_path: Path) -> None:
    file = a_folder(tmp_path) / "model.safetensors.index.json"
    file.write_text(index)
    assert refused(tmp_path) == f"{file}: {message}"


def write_gguf(path: Path, *, quantised: bool = False) -> dict[str, np.ndarray]:
    """Write the tiny model as llama.cpp's converter does, and give its weights under Hugging Face names.

    The converter reorders the rows of Q and K: within a head, row i of the first half comes to place 2i and row i of
    the second half to 2i + 1 (`permute` in convert_hf_to_gguf.py).
    """
    # Rows of 32: the smallest that block quantisation takes.
    config = a_llama_config(hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2)
    weights = random_llama_weights(config)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(50)
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for name, value in weights.items():
        stored = value
        for part, num_heads in (("q_proj", 4), ("k_proj", 2)):
            if part in name:
                order = [8 * head + 4 * half + i for head in range(num_heads) for i in range(4) for half in range(2)]
                stored = value[order]
        gguf_name = name.replace("model.layers.", "blk.")
        for hf_part, gguf_part in names.items():
            gguf_name = gguf_name.replace(hf_part, gguf_part)
        if quantised and stored.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(gguf_name, gguf.quants.quantize(stored, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name, stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def test_gguf_tensors_come_back_under_their_names_and_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    weights = write_gguf(path)

    source = open_weights(path, read_config(path))

    assert set(source.names) == set(weights)
    for name, value in weights.items():
        assert np.array_equal(source.tensor(name, value.shape).numpy(), value), name


def test_quantised_gguf_tensors_are_dequantised_to_float32(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    weights = write_gguf(path, quantised=True)

    source = open_weights(path, read_config(path))

    for name, value in weights.items():
        # Q8_0: 127 steps up to the largest of 32 values, so at most half a step of its 127th (and a 16-bit scale).
        bound = abs(value).max() / 127
        assert np.abs(source.tensor(name, value.shape).numpy() - value).max() <= bound, name


def test_a_cut_off_gguf_file_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    path.write_bytes(path.read_bytes()[:-40_000])
    assert "the file is cut off: tensor" in refused(path)


def test_rope_divisors_in_a_gguf_file_slow_the_rotation(tmp_path: Path) -> None:
    config = a_llama_config()
    folder = save_llama(tmp_path, config, random_llama_weights(config))
    divided = random_llama_weights(config) | {"rope_freqs.weight": np.array([1, 2, 4, 8], dtype=np.float32)}
    save_file({name: torch.from_numpy(value) for name, value in divided.items()}, folder / "model.safetensors")

    # theta 10000, head_dim 8: 1, 0.1, 0.01, 0.001.
    assert load(folder)._rotations._frequencies[0].tolist() == pytest.approx([1, 0.05, 0.0025, 0.000125])


def test_the_index_decides_which_files_are_read(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    names = list(random_llama_weights(a_llama_config()))
    index = {"weight_map": dict.fromkeys(names, "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "unrelated.safetensors").write_bytes(b"broken")

    assert load(folder).config.num_layers == 2


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ((1, 3), "the weights are incomplete: model-00002-of-00003.safetensors is not there"),
        ((2,), "the weights are incomplete: model-00001-of-00003.safetensors is not there, nor are 1 others"),
    ],
)
def test_shards_that_are_missing_without_an_index_are_noticed(
    there: tuple[int, ...], message: str, tmp_path: Path
) -> None:
    folder = a_folder(tmp_path)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    for number in there:
        (folder / f"model-{number:05}-of-00003.safetensors").write_bytes(whole)

    assert refused(folder) == f"{folder}: {message}"
    with pytest.raises(ConfigError, match="the weights are incomplete"):
        read_stored_weights(folder, float_width=2)


def fp8_folder(tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A model whose projections are stored in 8 bits with a scale for each block of 16 x 8, and their true values."""
    quantization = {"quant_method": "fp8", "weight_block_size": [16, 8], "activation_scheme": "dynamic"}
    config = a_llama_config(quantization_config=quantization)
    tensors, known = {}, {}
    for name, array in random_llama_weights(config).items():
        value = torch.from_numpy(array)
        if "_proj" not in name:
            tensors[name] = known[name] = value
            continue
        blocks = [-(-size // block) for size, block in zip(value.shape, (16, 8), strict=True)]
        scales = torch.rand(blocks) + 0.5
        stored, exact = torch.empty(value.shape, dtype=torch.float8_e4m3fn), torch.empty(value.shape)
        for row in range(value.shape[0]):
            for column in range(value.shape[1]):
                scale = scales[row // 16, column // 8]
                stored[row, column] = value[row, column] / scale
                exact[row, column] = stored[row, column].float() * scale
        tensors[name], tensors[f"{name}_scale_inv"], known[name] = stored, scales, exact
    folder = save_llama(tmp_path, config, {})
    save_file(tensors, folder / "model.safetensors")
    return folder, known


def test_matrices_of_8_bits_are_multiplied_with_the_scale_of_their_block(tmp_path: Path) -> None:
    folder, known = fp8_folder(tmp_path)

    source = open_weights(folder, read_config(folder))

    for name, value in known.items():
        assert torch.equal(source.tensor(name, value.shape), value), name
    load(folder)  # the scales are no weights that have no place


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("model.layers.0.mlp.up_proj.weight_scale_inv"), "its scales"),
        (
            lambda tensors: tensors.update({"model.layers.0.mlp.up_proj.weight_scale_inv": torch.ones(3, 1)}),
            r"have shape \[3, 1\]; the blocks are \[3, 3\]",
        ),
    ],
)
def test_scales_that_do_not_fit_are_refused(
    change: Callable[[dict[str, torch.Tensor]], object], message: str, tmp_path: Path
) -> None:
    folder, _ = fp8_folder(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")

    with pytest.raises(ConfigError, match=message):
        load(folder)


def test_a_configuration_of_sizes_beyond_memory_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    (folder / "config.json").write_text(json.dumps(a_llama_config(intermediate_size=2**39)))

    with pytest.raises(CapacityError, match=r"the weights take \d+\.\d+ TiB in float32, and .* are available on cpu"):
        load(folder)


def test_random_weights_depend_on_their_name_and_seed_alone() -> None:
    def made(name: str, *, seed: int = 0) -> torch.Tensor:
        source = RandomWeights(dtype=torch.bfloat16, device=torch.device("cpu"), seed=seed)
        source.tensor("another", (3, 3))
        return source.tensor(name, (64, 100))

    first = made("model.layers.0.mlp.up_proj.weight")

    assert first.dtype == torch.bfloat16
    assert torch.equal(first, made("model.layers.0.mlp.up_proj.weight"))
    assert not torch.equal(first, made("model.layers.0.mlp.gate_proj.weight"))
    assert not torch.equal(first, made("model.layers.0.mlp.up_proj.weight", seed=1))
    # 6,400 draws of variance 1 / 100.
    assert first.float().std().item() == pytest.approx(0.1, rel=0.05)


def test_random_models_need_no_files_and_are_the_same_each_time() -> None:
    config = config_from_mapping(a_llama_config(), where="test")
    batches = [random_model(config, dtype=KVDtype.FLOAT32, device="cpu")._embedding for _ in range(2)]
    assert torch.equal(*batches)
