"""Weights in a GGUF file, under their Hugging Face names."""

import re
from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kvengine.errors import ConfigError, DeviceError
from kvengine.gguf_file import GGUFTensor, read_gguf
from kvengine.model_config.decoder import DecoderConfig, GroupedAttention
from kvengine.models.weights import ROPE_FREQS, missing_tensor

_PERMUTING = ("llama",)
"""Architectures whose query and key rows llama.cpp's converter reorders."""


class GGUFWeights:
    """The tensors of a GGUF file, dequantised by the `gguf` package.

    Args:
        path: The file.
        config: Of its model.
    """

    def __init__(self, path: Path, config: DecoderConfig) -> None:
        try:
            import gguf
            from gguf import quants
        except ImportError:
            raise DeviceError("reading GGUF weights needs a package", hint="pip install gguf") from None
        self._gguf, self._quants = gguf, quants
        self._path = path
        file = read_gguf(path)
        self._tensors = file.tensors
        attention = config.layers[0].attention
        self._permuted_heads: dict[str, int] = {}
        if file.metadata.get("general.architecture") in _PERMUTING and isinstance(attention, GroupedAttention):
            self._permuted_heads = {"q_proj": attention.num_heads, "k_proj": attention.num_kv_heads}
        self._data = np.memmap(path, mode="r", dtype=np.uint8)
        for tensor in self._tensors.values():
            self._check_extent(tensor)

    @property
    def where(self) -> str:
        """The file."""
        return str(self._path)

    @property
    def names(self) -> Collection[str]:
        """All tensors of the file."""
        return {_hf_name(name) for name in self._tensors}

    def tensor(self, name: str, _shape: tuple[int, ...], /) -> Tensor:
        """Read one tensor, as float32."""
        stored = self._tensors.get(_gguf_name(name))
        if stored is None:
            raise missing_tensor(name, self.where)
        raw = self._data[stored.offset : stored.offset + self._num_bytes(stored)]
        try:
            values = self._quants.dequantize(raw, self._gguf.GGMLQuantizationType(stored.type_id))
        except NotImplementedError as error:
            raise ConfigError(f"tensor {stored.name!r}: {error}", where=self.where) from None
        tensor = torch.from_numpy(np.array(values, dtype=np.float32)).reshape(stored.shape)
        return self._unpermuted(name, tensor)

    def _unpermuted(self, name: str, tensor: Tensor) -> Tensor:
        """Undo the row order that llama.cpp's converter gives Q and K: it interleaves the two halves of each head."""
        num_heads = self._permuted_heads.get(name.split(".")[-2])
        if num_heads is None:
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
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
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
