"""Where a model's tensors come from: safetensors in a folder, or a GGUF file, under the names of Hugging Face's Llama.

Nothing is ever unpickled: a folder with only `.bin` or `.pt` files is refused.
"""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from kvengine.errors import ConfigError, DeviceError
from kvengine.gguf_file import GGUFTensor, read_gguf
from kvengine.llama_config import LlamaConfig
from kvengine.model_files import ModelFormat, find_demo_model, model_format, safetensors_files

__all__ = ["ROPE_FREQS", "WeightSource", "find_demo_model", "open_weights"]

ROPE_FREQS = "rope_freqs.weight"
"""Divisors of the rotary frequencies; only a GGUF file states them, instead of the parameters of `llama3` scaling."""

_SAFETENSORS_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class WeightSource(Protocol):
    """Named tensors that are read one at a time."""

    @property
    def where(self) -> str:
        """The folder or file, for messages."""
        ...

    @property
    def names(self) -> Collection[str]:
        """What there is."""
        ...

    def tensor(self, name: str) -> Tensor:
        """Read one tensor in the type it is stored in; quantised ones come as float32.

        Raises:
            ConfigError: The tensor is not there, or cannot be read.
        """
        ...


def open_weights(path: Path, config: LlamaConfig) -> WeightSource:
    """Open the weights of a model folder or a GGUF file; tensors are read when asked for.

    Raises:
        ConfigError: There are none, or they are broken or of a kind that is not read here.
        DeviceError: The package that reads them is not installed.
    """
    if model_format(path) is ModelFormat.FOLDER:
        return _SafetensorsFolder(path)
    return _GGUFWeights(path, config)


def _missing(name: str, where: str) -> ConfigError:
    return ConfigError(f"the tensor {name!r} is missing", where=where)


class _SafetensorsFolder:
    """One or several safetensors files, all of whose headers are read at the start."""

    def __init__(self, folder: Path) -> None:
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError:
            raise DeviceError("reading safetensors needs a package", hint="pip install safetensors") from None
        self._open: Any = safe_open
        self._error = SafetensorError
        self._folder = folder
        self._file_of: dict[str, Any] = {}
        for path in _files_of(folder):
            handle = self._opened(path)
            self._file_of.update(dict.fromkeys(handle.keys(), handle))

    @property
    def where(self) -> str:
        return str(self._folder)

    @property
    def names(self) -> Collection[str]:
        return self._file_of.keys()

    def tensor(self, name: str) -> Tensor:
        if name not in self._file_of:
            raise _missing(name, self.where)
        dtype = self._file_of[name].get_slice(name).get_dtype()
        if dtype not in _SAFETENSORS_DTYPES:
            known = ", ".join(_SAFETENSORS_DTYPES)
            raise ConfigError(f"tensor {name!r} is stored as {dtype}; {known} are read", where=self.where)
        tensor: Tensor = self._file_of[name].get_tensor(name)
        return tensor

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


class _GGUFWeights:
    """The tensors of a GGUF file, dequantised by the `gguf` package."""

    def __init__(self, path: Path, config: LlamaConfig) -> None:
        try:
            import gguf
            from gguf import quants
        except ImportError:
            raise DeviceError("reading GGUF weights needs a package", hint="pip install gguf") from None
        self._gguf, self._quants = gguf, quants
        self._path = path
        self._config = config
        self._tensors = read_gguf(path).tensors
        self._data = np.memmap(path, mode="r", dtype=np.uint8)
        for tensor in self._tensors.values():
            self._check_extent(tensor)

    @property
    def where(self) -> str:
        return str(self._path)

    @property
    def names(self) -> Collection[str]:
        return {_hf_name(name) for name in self._tensors}

    def tensor(self, name: str) -> Tensor:
        stored = self._tensors.get(_gguf_name(name))
        if stored is None:
            raise _missing(name, self.where)
        raw = self._data[stored.offset : stored.offset + self._num_bytes(stored)]
        try:
            values = self._quants.dequantize(raw, self._gguf.GGMLQuantizationType(stored.type_id))
        except NotImplementedError as error:
            raise ConfigError(f"tensor {stored.name!r}: {error}", where=self.where) from None
        tensor = torch.from_numpy(np.array(values, dtype=np.float32)).reshape(stored.shape)
        return self._unpermuted(name, tensor)

    def _unpermuted(self, name: str, tensor: Tensor) -> Tensor:
        """Undo the row order that llama.cpp's converter gives Q and K: it interleaves the two halves of each head."""
        if name.endswith(".q_proj.weight"):
            num_heads = self._config.num_heads
        elif name.endswith(".k_proj.weight"):
            num_heads = self._config.num_kv_heads
        else:
            return tensor
        if tensor.dim() != 2 or tensor.shape[0] % (2 * num_heads):
            raise ConfigError(f"tensor {name!r} has shape {tuple(tensor.shape)}", where=self.where)
        rows, columns = tensor.shape
        return tensor.view(num_heads, rows // num_heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)

    def _num_bytes(self, tensor: GGUFTensor) -> int:
        block_elements, block_bytes = self._gguf.GGML_QUANT_SIZES[tensor.type_id]
        return int(np.prod(tensor.shape, dtype=object)) // int(block_elements) * int(block_bytes)

    def _check_extent(self, tensor: GGUFTensor) -> None:
        if tensor.type_id not in self._gguf.GGML_QUANT_SIZES:
            raise ConfigError(f"tensor {tensor.name!r} has the unknown type {tensor.type_id}", where=self.where)
        end = tensor.offset + self._num_bytes(tensor)
        if end > len(self._data):
            message = f"the file is cut off: tensor {tensor.name!r} ends at byte {end}, the file at {len(self._data)}"
            raise ConfigError(message, where=self.where)


_HF_TO_GGUF = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    ROPE_FREQS: ROPE_FREQS,
}
_HF_TO_GGUF_IN_LAYER = {
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
_GGUF_TO_HF = {value: key for key, value in _HF_TO_GGUF.items()}
_GGUF_TO_HF_IN_LAYER = {value: key for key, value in _HF_TO_GGUF_IN_LAYER.items()}


def _gguf_name(name: str) -> str:
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
    if match is None:
        return _HF_TO_GGUF.get(name, name)
    layer, part, kind = match.groups()
    return f"blk.{layer}.{_HF_TO_GGUF_IN_LAYER.get(part, part)}.{kind}"


def _hf_name(name: str) -> str:
    match = re.fullmatch(r"blk\.(\d+)\.(.+)\.(weight|bias)", name)
    if match is None:
        return _GGUF_TO_HF.get(name, name)
    layer, part, kind = match.groups()
    return f"model.layers.{layer}.{_GGUF_TO_HF_IN_LAYER.get(part, part)}.{kind}"
