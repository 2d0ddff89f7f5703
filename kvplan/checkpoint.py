"""Bytes of a checkpoint from its headers: safetensors files, or the index that lists them. No tensor is read."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from kvengine.errors import ConfigError
from kvengine.model_files import safetensors_files
from kvplan.loading import load_json_object

_INDEX_NAMES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format."""
_FLOAT_WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a checkpoint."""

    name: str
    dtype: str
    """As safetensors spells it: `BF16`, `F8_E4M3`, `U8`."""
    shape: tuple[int, ...]
    size_bytes: int

    def loaded_bytes(self, element_bytes: int) -> int:
        """Return its size in memory when plain floats become `element_bytes` wide; scales keep their type."""
        width = _FLOAT_WIDTHS.get(self.dtype)
        if width is None or "scale" in self.name or "zeros" in self.name:
            return self.size_bytes
        return self.size_bytes * element_bytes // width


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeights:
    """Weights as they lie on disk."""

    source: str
    """What was read: `3 safetensors headers`."""
    stored_bytes: int
    float_width: int | None = None
    """Bytes of an element, where only a total of plain floats is known; an engine converts them when it loads them."""
    tensors: tuple[StoredTensor, ...] = ()
    """Each tensor, where headers were read; nothing where only a total is known."""

    def loaded_bytes(self, element_bytes: int) -> int:
        """Return their size in memory when plain floats become `element_bytes` wide."""
        if self.tensors:
            return sum(tensor.loaded_bytes(element_bytes) for tensor in self.tensors)
        return self.stored_bytes if self.float_width is None else self.stored_bytes * element_bytes // self.float_width


def read_stored_weights(folder: Path, *, float_width: int | None, may_lack_files: bool = False) -> StoredWeights | None:
    """Read the headers in a model folder; None when it holds no weights.

    Args:
        folder: A folder as `save_pretrained` writes it.
        float_width: Bytes of an element as the configuration says, which an index does not; None where it is quantised.
        may_lack_files: Whether it is a cache: of a model some of whose files are there, the index alone is read.

    Raises:
        ConfigError: A header is damaged, a file that the index names is not there, or one is shorter than its header
            says.
    """
    if files := _weight_files(folder, may_lack_files=may_lack_files):
        tensors = [tensor for path in files for tensor in _read_header(path)]
        plural = "s" if len(files) > 1 else ""
        return weights_of(tensors, source=f"{len(files)} safetensors header{plural}")
    for name in _INDEX_NAMES:
        if (folder / name).is_file():
            return StoredWeights(source=name, stored_bytes=_index_total(folder / name), float_width=float_width)
    return None


def _weight_files(folder: Path, *, may_lack_files: bool) -> list[Path]:
    """Return the files whose headers tell; none where there are none, or a cache holds only some of them."""
    if not any(folder.glob("*.safetensors")):
        return []
    try:
        return safetensors_files(folder)
    except ConfigError:
        if may_lack_files:
            return []
        raise


def weights_of(tensors: list[StoredTensor], *, source: str) -> StoredWeights:
    """Add up tensors."""
    return StoredWeights(
        source=source,
        stored_bytes=sum(tensor.size_bytes for tensor in tensors),
        tensors=tuple(tensors),
    )


def tensors_of_header(header: Mapping[str, object], *, source: str) -> list[StoredTensor]:
    """Read the tensors of a safetensors header: name to {dtype, shape, data_offsets}.

    Raises:
        ConfigError: The header is damaged.
    """
    try:
        return list(_tensors(header))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError("damaged safetensors header", where=source) from None


def _index_total(path: Path) -> int:
    metadata = load_json_object(path, name=str(path)).get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, bool) or not isinstance(total, int | float) or not 1 <= total < 2**60:
        raise ConfigError(f"metadata.total_size: expected a number of bytes, got {total!r}", where=str(path))
    return int(total)


def _read_header(path: Path) -> list[StoredTensor]:
    """Read the header of one file: 8 bytes little-endian length, then a JSON object."""
    try:
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            if not 2 <= header_bytes <= min(_MAX_HEADER_BYTES, path.stat().st_size - 8):
                raise ConfigError("not a safetensors file: its header does not fit in it", where=str(path))
            header = json.loads(file.read(header_bytes))
            data_bytes = path.stat().st_size - 8 - header_bytes
    except OSError as error:
        raise ConfigError(error.strerror or str(error), where=str(path)) from None
    except (ValueError, RecursionError):
        raise ConfigError("damaged safetensors header", where=str(path)) from None
    tensors = tensors_of_header(header, source=str(path))
    _check_length(header, data_bytes, source=str(path))
    return tensors


def _check_length(header: Mapping[str, Any], data_bytes: int, *, source: str) -> None:
    """Refuse a file that ends before a tensor does, such as a download that was cut off."""
    described = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    if described > data_bytes:
        raise ConfigError(
            f"cut off: its header describes {described:,} bytes of tensors, and {data_bytes:,} are there", where=source
        )


def _tensors(header: Mapping[str, object]) -> Iterator[StoredTensor]:
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        if not isinstance(tensor, Mapping):
            raise ValueError("a tensor is described by an object")
        begin, end = tensor["data_offsets"]
        shape = tuple(int(size) for size in tensor["shape"]) if "shape" in tensor else ()
        if any(size < 0 for size in shape) or prod(shape) >= 2**60:
            raise ValueError("senseless shape")
        yield StoredTensor(name, str(tensor["dtype"]), shape, _span(begin, end))


def _span(begin: object, end: object) -> int:
    if not isinstance(begin, int) or not isinstance(end, int) or not 0 <= begin <= end:
        raise ValueError("offsets out of order")
    return end - begin
