"""Whole small models on the Triton kernels, against the same weights on the torch backend in float64.

Every kind of layer that the kernels take: chunks, decoding and both at once, beyond windows, in blocks of 4.
"""

import math
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from kvengine.attention.base import AttentionBackend
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.model_config.huggingface import config_from_mapping
from kvengine.scheduler import Scheduler
from kvengine.spec import KVDtype
from kvplan.engine_layout import decoder_layers, engine_layout
from tests.builders import a_request
from tests.differential.kernel_cases.case import Case

MAX_ERROR = {torch.float32: 2e-5, torch.float16: 3e-2}
"""Of logits that reach 4; a GPU computes products of float32 as torch does."""
PROMPTS = ([7], [10, 11, 12, 13, 14, 15, 16, 17, 18])
NUM_BLOCKS = 60


class Weights:
    """Seeded weights, the same in every type that float16 can be widened to; norms differ from place to place."""

    where = "seeded weights"
    names = ()

    def __init__(self, *, norm_offset: float) -> None:
        self._norm_offset = norm_offset

    def tensor(self, name: str, shape: tuple[int, ...], /) -> Tensor:
        """Make one tensor."""
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(crc32(name.encode())))
        if name.endswith("norm.weight"):
            return (1 - self._norm_offset + drawn.clamp(-2, 2) / 4).half().float()
        return (drawn / math.sqrt(shape[-1])).half().float()


def model_case(values: dict[str, Any], dtype: torch.dtype = torch.float32) -> Case:
    """Run two requests, one of which outgrows every window, and compare the logits of each step."""

    def run(device: str) -> None:
        from kvengine.attention.torch_backend import TorchBackend
        from kvengine.attention.triton_backend import TritonBackend
        from kvengine.batch import BatchBuilder
        from kvengine.models.cache_layout import model_attention
        from kvengine.models.decoder import Decoder

        place, config = torch.device(device), config_from_mapping({**SMALL, **values}, where="case")
        weights = Weights(norm_offset=config.norm_offset)
        known = Decoder(config, weights, dtype=torch.float64, device=place)
        ours = Decoder(config, weights, dtype=dtype, device=place)
        layout = engine_layout(decoder_layers(config, KVDtype.FLOAT32, 4), KVDtype.FLOAT32, where="case")
        limits = EngineConfig(
            kv_cache=layout.spec,
            groups=layout.groups,
            group_layers=layout.group_layers,
            num_blocks=NUM_BLOCKS,
            scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=6, max_model_len=64),
        )
        attention = model_attention(config, limits)
        pairs: list[tuple[Decoder, AttentionBackend]] = [
            (model, kind(limits.kv_cache, NUM_BLOCKS, model=attention, dtype=model.dtype, device=place))
            for model, kind in ((known, TorchBackend), (ours, TritonBackend))
        ]
        scheduler, builder = Scheduler(limits), BatchBuilder(limits, place)
        for index, prompt in enumerate(PROMPTS):
            scheduler.add_request(a_request(str(index), prompt=prompt, max_tokens=3))
        while scheduler.has_unfinished:
            output = scheduler.schedule()
            batch = builder.build(output)
            logits = []
            for model, backend in pairs:
                backend.copy_blocks(output.block_copies)
                backend.plan(batch)
                logits.append(model.forward(batch, backend))
            if len(logits[0]):
                assert logits[0].abs().max() > 1, "logits near 0 prove nothing"
                error = (logits[1].double() - logits[0]).abs().max().item()
                assert error <= MAX_ERROR[dtype], f"logits are off by {error:.2e}"
            scheduler.update(output, dict(zip(batch.sampled_requests, logits[0].argmax(-1).tolist(), strict=True)))

    return run


SMALL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 50,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
}
GEMMA = {"sliding_window": 6, "query_pre_attn_scalar": 11, "hidden_activation": "gelu_pytorch_tanh"}

CASES: dict[str, Case] = {
    "model: Llama": model_case({}),
    "model: Llama in 16 bits": model_case({}, torch.float16),
    "model: Qwen2, biases": model_case({"model_type": "qwen2"}),
    "model: Qwen3, norms of heads": model_case({"model_type": "qwen3"}),
    "model: Gemma 2, windows and soft caps": model_case(
        {**GEMMA, "model_type": "gemma2", "attn_logit_softcapping": 2.0, "final_logit_softcapping": 6.0}
    ),
    "model: Gemma 2 in 16 bits": model_case(
        {**GEMMA, "model_type": "gemma2", "attn_logit_softcapping": 2.0, "final_logit_softcapping": 6.0}, torch.float16
    ),
    "model: Gemma 3, windows in groups": model_case(
        {**GEMMA, "model_type": "gemma3_text", "num_hidden_layers": 3, "sliding_window_pattern": 2}
    ),
    "model: Qwen3-MoE": model_case(
        {
            "model_type": "qwen3_moe",
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
            "decoder_sparse_step": 1,
        }
    ),
}
