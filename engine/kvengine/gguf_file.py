"""Reading a GGUF file: its metadata, and where each tensor lies. No tensor is decoded here.

Layout (version 2 and 3, little endian): magic, version, two counts, the key/value pairs, the tensor table, padding to
`general.alignment`, the tensor data. Source: github.com/ggml-org/ggml, docs/gguf.md.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from kvengine.errors import ConfigError

GGUFValue = int | float | bool | str | list[int] | list[float] | list[bool] | list[str]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFTensor:
    """Where one tensor lies; `shape` is outermost first, as torch counts."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    """A `gguf.GGMLQuantizationType`."""
    offset: int
    """Bytes from the start of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFFile:
    """The head of a GGUF file."""

    path: Path
    metadata: dict[str, GGUFValue]
    tensors: dict[str, GGUFTensor]


def read_gguf(path: Path) -> GGUFFile:
    """Read the head of a GGUF file.

    Raises:
        ConfigError: The file is missing, not GGUF, of another version, or cut off inside the head.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Head(path, data).read()
    except FileNotFoundError:
        raise ConfigError("no such file", where=str(path)) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except ValueError as error:  # an empty file cannot be mapped; names and strings must be UTF-8
        raise ConfigError(f"not a readable GGUF file: {error}", where=str(path)) from None
    except struct.error:
        raise ConfigError("the GGUF file is cut off inside its head", where=str(path)) from None


class _Head:
    """A cursor over the mapped file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._offset = 0

    def read(self) -> GGUFFile:
        if self._data[:4] != _MAGIC:
            raise ConfigError(f"not a GGUF file: it starts with {self._data[:4]!r}", where=str(self._path))
        self._offset = 4
        version = int(self._scalar("I"))
        if version not in _VERSIONS:
            raise ConfigError(f"GGUF version {version} is not supported; 2 and 3 are", where=str(self._path))
        num_tensors, num_keys = int(self._scalar("Q")), int(self._scalar("Q"))
        metadata: dict[str, GGUFValue] = {}
        for _ in range(num_keys):
            key = self._string()
            if key in metadata:
                raise ConfigError(f"the key {key!r} is there twice", where=str(self._path))
            metadata[key] = self._value(int(self._scalar("I")))
        entries = [self._tensor_entry() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            where = f"{self._path}: general.alignment"
            raise ConfigError(f"expected a whole number >= 1, got {alignment!r}", where=where)
        start = -(-self._offset // alignment) * alignment
        tensors = {
            name: GGUFTensor(name=name, shape=shape, type_id=type_id, offset=start + offset)
            for name, shape, type_id, offset in entries
        }
        return GGUFFile(path=self._path, metadata=metadata, tensors=tensors)

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        num_dimensions = int(self._scalar("I"))
        if num_dimensions > _MAX_DIMENSIONS:
            raise ConfigError(f"tensor {name!r} has {num_dimensions} dimensions", where=str(self._path))
        shape = tuple(int(self._scalar("Q")) for _ in range(num_dimensions))[::-1]
        return name, shape, int(self._scalar("I")), int(self._scalar("Q"))

    def _value(self, type_id: int) -> GGUFValue:
        if type_id == _STRING:
            return self._string()
        if type_id != _ARRAY:
            return self._scalar(self._format(type_id))
        item_type, count = int(self._scalar("I")), int(self._scalar("Q"))
        if item_type == _STRING:
            return [self._string() for _ in range(count)]
        return list(self._unpack(f"{self._bounded(count)}{self._format(item_type)}"))

    def _format(self, type_id: int) -> str:
        if type_id not in _SCALARS:
            raise ConfigError(f"a metadata value has the unknown type {type_id}", where=str(self._path))
        return _SCALARS[type_id]

    def _scalar(self, fmt: str) -> int | float | bool:
        value: int | float | bool = self._unpack(fmt)[0]
        return value

    def _string(self) -> str:
        length = self._bounded(int(self._scalar("Q")))
        if self._offset + length > len(self._data):
            raise struct.error
        start = self._offset
        self._offset += length
        return str(self._data[start : self._offset], "utf-8")

    def _unpack(self, fmt: str) -> tuple[int, ...]:
        values = struct.unpack_from("<" + fmt, self._data, self._offset)
        self._offset += struct.calcsize("<" + fmt)
        return values

    def _bounded(self, count: int) -> int:
        """Refuse a count that no file of this size can hold, before memory is asked for."""
        if count > len(self._data):
            raise struct.error
        return count
