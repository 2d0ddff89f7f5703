"""Models by their Hub id, from what is cached of them: no network is asked."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvengine.errors import DeviceError
from kvengine.spec import KVDtype
from kvplan.model_spec import load_model

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 64,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a Hub that cannot be reached."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def store(cache: Path, files: dict[str, Any], *, commit: str = "a" * 40) -> None:
    """Lay files out as the library keeps them."""
    repository = cache / "models--acme--small"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    for name, content in files.items():
        (snapshot / name).write_text(json.dumps(content))


def test_a_cached_model_is_read_without_the_hub(cache: Path) -> None:
    store(cache, {"config.json": LLAMA, "model.safetensors.index.json": {"metadata": {"total_size": 12_345}}})
    model = load_model("acme/small")

    assert model.name == "small"
    # 2 layers * 2 heads * (16 + 16) * 2 bytes
    assert model.kv_cache_spec(block_size=1, dtype=KVDtype.FLOAT16).token_bytes == 256
    assert model.stored_weights is not None
    assert model.stored_weights.stored_bytes == 12_345


def test_of_a_model_whose_files_are_cached_in_part_the_index_tells_the_size(cache: Path) -> None:
    index = {"metadata": {"total_size": 12_345}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    store(cache, {"config.json": LLAMA, "model.safetensors.index.json": index, "model-1.safetensors": {}})
    stored = load_model("acme/small").stored_weights

    assert stored is not None
    assert (stored.source, stored.stored_bytes) == ("model.safetensors.index.json", 12_345)


def test_a_stated_kv_type_beside_the_configuration_counts(cache: Path) -> None:
    outside = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    store(cache, {"config.json": LLAMA, "hf_quant_config.json": outside})

    assert load_model("acme/small").kv_dtype(None) is KVDtype.FP8


@pytest.mark.parametrize("reference", ["acme/small", "acme/small@main"])
def test_without_the_hub_and_a_cache_there_is_no_model(cache: Path, reference: str) -> None:
    with pytest.raises(DeviceError, match="acme/small: the Hugging Face Hub cannot be reached") as caught:
        load_model(reference)
    assert caught.value.exit_code == 3
