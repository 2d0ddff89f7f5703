"""How each model type spells its geometry in `config.json`, and what its class assumes where a key is missing.

Source of spellings and defaults: the configuration classes of transformers 5.24, or of the model's own repository where
transformers has none (baichuan, chatglm, internlm2, qwen, xverse).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from types import MappingProxyType

from kvplan.config_reader import ConfigReader
from kvplan.parameters import BIAS, GATED_MLP, NO_BIAS, Bias, QKNorm, WeightTraits


class Window(Enum):
    """When the key `sliding_window` limits attention."""

    IF_SET = auto()
    """Whenever it has a value."""
    IF_FLAGGED = auto()
    """Only with `use_sliding_window: true`, from layer `max_window_layers` on."""


KVHeadsRule = Callable[[ConfigReader, int], int]
"""KV heads from the configuration and the number of attention heads."""


def key_value_heads(reader: ConfigReader, num_heads: int) -> int:
    """Read the count under its usual names; without one, every attention head has its own K and V."""
    for key in ("num_key_value_heads", "num_kv_heads", "n_head_kv"):
        if reader.has(key) or reader.has_default(key):
            return reader.count(key)
    return num_heads


def falcon_kv_heads(reader: ConfigReader, num_heads: int) -> int:
    """The new architecture obeys the count; the old one with multi_query has one head, whatever the count says (71)."""
    is_new, is_multi_query = (
        reader.flag("new_decoder_architecture", default=False),
        reader.flag("multi_query", default=True),
    )
    if is_multi_query and not is_new:
        return 1
    return key_value_heads(reader, num_heads)


def bigcode_kv_heads(reader: ConfigReader, num_heads: int) -> int:
    """One head with multi_query, else one for each attention head."""
    return 1 if reader.flag("multi_query", default=True) else num_heads


def chatglm_kv_heads(reader: ConfigReader, num_heads: int) -> int:
    """`multi_query_group_num` heads, if multi_query_attention is on."""
    return reader.count("multi_query_group_num") if reader.flag("multi_query_attention", default=False) else num_heads


def attn_config_kv_heads(reader: ConfigReader, num_heads: int) -> int:
    """MPT and DBRX keep the count in a nested object."""
    attention = reader.nested("attn_config")
    if attention.text("attn_type") == "multiquery_attention":
        return 1
    return attention.optional_count("kv_n_heads") or num_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model type in which every layer attends to every token. The spellings are Llama's unless it says otherwise."""

    defaults: Mapping[str, int] = field(default_factory=dict)
    """Class defaults by key; a key without one must be there."""
    layers: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    hidden: str = "hidden_size"
    vocab: str = "vocab_size"
    head_dim: str = "head_dim"
    kv_heads: KVHeadsRule = key_value_heads
    window: Window = Window.IF_SET
    traits: WeightTraits | None = GATED_MLP
    """What the weights are made of; None where that is not known here."""
    towers: bool = False
    """It comes with a vision or audio part, whose weights are not counted here."""


def _defaults(
    layers: int, heads: int, hidden: int, intermediate: int, vocab: int, max_len: int, **others: int
) -> Mapping[str, int]:
    """Name the class defaults of a type with Llama's spellings."""
    return MappingProxyType(
        {
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "vocab_size": vocab,
            "max_position_embeddings": max_len,
            **others,
        }
    )


def _gpt_defaults(layers: int, heads: int, hidden: int, vocab: int, max_len: int) -> Mapping[str, int]:
    """Name the class defaults of a type with GPT-2's spellings."""
    return {"n_layer": layers, "n_head": heads, "n_embd": hidden, "vocab_size": vocab, "n_positions": max_len}


