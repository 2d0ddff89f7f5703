"""Bytes of a checkpoint from headers alone."""

import json
from pathlib import Path

import pytest

from kvengine.errors import ConfigError
from kvplan.checkpoint import read_stored_weights


def write_safetensors(path: Path, tensors: dict[str, tuple[str, int]]) -> None:
    """A file with tensors of so many bytes, as the format lays them out; the data itself is left out."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)


def test_headers_of_all_files_add_up(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model-00001-of-00002.safetensors", {"a": ("BF16", 100), "b": ("F8_E4M3", 50)})
    write_safetensors(tmp_path / "model-00002-of-00002.safetensors", {"c": ("F32", 40)})
    stored = read_stored_weights(tmp_path, float32=False)

    assert stored is not None
    assert (stored.source, stored.stored_bytes) == ("2 safetensors headers", 190)
    # Loaded in 16 bits, the float32 tensor takes half; kept in 32, all of it.
    assert stored.loaded_bytes(2) == 170
    assert stored.loaded_bytes(4) == 190


def test_an_index_is_enough(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 16060522496}}')
    stored = read_stored_weights(tmp_path, float32=False)
    as_float32 = read_stored_weights(tmp_path, float32=True)

    assert stored is not None
    assert stored.loaded_bytes(2) == 16_060_522_496
    assert as_float32 is not None
    assert as_float32.loaded_bytes(2) == 8_030_261_248


def test_a_folder_without_weights_says_nothing(tmp_path: Path) -> None:
    assert read_stored_weights(tmp_path, float32=False) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"abc",
        (2**40).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (4).to_bytes(8, "little") + b"nope",
        (12).to_bytes(8, "little") + b'{"a": {"b":1',
        (10).to_bytes(8, "little") + b'{"a": {}}\n',
    ],
)
def test_a_damaged_header_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)

    with pytest.raises(ConfigError, match=r"model\.safetensors: (damaged safetensors header|not a safetensors file)"):
        read_stored_weights(tmp_path, float32=False)


@pytest.mark.parametrize("total", ["-1", "true", '"many"', "1e300", "null"])
def test_a_senseless_total_is_refused(tmp_path: Path, total: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(f'{{"metadata": {{"total_size": {total}}}}}')

    with pytest.raises(ConfigError, match=r"metadata\.total_size: expected a number of bytes"):
        read_stored_weights(tmp_path, float32=False)
