"""A model of any size without its weights: random ones, from a fixed seed, made on the device."""

import math
from collections.abc import Collection

import torch
from torch import Tensor

from kvengine.llama import LlamaModel
from kvengine.llama_config import LlamaConfig, RopeConfig, RopeKind

LLAMA_3_1_8B = LlamaConfig(
    num_layers=32,
    hidden_size=4096,
    intermediate_size=14336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128256,
    max_model_len=131072,
    rms_norm_eps=1e-5,
    rope=RopeConfig(
        theta=500000.0,
        kind=RopeKind.LLAMA3,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_model_len=8192,
    ),
    tie_word_embeddings=False,
)
"""Geometry of Llama-3.1-8B, from its config.json."""


class RandomWeights:
    """Tensors of a Llama under their Hugging Face names; a matrix keeps the variance of what it multiplies."""

    where = "random weights"

    def __init__(self, config: LlamaConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        self._config = config
        self._dtype = dtype
        self._device = device
        self._generator = torch.Generator(device=device).manual_seed(0)

    @property
    def names(self) -> Collection[str]:
        """None of the optional tensors is there."""
        return ()

    def tensor(self, name: str) -> Tensor:
        """Make one tensor."""
        shape = self._shape(name)
        if len(shape) == 1:
            return torch.ones(shape, dtype=self._dtype, device=self._device)
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
        return tensor.normal_(std=1 / math.sqrt(shape[1]), generator=self._generator)

    def _shape(self, name: str) -> tuple[int, ...]:
        config = self._config
        hidden, inner, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        return {
            "embed_tokens": (vocab, hidden),
            "lm_head": (vocab, hidden),
            "q_proj": (q_size, hidden),
            "k_proj": (kv_size, hidden),
            "v_proj": (kv_size, hidden),
            "o_proj": (hidden, q_size),
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "down_proj": (hidden, inner),
        }.get(name.split(".")[-2], (hidden,))


def random_model(config: LlamaConfig, *, dtype: torch.dtype, device: torch.device) -> LlamaModel:
    """Build the model on the device."""
    source = RandomWeights(config, dtype=dtype, device=device)
    return LlamaModel(config, source, dtype=dtype, device=device)


def weight_bytes_read(config: LlamaConfig, dtype: torch.dtype) -> int:
    """Bytes of weights that one decode step reads: all but the rows of the embedding that no token is.

    Worked value: Llama-3.1-8B has 8,030,261,248 parameters, its embedding 525,336,576; in 16 bits 15,009,849,344.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer = hidden * (q_size + 2 * kv_size) + q_size * hidden + 3 * hidden * inner + 2 * hidden
    return (config.num_layers * layer + hidden + config.vocab_size * hidden) * dtype.itemsize
