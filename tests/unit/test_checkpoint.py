"""Bytes of a checkpoint from headers alone."""

import json
import os
from pathlib import Path

import pytest

from kvengine.errors import ConfigError
from kvplan.checkpoint import read_stored_weights


def write_safetensors(path: Path, tensors: dict[str, tuple[str, int]]) -> None:
    """A file with tensors of so many bytes, all zero, as the format lays them out."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + offset)


def write_index(folder: Path, *names: str) -> None:
    """An index that puts one tensor in each of these files."""
    index = {"metadata": {"total_size": 1}, "weight_map": {f"t{number}": name for number, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_headers_of_all_files_add_up(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model-00001-of-00002.safetensors", {"a": ("BF16", 100), "b": ("F8_E4M3", 50)})
    write_safetensors(tmp_path / "model-00002-of-00002.safetensors", {"c": ("F32", 40)})
    stored = read_stored_weights(tmp_path, float_width=2)

    assert stored is not None
    assert (stored.source, stored.stored_bytes) == ("2 safetensors headers", 190)
    # In 16 bits, the float32 tensor takes half: 100 + 50 + 20; in 32, the 16-bit one takes double: 200 + 50 + 40.
    assert stored.loaded_bytes(2) == 170
    assert stored.loaded_bytes(4) == 290


def test_an_index_is_enough(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 16060522496}}')
    stored = read_stored_weights(tmp_path, float_width=2)
    as_float32 = read_stored_weights(tmp_path, float_width=4)

    assert stored is not None
    assert stored.loaded_bytes(2) == 16_060_522_496
    assert stored.loaded_bytes(4) == 32_121_044_992
    assert as_float32 is not None
    assert as_float32.loaded_bytes(2) == 8_030_261_248


def test_a_quantised_total_is_not_converted_since_it_is_not_known_what_of_it_is_plain(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 5000}}')
    stored = read_stored_weights(tmp_path, float_width=None)

    assert stored is not None
    assert stored.loaded_bytes(4) == 5000


def test_a_second_copy_of_the_weights_beside_the_shards_is_not_counted(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model-00001-of-00002.safetensors", {"a": ("BF16", 100)})
    write_safetensors(tmp_path / "model-00002-of-00002.safetensors", {"b": ("BF16", 60)})
    write_safetensors(tmp_path / "consolidated.safetensors", {"layers.a": ("BF16", 160)})
    write_index(tmp_path, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    stored = read_stored_weights(tmp_path, float_width=2)

    assert stored is not None
    assert stored.stored_bytes == 160


def test_without_an_index_the_one_file_of_the_usual_name_counts(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"a": ("BF16", 160)})
    write_safetensors(tmp_path / "consolidated.safetensors", {"layers.a": ("BF16", 160)})
    stored = read_stored_weights(tmp_path, float_width=2)

    assert stored is not None
    assert stored.stored_bytes == 160


def test_a_shard_that_is_not_there_is_noticed(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model-00001-of-00002.safetensors", {"a": ("BF16", 100)})
    write_index(tmp_path, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")

    with pytest.raises(ConfigError) as refused:
        read_stored_weights(tmp_path, float_width=2)
    assert str(refused.value) == (
        f"{tmp_path / 'model.safetensors.index.json'}: "
        "the index names 'model-00002-of-00002.safetensors', which is not there"
    )


def test_a_file_that_was_cut_off_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": ("BF16", 100), "b": ("BF16", 60)})
    os.truncate(path, path.stat().st_size - 80)

    with pytest.raises(ConfigError) as refused:
        read_stored_weights(tmp_path, float_width=2)
    assert str(refused.value) == f"{path}: cut off: its header describes 160 bytes of tensors, and 80 are there"


def test_a_folder_without_weights_says_nothing(tmp_path: Path) -> None:
    assert read_stored_weights(tmp_path, float_width=2) is None


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
        read_stored_weights(tmp_path, float_width=2)


@pytest.mark.parametrize("total", ["-1", "true", '"many"', "1e300", "null"])
def test_a_senseless_total_is_refused(tmp_path: Path, total: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(f'{{"metadata": {{"total_size": {total}}}}}')

    with pytest.raises(ConfigError, match=r"metadata\.total_size: expected a number of bytes"):
        read_stored_weights(tmp_path, float_width=2)
