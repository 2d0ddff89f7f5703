"""Small random models of every family, built and saved by transformers, and their logits as it computes them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 8.0,
    "beta_slow": 1.0,
}
LATENT: dict[str, Any] = {
    **{key: value for key, value in SMALL.items() if key != "head_dim"},
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 6,
    "v_head_dim": 10,
    "moe_intermediate_size": 24,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
}


@dataclass(frozen=True, slots=True)
class Family:
    """A configuration class and what is small or special about it."""

    config_class: str
    values: dict[str, Any]
    model_class: str = ""
    """Where it is not the one for language modelling that goes with the configuration."""

    def build(self) -> Any:
        """Draw a model's weights, the same every time."""
        torch.manual_seed(0)
        config = getattr(transformers, self.config_class)(**self.values)
        config._attn_implementation = "eager"
        if self.model_class:
            model = getattr(transformers, self.model_class)(config).eval()
        else:
            model = transformers.AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("norm.weight"):  # all alike at first, which would hide a norm in the wrong place
                    parameter.add_(torch.empty_like(parameter).uniform_(-0.5, 0.5))
                if name.endswith(".bias"):
                    parameter.normal_()
            for name, buffer in model.named_buffers():
                if name.endswith("e_score_correction_bias"):
                    buffer.uniform_(-0.2, 0.2)
        return model


FAMILIES: dict[str, Family] = {
    "Llama": Family("LlamaConfig", SMALL),
    "Llama, biases, tied head": Family("LlamaConfig", {**SMALL, "attention_bias": True, "tie_word_embeddings": True}),
    "Llama, rope linear": Family(
        "LlamaConfig", {**SMALL, "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}
    ),
    "Llama, rope llama3": Family(
        "LlamaConfig",
        {
            **SMALL,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "Llama, rope yarn": Family("LlamaConfig", {**SMALL, "rope_parameters": YARN}),
    "Mistral, window": Family("MistralConfig", {**SMALL, "sliding_window": 9}),
    "Qwen2": Family("Qwen2Config", SMALL),
    "Qwen2, windows above": Family(
        "Qwen2Config", {**SMALL, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
    ),
    "Qwen3": Family("Qwen3Config", SMALL),
    "Gemma 2": Family(
        "Gemma2Config",
        {
            **SMALL,
            "tie_word_embeddings": True,
            "sliding_window": 9,
            "query_pre_attn_scalar": 11,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 6.0,
        },
    ),
    "Gemma 3": Family(
        "Gemma3TextConfig",
        {
            **SMALL,
            "num_hidden_layers": 7,
            "tie_word_embeddings": True,
            "sliding_window": 9,
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 11,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    "Gemma 3 that sees": Family(
        "Gemma3Config",
        {
            "text_config": {
                **SMALL,
                "tie_word_embeddings": True,
                "sliding_window": 9,
                "sliding_window_pattern": 2,
                "query_pre_attn_scalar": 11,
            },
            "vision_config": {
                "hidden_size": 8,
                "intermediate_size": 8,
                "num_hidden_layers": 1,
                "num_attention_heads": 1,
                "image_size": 8,
                "patch_size": 4,
            },
            "mm_tokens_per_image": 4,
            "initializer_range": 0.3,
        },
        model_class="Gemma3ForConditionalGeneration",
    ),
    "Mixtral": Family("MixtralConfig", {**SMALL, "num_local_experts": 5, "num_experts_per_tok": 2}),
    "Qwen3-MoE": Family(
        "Qwen3MoeConfig",
        {
            **SMALL,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "Qwen3-MoE, weights as they are": Family(
        "Qwen3MoeConfig",
        {
            **SMALL,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "norm_topk_prob": False,
            "decoder_sparse_step": 2,
        },
    ),
    "DeepSeek-V2-Lite": Family(
        "DeepseekV2Config",
        {
            **LATENT,
            "q_lora_rank": None,
            "n_routed_experts": 8,
            "n_shared_experts": 2,
            "topk_method": "greedy",
            "routed_scaling_factor": 1.5,
            "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 1.2},
        },
    ),
    "DeepSeek-V2": Family(
        "DeepseekV2Config",
        {
            **LATENT,
            "q_lora_rank": 20,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.0,
        },
    ),
    "DeepSeek-V3": Family(
        "DeepseekV3Config",
        {
            **LATENT,
            "q_lora_rank": 20,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
}


def save(model: Any, folder: Path) -> Path:
    """Write configuration and safetensors as `save_pretrained` does."""
    model.save_pretrained(folder)
    return folder


def next_token_logits(model: Any, token_ids: list[int]) -> Tensor:
    """Logits after each position, computed at once and without a cache: [len(token_ids), vocab_size]."""
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([token_ids]), use_cache=False).logits[0]
        return logits
