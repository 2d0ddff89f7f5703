"""Weights in safetensors files: one, or several with an index; 8-bit matrices are scaled block by block."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvengine.errors import ConfigError, DeviceError
from kvengine.model_files import safetensors_files
from kvengine.models.weights import missing_tensor
from kvengine.units import cdiv

_WIDE_TYPES = ("BF16", "F16", "F32")
_FP8 = "F8_E4M3"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class SafetensorsFolder:
    """One or several safetensors files, all of whose headers are read at the start.

    Args:
        folder: Where they are.
        fp8_block: Rows and columns that share a scale, where matrices are stored in 8 bits.
    """

    def __init__(self, folder: Path, *, fp8_block: tuple[int, int] | None = None) -> None:
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError:
            raise DeviceError("reading safetensors needs a package", hint="pip install safetensors") from None
        self._open: Any = safe_open
        self._error = SafetensorError
        self._folder = folder
        self._fp8_block = fp8_block
        self._file_of: dict[str, Any] = {}
        for path in _files_of(folder):
            handle = self._opened(path)
            self._file_of.update(dict.fromkeys(handle.keys(), handle))

    @property
    def where(self) -> str:
        """The folder."""
        return str(self._folder)

    @property
    def names(self) -> Collection[str]:
        """All tensors of all files."""
        return self._file_of.keys()

    def tensor(self, name: str, _shape: tuple[int, ...], /) -> Tensor:
        """Read one tensor in the type it is stored in; of 8 bits multiplied with its scales, in float32."""
        if name not in self._file_of:
            raise missing_tensor(name, self.where)
        stored = self._file_of[name].get_slice(name).get_dtype()
        if stored == _FP8:
            return self._scaled(name)
        if stored not in _WIDE_TYPES:
            known = ", ".join(_WIDE_TYPES)
            raise ConfigError(f"tensor {name!r} is stored as {stored}; {known} are read", where=self.where)
        tensor: Tensor = self._file_of[name].get_tensor(name)
        return tensor

    def _scaled(self, name: str) -> Tensor:
        """Multiply each block of a matrix of 8 bits with its scale."""
        scale_name = f"{name}_scale_inv"
        if self._fp8_block is None or scale_name not in self._file_of:
            message = f"tensor {name!r} is stored as {_FP8}, and its scales {scale_name!r} of blocks are missing"
            raise ConfigError(message, where=self.where)
        matrix: Tensor = self._file_of[name].get_tensor(name)
        scales: Tensor = self._file_of[scale_name].get_tensor(scale_name)
        blocks = tuple(cdiv(size, block) for size, block in zip(matrix.shape, self._fp8_block, strict=False))
        if matrix.dim() != 2 or tuple(scales.shape) != blocks:
            message = f"the scales {scale_name!r} have shape {list(scales.shape)}; the blocks are {list(blocks)}"
            raise ConfigError(message, where=self.where)
        rows, columns = self._fp8_block
        wide = scales.to(torch.float32).repeat_interleave(rows, 0)[: matrix.shape[0]]
        return matrix.to(torch.float32).mul_(wide.repeat_interleave(columns, 1)[:, : matrix.shape[1]])

    def _opened(self, path: Path) -> Any:
        try:
            return self._open(path, framework="pt")
        except self._error as error:
            raise ConfigError(f"broken or cut-off safetensors file: {error}", where=str(path)) from None
        except OSError as error:
            raise ConfigError(f"cannot be read: {error}", where=str(path)) from None


def _files_of(folder: Path) -> list[Path]:
    files = safetensors_files(folder)
    if files:
        return files
    pickles = sorted(file.name for pattern in _PICKLES for file in folder.glob(pattern))
    if pickles:
        message = f"the only weights are pickled ({pickles[0]}), which could run code and are never loaded"
        raise ConfigError(message, where=str(folder), hint="convert them to safetensors")
    raise ConfigError("the folder holds no *.safetensors", where=str(folder))
