import struct
from pathlib import Path

import pytest

from kvengine.errors import ConfigError
from kvengine.gguf_file import GGUFTensor, read_gguf


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def a_gguf(*, version: int = 3, magic: bytes = b"GGUF", keys: bytes | None = None, num_keys: int = 4) -> bytes:
    """A file written by hand after the format's description: four keys, one float32 tensor of 2 x 3."""
    if keys is None:
        keys = (
            text("general.alignment")
            + struct.pack("<II", 4, 64)
            + text("name")
            + struct.pack("<I", 8)
            + text("tiny")
            + text("ids")
            + struct.pack("<IIQ3i", 9, 5, 3, 1, -2, 3)
            + text("words")
            + struct.pack("<IIQ", 9, 8, 2)
            + text("a")
            + text("ä")
        )
    tensor = text("w") + struct.pack("<IQQ", 2, 3, 2) + struct.pack("<IQ", 0, 128)
    return magic + struct.pack("<IQQ", version, 1, num_keys) + keys + tensor


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_and_tensor_places_are_read(version: int, tmp_path: Path) -> None:
    file = read_gguf(write(tmp_path, a_gguf(version=version)))

    assert file.metadata == {"general.alignment": 64, "name": "tiny", "ids": [1, -2, 3], "words": ["a", "ä"]}
    # By hand: 24 bytes of counts; keys 33 + 28 + 39 + 51; tensor 9 + 20 + 12: 216 bytes, padded to 256, plus 128.
    assert file.tensors == {"w": GGUFTensor(name="w", shape=(2, 3), type_id=0, offset=256 + 128)}


def test_every_cut_off_head_is_one_clear_error(tmp_path: Path) -> None:
    whole = a_gguf()
    for length in range(len(whole)):
        with pytest.raises(ConfigError) as caught:
            read_gguf(write(tmp_path, whole[:length]))
        assert "tiny.gguf" in caught.value.args[0]
        assert "\n" not in caught.value.args[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK\x03\x04" + bytes(64), r"not a GGUF file: it starts with b'PK\x03\x04'"),
        (a_gguf(version=1), "GGUF version 1 is not supported; 2 and 3 are"),
        (a_gguf(keys=2 * (text("k") + struct.pack("<II", 4, 1)), num_keys=2), "the key 'k' is there twice"),
        (a_gguf(keys=text("k") + struct.pack("<I", 77), num_keys=1), "a metadata value has the unknown type 77"),
        (
            a_gguf(keys=text("general.alignment") + struct.pack("<II", 4, 0), num_keys=1),
            "expected a whole number >= 1, got 0",
        ),
        # An array that claims 2**60 strings must not be believed.
        (a_gguf(keys=text("k") + struct.pack("<IIQ", 9, 8, 2**60), num_keys=1), "cut off inside its head"),
        (a_gguf(keys=text("k") + struct.pack("<IIQ", 9, 0, 2**60), num_keys=1), "cut off inside its head"),
        (a_gguf(keys=struct.pack("<Q", 2**63), num_keys=1), "cut off inside its head"),
    ],
)
def test_broken_files_are_refused_in_words(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_gguf(write(tmp_path, data))
    assert message in caught.value.args[0]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_gguf(tmp_path / "none.gguf")
