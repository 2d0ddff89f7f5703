"""A model of any size without its weights: random ones, from a fixed seed, made on the device."""

import torch

from kvengine.model_config.decoder import DecoderConfig
from kvengine.model_config.huggingface import config_from_mapping
from kvengine.model_config.parameters import num_parameters

LLAMA_3_1_8B = config_from_mapping(
    {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    where="Llama-3.1-8B",
)
"""Llama-3.1-8B, from its config.json."""


def weight_bytes_read(config: DecoderConfig, dtype: torch.dtype) -> int:
    """Bytes of weights that one decode step reads: all but the rows of the embedding that no token is.

    Worked value: Llama-3.1-8B has 8,030,261,248 parameters, its embedding 525,336,576; in 16 bits 15,009,849,344.
    """
    embedding = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    return (num_parameters(config) - embedding) * dtype.itemsize
