"""How large each part of `python -m benchmarks.gpu` is: on a card, and in a dry run on the CPU."""

from dataclasses import dataclass, replace

import torch

from benchmarks.on_gpu.attention import LLAMA, Shape
from benchmarks.on_gpu.random_model import LLAMA_3_1_8B
from kvengine.model_config.decoder import DecoderConfig
from kvengine.model_config.huggingface import config_from_mapping
from kvengine.spec import KVDtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is measured, and for how long at most."""

    copy_bytes: int
    shards: int
    """Processes that the correctness cases are dealt to; on a card most of their time is the compiler's."""
    cases: int | None
    """Of each shard, the first so many; None for all."""
    heads: Shape
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    block_sizes: tuple[int, ...]
    chunks: tuple[int, ...]
    model: DecoderConfig
    dtype: KVDtype
    prompt_tokens: int
    output_tokens: int
    engine_batches: tuple[int, ...]
    pool_tokens: int
    pool_requests: int


CARD = Sizes(
    copy_bytes=2 * 2**30,
    shards=8,
    cases=None,
    heads=LLAMA,
    batches=(1, 4, 16, 64, 256),
    contexts=(128, 1024, 4096, 32768),
    block_sizes=(8, 16, 32, 64, 128, 256),
    chunks=(256, 2048, 8192),
    model=LLAMA_3_1_8B,
    dtype=KVDtype.BFLOAT16,
    prompt_tokens=128,
    output_tokens=64,
    engine_batches=(1, 16, 64, 256),
    # 48 requests of 192 tokens would take 9,216.
    pool_tokens=4608,
    pool_requests=48,
)
DRY = Sizes(
    copy_bytes=2**20,
    shards=2,
    cases=2,
    heads=replace(
        LLAMA,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        dtype=torch.float32,
        cache_dtype=torch.float32,
        distinct_bytes=1,
    ),
    batches=(1, 2),
    contexts=(8, 40),
    block_sizes=(8, 16, 256),
    chunks=(8,),
    model=config_from_mapping(
        {
            "model_type": "llama",
            "num_hidden_layers": 1,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "vocab_size": 40,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5,
        },
        where="dry run",
    ),
    dtype=KVDtype.FLOAT32,
    prompt_tokens=7,
    output_tokens=4,
    engine_batches=(1, 2),
    pool_tokens=24,
    pool_requests=3,
)
"""So small that the interpreter gets through; the pool holds the prompts but not the outputs."""
