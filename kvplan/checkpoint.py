"""Bytes of a checkpoint from its headers: safetensors files, or the index that lists them. No tensor is read."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from kvengine.errors import ConfigError
from kvplan.loading import load_json_object

_INDEX_NAMES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeights:
    """Weights as they lie on disk."""

    source: str
    """What was read: `3 safetensors headers`."""
    stored_bytes: int
    float32_bytes: int
    """Part of them in float32, which an engine that runs in 16 bits halves when it loads them."""

    def loaded_bytes(self, element_bytes: int) -> int:
        """Return their size in memory when float32 tensors become `element_bytes` wide."""
        return self.stored_bytes - self.float32_bytes + self.float32_bytes * element_bytes // 4


def read_stored_weights(folder: Path, *, float32: bool) -> StoredWeights | None:
    """Read the headers in a model folder; None when it holds no weights.

    Args:
        folder: A folder as `save_pretrained` writes it.
        float32: Whether the configuration says that the checkpoint is float32; an index does not tell.

    Raises:
        ConfigError: A header is damaged.
    """
    files = sorted(folder.glob("*.safetensors"))
    if files:
        sizes: Counter[str] = Counter()
        for path in files:
            sizes.update(_tensor_bytes(path))
        plural = "s" if len(files) > 1 else ""
        return StoredWeights(
            source=f"{len(files)} safetensors header{plural}", stored_bytes=sizes.total(), float32_bytes=sizes["F32"]
        )
    for name in _INDEX_NAMES:
        if (folder / name).is_file():
            total = _index_total(folder / name)
            return StoredWeights(source=name, stored_bytes=total, float32_bytes=total if float32 else 0)
    return None


def _index_total(path: Path) -> int:
    metadata = load_json_object(path, name=str(path)).get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, bool) or not isinstance(total, int | float) or not 1 <= total < 2**60:
        raise ConfigError(f"metadata.total_size: expected a number of bytes, got {total!r}", where=str(path))
    return int(total)


def _tensor_bytes(path: Path) -> Counter[str]:
    """Return the bytes of one safetensors file by element type.

    Layout: 8 bytes little-endian header length, then a JSON object: name to {dtype, shape, data_offsets}.
    """
    try:
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            if not 2 <= header_bytes <= min(_MAX_HEADER_BYTES, path.stat().st_size - 8):
                raise ConfigError("not a safetensors file: its header does not fit in it", where=str(path))
            header = json.loads(file.read(header_bytes))
        sizes: Counter[str] = Counter()
        for name, tensor in header.items():
            if name != "__metadata__":
                begin, end = tensor["data_offsets"]
                sizes[tensor["dtype"]] += _span(begin, end)
    except OSError as error:
        raise ConfigError(error.strerror or str(error), where=str(path)) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ConfigError("damaged safetensors header", where=str(path)) from None
    return sizes


def _span(begin: object, end: object) -> int:
    if not isinstance(begin, int) or not isinstance(end, int) or not 0 <= begin <= end:
        raise ValueError("offsets out of order")
    return end - begin