_ATTENTION_BIAS = Bias(key="attention_bias")
_LLAMA_TRAITS = WeightTraits(qkv_bias=_ATTENTION_BIAS, output_bias=_ATTENTION_BIAS, mlp_bias=Bias(key="mlp_bias"))
_PLAIN_LAYER_NORM = WeightTraits(mlp_matrices=2, norm_bias=True)
_GPT2_TRAITS = replace(
    _PLAIN_LAYER_NORM,
    intermediate="n_inner",
    intermediate_per_hidden=4,
    qkv_bias=BIAS,
    output_bias=BIAS,
    mlp_bias=BIAS,
    tied=True,
    extra_positions=0,
)
_QWEN2_TRAITS = WeightTraits(qkv_bias=BIAS)
_QWEN3_TRAITS = replace(_LLAMA_TRAITS, qk_norm=QKNorm.PER_HEAD, mlp_bias=NO_BIAS)
_GPT_SPELLINGS = Family(layers="n_layer", heads="n_head", hidden="n_embd")

_LLAMA = Family(defaults=_defaults(32, 32, 4096, 11008, 32000, 2048), traits=_LLAMA_TRAITS)
_MISTRAL = Family(
    defaults=_defaults(32, 32, 4096, 14336, 32000, 131072, num_key_value_heads=8, sliding_window=4096),
)
_QWEN2 = Family(
    defaults=_defaults(32, 32, 4096, 22016, 151936, 32768, num_key_value_heads=32),
    window=Window.IF_FLAGGED,
    traits=_QWEN2_TRAITS,
)
_QWEN3 = replace(_QWEN2, defaults={**_QWEN2.defaults, "head_dim": 128}, traits=_QWEN3_TRAITS)
_QWEN2_VL = replace(_QWEN2, defaults=_defaults(80, 64, 8192, 29568, 152064, 32768, num_key_value_heads=8), towers=True)
_QWEN3_MOE = replace(
    _QWEN3,
    defaults=_defaults(
        24, 32, 2048, 6144, 151936, 32768, num_key_value_heads=4, moe_intermediate_size=768, num_experts=128
    ),
    traits=replace(_QWEN3_TRAITS, experts="num_experts"),
)
_PHI3 = Family(defaults=_defaults(32, 32, 3072, 8192, 32064, 4096))

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "baichuan": Family(),
        "chatglm": Family(
            layers="num_layers",
            vocab="padded_vocab_size",
            head_dim="kv_channels",
            kv_heads=chatglm_kv_heads,
            traits=WeightTraits(intermediate="ffn_hidden_size", qkv_bias=Bias(key="add_qkv_bias")),
        ),
        "cohere": Family(
            defaults=_defaults(40, 64, 8192, 22528, 256000, 8192),
            traits=WeightTraits(layer_norms=1, tied=True),
        ),
        "dbrx": Family(
            layers="n_layers", heads="n_heads", hidden="d_model", kv_heads=attn_config_kv_heads, traits=None
        ),
        "ernie4_5": Family(
            defaults=_defaults(18, 16, 1024, 3072, 103424, 131072, num_key_value_heads=2, head_dim=128),
            traits=WeightTraits(tied=True),
        ),
        "falcon": Family(
            defaults=_defaults(32, 71, 4544, 0, 65024, 2048),
            kv_heads=falcon_kv_heads,
            traits=replace(
                _PLAIN_LAYER_NORM, intermediate="ffn_hidden_size", intermediate_per_hidden=4, tied=True, exact=False
            ),
        ),
        "gemma": Family(
            defaults=_defaults(28, 16, 3072, 24576, 256000, 8192, num_key_value_heads=16, head_dim=256),
            traits=WeightTraits(qkv_bias=_ATTENTION_BIAS, output_bias=_ATTENTION_BIAS, tied=True),
        ),
        "glm": Family(
            defaults=_defaults(40, 32, 4096, 13696, 151552, 131072, num_key_value_heads=2, head_dim=128),
            traits=WeightTraits(qkv_bias=_ATTENTION_BIAS),
        ),
        "glm4_moe": Family(
            defaults=_defaults(
                46,
                96,
                4096,
                10944,
                151552,
                131072,
                num_key_value_heads=8,
                n_routed_experts=128,
                moe_intermediate_size=1408,
            ),
            traits=WeightTraits(
                qkv_bias=_ATTENTION_BIAS,
                qk_norm=QKNorm.PER_HEAD,
                qk_norm_key="use_qk_norm",
                experts="n_routed_experts",
            ),
        ),
        "gpt2": replace(_GPT_SPELLINGS, defaults=_gpt_defaults(12, 12, 768, 50257, 1024), traits=_GPT2_TRAITS),
        "gpt_bigcode": replace(
            _GPT_SPELLINGS,
            defaults=_gpt_defaults(12, 12, 768, 50257, 1024),
            kv_heads=bigcode_kv_heads,
            traits=_GPT2_TRAITS,
        ),
        "gpt_neox": Family(
            defaults=_defaults(44, 64, 6144, 24576, 50432, 2048),
            traits=replace(
                _PLAIN_LAYER_NORM,
                qkv_bias=Bias(default=True, key="attention_bias"),
                output_bias=Bias(default=True, key="attention_bias"),
                mlp_bias=BIAS,
            ),
        ),
        "gptj": replace(
            _GPT_SPELLINGS,
            defaults=_gpt_defaults(28, 16, 4096, 50400, 2048),
            traits=replace(
                _PLAIN_LAYER_NORM,
                intermediate="n_inner",
                intermediate_per_hidden=4,
                mlp_bias=BIAS,
                layer_norms=1,
                head_bias=BIAS,
            ),
        ),
        "granite": Family(defaults=_defaults(32, 32, 4096, 11008, 32000, 2048), traits=_LLAMA_TRAITS),
        "internlm2": Family(traits=WeightTraits(qkv_bias=Bias(key="bias"), output_bias=Bias(key="bias"))),
        "llama": _LLAMA,
        "llava": replace(_LLAMA, towers=True),
        "minimax_m2": Family(
            defaults=_defaults(
                62, 48, 3072, 1536, 200064, 196608, num_key_value_heads=8, head_dim=128, num_local_experts=256
            ),
            traits=WeightTraits(
                experts="num_local_experts",
                expert_intermediate="intermediate_size",
                qk_norm=QKNorm.FULL,
            ),
        ),
        "ministral3": Family(
            defaults=_defaults(34, 32, 4096, 14336, 131072, 262144, num_key_value_heads=8, head_dim=128)
        ),
        "mistral": _MISTRAL,
        "mixtral": Family(
            defaults=_defaults(32, 32, 4096, 14336, 32000, 131072, num_key_value_heads=8, num_local_experts=8),
            traits=WeightTraits(experts="num_local_experts", expert_intermediate="intermediate_size"),
        ),
        "mpt": Family(
            layers="n_layers",
            heads="n_heads",
            hidden="d_model",
            kv_heads=attn_config_kv_heads,
            defaults={"n_layers": 24, "n_heads": 16, "d_model": 2048, "vocab_size": 50368, "max_seq_len": 2048},
            traits=WeightTraits(intermediate="ffn_hidden_size", intermediate_per_hidden=4, mlp_matrices=2, tied=True),
        ),
        "olmo": Family(
            defaults=_defaults(32, 32, 4096, 11008, 50304, 2048),
            traits=replace(_LLAMA_TRAITS, layer_norms=0, final_norms=0, mlp_bias=NO_BIAS),
        ),
        "olmo2": Family(
            defaults=_defaults(32, 32, 4096, 11008, 50304, 2048),
            traits=replace(_LLAMA_TRAITS, qk_norm=QKNorm.FULL, mlp_bias=NO_BIAS),
        ),
        "olmoe": Family(
            defaults=_defaults(16, 16, 2048, 2048, 50304, 4096, num_experts=64),
            traits=WeightTraits(
                qkv_bias=_ATTENTION_BIAS,
                output_bias=_ATTENTION_BIAS,
                qk_norm=QKNorm.FULL,
                experts="num_experts",
                expert_intermediate="intermediate_size",
            ),
        ),
        "opt": Family(
            defaults={**_defaults(12, 12, 768, 3072, 50272, 2048), "ffn_dim": 3072},
            traits=replace(_GPT2_TRAITS, intermediate="ffn_dim", intermediate_per_hidden=0, extra_positions=2),
        ),
        "phi": Family(
            defaults=_defaults(24, 32, 2048, 8192, 51200, 2048),
            traits=replace(
                _PLAIN_LAYER_NORM, qkv_bias=BIAS, output_bias=BIAS, mlp_bias=BIAS, layer_norms=1, head_bias=BIAS
            ),
        ),
        "phi3": _PHI3,
        "phi3_v": replace(_PHI3, towers=True),
        "phi4": _PHI3,
        "phimoe": Family(
            defaults=_defaults(32, 32, 4096, 6400, 32064, 131072, num_key_value_heads=8, num_local_experts=16),
            traits=WeightTraits(
                qkv_bias=_ATTENTION_BIAS,
                output_bias=_ATTENTION_BIAS,
                norm_bias=True,
                experts="num_local_experts",
                expert_intermediate="intermediate_size",
                head_bias=Bias(key="lm_head_bias"),
            ),
        ),
        "qwen": Family(head_dim="kv_channels", traits=replace(_QWEN2_TRAITS, intermediate_halves=2)),
        "qwen2": _QWEN2,
        "qwen2_5_vl": _QWEN2_VL,
        "qwen2_5_vl_text": _QWEN2_VL,
        "qwen2_moe": replace(
            _QWEN2,
            defaults=_defaults(
                24,
                16,
                2048,
                5632,
                151936,
                32768,
                num_key_value_heads=16,
                num_experts=60,
                moe_intermediate_size=1408,
                shared_expert_intermediate_size=5632,
            ),
            traits=replace(_QWEN2_TRAITS, experts="num_experts", shared_expert="shared_expert_intermediate_size"),
        ),
        "qwen2_vl": _QWEN2_VL,
        "qwen2_vl_text": _QWEN2_VL,
        "qwen3": _QWEN3,
        "qwen3_moe": _QWEN3_MOE,
        "qwen3_vl_moe_text": replace(
            _QWEN3_MOE,
            defaults=_defaults(
                24,
                16,
                2048,
                5632,
                151936,
                128000,
                num_key_value_heads=16,
                head_dim=128,
                moe_intermediate_size=1408,
                num_experts=60,
            ),
            towers=True,
        ),
        "qwen3_vl_text": replace(_QWEN3, defaults={**_QWEN3.defaults, "max_position_embeddings": 128000}, towers=True),
        "seed_oss": Family(
            defaults=_defaults(64, 80, 4096, 27648, 155136, 524288, num_key_value_heads=8, head_dim=128),
            traits=WeightTraits(
                qkv_bias=Bias(default=True, key="attention_bias"),
                output_bias=Bias(key="attention_out_bias"),
                mlp_bias=Bias(key="mlp_bias"),
            ),
        ),
        "smollm3": Family(
            defaults=_defaults(36, 16, 2048, 11008, 128256, 32768, num_key_value_heads=4),
            window=Window.IF_FLAGGED,
            traits=replace(_LLAMA_TRAITS, tied=True),
        ),
        "stablelm": Family(
            defaults=_defaults(32, 32, 2560, 6912, 50304, 4096, num_key_value_heads=32),
            traits=WeightTraits(qkv_bias=Bias(key="use_qkv_bias"), norm_bias=True),
        ),
        "starcoder2": Family(
            defaults=_defaults(30, 24, 3072, 12288, 49152, 4096, num_key_value_heads=2),
            traits=replace(
                _PLAIN_LAYER_NORM,
                qkv_bias=Bias(default=True, key="use_bias"),
                output_bias=Bias(default=True, key="use_bias"),
                mlp_bias=Bias(default=True, key="use_bias"),
                tied=True,
            ),
        ),
        "xverse": Family(),
    }
)
"""By `model_type`."""

NESTED: Mapping[str, str] = MappingProxyType(
    {
        "internvl_chat": "llm_config",
        "llava": "text_config",
        "mistral3": "text_config",
        "multi_modality": "language_config",
        "qwen2_5_vl": "text_config",
        "qwen2_vl": "text_config",
        "qwen3_vl": "text_config",
        "qwen3_vl_moe": "text_config",
        "voxtral": "text_config",
    }
)
"""Types whose language model is described by an object of its own, by the key of that object."""
