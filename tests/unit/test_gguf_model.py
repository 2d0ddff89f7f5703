"""Models from the heads of GGUF files."""

import struct
from pathlib import Path
from typing import Any

import pytest

from kvengine.errors import ConfigError, DeviceError
from kvengine.spec import KVDtype
from kvplan.model_spec import load_model

_INTEGER, _STRING, _ARRAY = 4, 8, 9
GEOMETRY = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.context_length": 512,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.vocab_size": 100,
}
# Name, shape (innermost first, as the format has it), type.
TENSORS = (("token_embd.weight", (64, 100), 1), ("blk.0.attn_q.weight", (64, 64), 2), ("output_norm.weight", (64,), 0))


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def entry(key: str, value: Any) -> bytes:
    if isinstance(value, str):
        return text(key) + struct.pack("<I", _STRING) + text(value)
    if isinstance(value, list):
        return text(key) + struct.pack("<IIQ", _ARRAY, _INTEGER, len(value)) + struct.pack(f"<{len(value)}I", *value)
    return text(key) + struct.pack("<II", _INTEGER, value)


def gguf(path: Path, metadata: dict[str, Any], tensors: tuple[Any, ...] = TENSORS) -> Path:
    """A file with a head and no data."""
    body = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    body += b"".join(entry(key, value) for key, value in metadata.items())
    for name, shape, type_id in tensors:
        body += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type_id, 0)
    path.write_bytes(body)
    return path


def test_the_head_says_what_the_cache_and_the_weights_take(tmp_path: Path) -> None:
    model = load_model(str(gguf(tmp_path / "small.gguf", GEOMETRY)))

    assert model.name == "small"
    # 2 layers * 2 heads * (16 + 16) * 2 bytes
    assert model.kv_cache_spec(block_size=1, dtype=KVDtype.FLOAT16).token_bytes == 256
    assert model.max_model_len == 512
    assert model.stored_weights is not None
    # 6,400 in 2 bytes; 4,096 in blocks of 32 elements and 18 bytes; 64 in 4 bytes.
    assert model.stored_weights.stored_bytes == 12_800 + 128 * 18 + 256
    # Loaded in 16 bits, the last takes half.
    assert model.stored_weights.loaded_bytes(2) == 12_800 + 128 * 18 + 128


def test_the_vocabulary_is_as_long_as_the_list_of_tokens(tmp_path: Path) -> None:
    metadata = {**GEOMETRY, "tokenizer.ggml.tokens": [1] * 77}

    assert load_model(str(gguf(tmp_path / "a.gguf", metadata))).geometry.vocab_size == 77


def test_the_parts_of_a_split_model_count_together(tmp_path: Path) -> None:
    first = gguf(tmp_path / "m-00001-of-00002.gguf", {**GEOMETRY, "split.count": 2}, TENSORS[:1])
    gguf(tmp_path / "m-00002-of-00002.gguf", {"general.architecture": "llama"}, TENSORS[1:])

    model = load_model(str(first))
    assert model.stored_weights is not None
    assert model.stored_weights.stored_bytes == 12_800 + 128 * 18 + 256


def test_a_file_that_ends_before_its_tensors_is_planned_with_a_note(tmp_path: Path) -> None:
    path = gguf(tmp_path / "small.gguf", GEOMETRY, TENSORS[:1])
    # The head, filled up to the next 32 bytes, then 64 x 100 elements of 2 bytes.
    whole = -(-path.stat().st_size // 32) * 32 + 12_800
    note = f"small.gguf is cut off: by its head it has {whole:,} bytes, and {whole - 1:,} are there"

    with path.open("r+b") as file:
        file.truncate(whole - 1)
    assert load_model(str(path)).notes[-1:] == (note,)
    with path.open("r+b") as file:
        file.truncate(whole)
    assert note[:10] not in "".join(load_model(str(path)).notes)


@pytest.mark.parametrize(
    ("metadata", "tensors", "message"),
    [
        ({"general.architecture": "clip"}, TENSORS, "GGUF architecture 'clip' is not supported yet"),
        ({}, TENSORS, "GGUF architecture None is not supported yet"),
        (GEOMETRY, (("a", (64,), 99),), "tensor 'a' has the unknown type 99"),
        (GEOMETRY, (("a", (65,), 2),), "tensor 'a' is not made of whole blocks of Q4_0"),
        (
            {**GEOMETRY, "llama.attention.head_count_kv": [1, 2]},
            TENSORS,
            "num_key_value_heads: expected a whole number",
        ),
    ],
)
def test_what_is_not_understood_is_named(
    tmp_path: Path, metadata: dict[str, Any], tensors: tuple[Any, ...], message: str
) -> None:
    path = gguf(tmp_path / "small.gguf", metadata, tensors)

    with pytest.raises(ConfigError) as caught:
        load_model(str(path))
    assert message in str(caught.value)


def test_the_demo_model_is_read_without_its_library() -> None:
    from kvengine.model_files import find_demo_model

    try:
        path = find_demo_model()
    except DeviceError as missing:
        pytest.skip(f"needs the demo model: {missing.message}")
    model = load_model(str(path))

    # SmolLM2-135M: 30 layers, 3 KV heads of 64, in 16 bits.
    assert model.kv_cache_spec(block_size=1, dtype=KVDtype.FLOAT16).token_bytes == 30 * 3 * 128 * 2
    assert model.stored_weights is not None
    # The data follow the head, which takes up the rest of the file's 98,362,432 bytes.
    assert 0.9 * path.stat().st_size < model.stored_weights.stored_bytes < path.stat().st_size
