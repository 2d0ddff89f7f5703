"""Model types that are newer, or rarer, than those of the other tables: each is a known kind with its own numbers.

Source of spellings and defaults: the configuration classes of transformers 5.24.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from kvplan.config_reader import ConfigReader
from kvplan.models.attention import Attention
from kvplan.models.family import Family, defaults, drafts_like
from kvplan.models.feeds import Experts, Mlp
from kvplan.models.latents import latent_family
from kvplan.models.layer_kinds import all_full, every_nth, if_windowed, listed
from kvplan.models.shape import FULL, SLIDING, Built, LayerKind, ModelShape
from kvplan.models.sparse_layers import all_sparse
from kvplan.models.traits import YES, Flag, QKNorm
from kvplan.parameters import Piece, Pieces

_ATTENTION_BIAS = Flag(key="attention_bias")
_LLAMA_ATTENTION = Attention(qkv_bias=_ATTENTION_BIAS, output_bias=_ATTENTION_BIAS)
_NORMED = replace(_LLAMA_ATTENTION, qk_norm=QKNorm.PER_HEAD)
_BIASED = Attention(qkv_bias=YES, output_bias=YES)
_FIRST_OF_FOUR_FULL = listed(
    "layer_types", if_windowed(lambda _, n: [SLIDING if layer % 4 else FULL for layer in range(n)])
)
_LISTED = listed("layer_types", all_full)
_ROUTED = Experts(count=("n_routed_experts", "num_local_experts", "num_experts"))
_GRANITE_SWA = Family(
    defaults=defaults(24, 20, 2560, 8192, 100352, 8192, num_key_value_heads=4, sliding_window=128),
    kinds=_FIRST_OF_FOUR_FULL,
    attention=replace(_LLAMA_ATTENTION, sinks=YES),
    feed=Mlp(bias=Flag(key="mlp_bias")),
    tied=True,
)


def _cohere_windows(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    """Every n-th layer is full, counted anew after the dense layers at the start, which have an n of their own."""
    dense = min(reader.optional_count("first_k_dense_replace", minimum=0) or 0, num_layers)
    prefix = every_nth(1, keys=("prefix_dense_sliding_window_pattern",))(reader, dense)
    return prefix + every_nth(4, keys=("sliding_window_pattern",))(reader, num_layers - dense)


def _post_norms(shape: ModelShape, kind: LayerKind) -> Pieces:  # noqa: ARG001 - a rule like the others
    return (Piece(2 * shape.geometry.hidden_size),) if shape.reader.flag("use_post_norm", default=True) else ()


def _lambdas(shape: ModelShape, kind: LayerKind) -> Pieces:  # noqa: ARG001 - a rule like the others
    return (Piece(4 * shape.geometry.head_dim),)


def _head_gates(shape: ModelShape, kind: LayerKind) -> Pieces:  # noqa: ARG001 - a rule like the others
    sizes = shape.geometry
    gated = bool(shape.reader.get("gating")) if shape.reader.has("gating") else True
    return (Piece(sizes.hidden_size * sizes.num_attention_heads, shards=sizes.num_attention_heads),) if gated else ()


def _normed_experts(shape: ModelShape, kind: LayerKind) -> Built:
    """A.X K1: a norm after the experts."""
    return _ROUTED(shape, kind) + Built(pieces=(Piece(shape.geometry.hidden_size),))


_SARVAM_EXPERTS = replace(_ROUTED, shared_count=("n_shared_experts", "num_shared_experts"))

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "apertus1p5_text": Family(
            defaults=defaults(32, 32, 4096, 14336, 266752, 65536),
            attention=_NORMED,
            feed=Mlp(matrices=2),
            per_layer=lambda _, __: (Piece(2),),
            towers=True,
        ),
        "aria_text": Family(
            defaults=defaults(
                32, 32, 4096, 4096, 32000, 2048, num_key_value_heads=32, moe_num_experts=8, moe_num_shared_experts=2
            ),
            attention=_LLAMA_ATTENTION,
            experts=Experts(
                count=("moe_num_experts",), width=("intermediate_size",), shared_count=("moe_num_shared_experts",)
            ),
            feed_kinds=all_sparse,
            towers=True,
        ),
        "axk1": latent_family(
            defaults=defaults(
                61,
                64,
                7168,
                18432,
                163840,
                32768,
                moe_intermediate_size=2048,
                n_routed_experts=192,
                n_shared_experts=1,
                first_k_dense_replace=1,
                kv_lora_rank=512,
                q_lora_rank=1536,
                qk_rope_head_dim=64,
                qk_nope_head_dim=128,
                v_head_dim=128,
            ),
            experts=_normed_experts,
        ),
        "biogpt": Family(
            defaults=defaults(24, 16, 1024, 4096, 42384, 1024),
            attention=_BIASED,
            feed=Mlp(matrices=2, bias=YES),
            norm_bias=True,
            tied=True,
            extra_positions=2,
        ),
        "cohere2_moe": Family(
            defaults=defaults(40, 64, 8192, 22528, 256000, 8192, head_dim=128, sliding_window=4096, num_experts=8),
            kinds=listed("layer_types", if_windowed(_cohere_windows)),
            attention=_LLAMA_ATTENTION,
            feed=Mlp(width=("prefix_dense_intermediate_size", "intermediate_size")),
            experts=Experts(width=("intermediate_size",), shared_count=("num_shared_experts",)),
            layer_norms=1,
            tied=True,
        ),
        "diffllama": Family(
            defaults=defaults(16, 32, 2048, 8192, 32000, 2048),
            attention=_LLAMA_ATTENTION,
            per_layer=_lambdas,
        ),
        "flex_olmo": Family(
            defaults=defaults(32, 32, 4096, 11008, 100352, 4096, num_experts=7),
            attention=replace(_LLAMA_ATTENTION, qk_norm=QKNorm.FULL),
            experts=Experts(width=("intermediate_size",), shared_count=()),
            feed_kinds=all_sparse,
        ),
        "glm_ocr_text": Family(
            defaults=defaults(16, 16, 1024, 4096, 59392, 131072, num_key_value_heads=8),
            layer_norms=4,
            towers=True,
        ),
        "gpt_neox_japanese": Family(
            defaults=defaults(32, 32, 2560, 0, 32000, 2048),
            feed=Mlp(width=(), width_per_hidden=4, matrices=2),
            norm_bias=True,
            tied=True,
            exact=False,
        ),
        "granite_swa": _GRANITE_SWA,
        "granitemoe_swa": replace(
            _GRANITE_SWA,
            defaults=defaults(
                32,
                32,
                4096,
                11008,
                32000,
                2048,
                num_local_experts=8,
                shared_intermediate_size=0,
                sliding_window=128,
            ),
            experts=Experts(
                count=("num_local_experts",), width=("intermediate_size",), shared_width=("shared_intermediate_size",)
            ),
            feed_kinds=all_sparse,
            tied=False,
        ),
        "granite4_vision_text": Family(
            defaults=defaults(32, 32, 4096, 11008, 32000, 2048),
            attention=_LLAMA_ATTENTION,
            feed=Mlp(bias=Flag(key="mlp_bias")),
            towers=True,
        ),
        "hunyuan_vl_text": Family(
            defaults=defaults(32, 32, 4096, 11008, 290943, 2048),
            attention=_NORMED,
            tied=True,
            towers=True,
        ),
        "hy_v3": Family(
            defaults=defaults(
                80,
                64,
                4096,
                13312,
                120832,
                131072,
                num_key_value_heads=8,
                head_dim=128,
                moe_intermediate_size=1536,
                num_experts=192,
                num_shared_experts=1,
                first_k_dense_replace=1,
            ),
            attention=_NORMED,
            experts=Experts(count=("num_experts", "num_local_experts"), shared_count=("num_shared_experts",)),
            drafts=drafts_like("num_nextn_predict_layers", FULL),
        ),
        "hyperclovax": Family(
            defaults=defaults(32, 32, 4096, 11008, 32000, 2048),
            attention=_LLAMA_ATTENTION,
            feed=Mlp(bias=Flag(key="mlp_bias")),
            per_layer=_post_norms,
        ),
        "jais2": Family(
            defaults=defaults(32, 26, 3328, 26624, 150272, 8192, num_key_value_heads=26, head_dim=128),
            attention=Attention(
                qkv_bias=Flag(default=True, key="attention_bias"), output_bias=Flag(default=True, key="attention_bias")
            ),
            feed=Mlp(matrices=2, bias=Flag(default=True, key="mlp_bias")),
            norm_bias=True,
        ),
        "laguna": Family(
            defaults=defaults(
                40,
                48,
                2048,
                8192,
                100352,
                131072,
                num_key_value_heads=8,
                head_dim=128,
                sliding_window=512,
                moe_intermediate_size=512,
                shared_expert_intermediate_size=512,
                num_experts=256,
                first_k_dense_replace=1,
            ),
            kinds=_LISTED,
            attention=_NORMED,
            experts=Experts(shared_width=("shared_expert_intermediate_size",), router_bias=True),
            per_layer=_head_gates,
            # Query heads may differ from layer to layer, which KV heads do not.
            exact=False,
        ),
        "mellum": Family(
            defaults=defaults(
                28,
                32,
                2304,
                7168,
                98304,
                131072,
                num_key_value_heads=4,
                head_dim=128,
                sliding_window=1024,
                moe_intermediate_size=896,
                num_local_experts=64,
            ),
            kinds=_LISTED,
            attention=_NORMED,
            experts=Experts(count=("num_local_experts", "num_experts"), shared_count=()),
            drafts=drafts_like("num_nextn_predict_layers", SLIDING),
        ),
        "nanochat": Family(
            defaults=defaults(12, 6, 768, 8192, 50304, 2048, num_key_value_heads=6),
            attention=_LLAMA_ATTENTION,
            feed=Mlp(matrices=2),
            norm_weights=False,
        ),
        "paddleocr_vl_text": Family(
            defaults=defaults(18, 16, 1024, 3072, 103424, 131072, num_key_value_heads=2, head_dim=128),
            attention=Attention(qkv_bias=Flag(key="use_bias"), output_bias=Flag(key="use_bias")),
            feed=Mlp(bias=Flag(key="use_bias")),
            tied=True,
            towers=True,
        ),
        "sarvam_mla": latent_family(
            defaults=defaults(
                32,
                64,
                4096,
                16384,
                262144,
                4096,
                moe_intermediate_size=2048,
                n_routed_experts=128,
                n_shared_experts=1,
                first_k_dense_replace=1,
                kv_lora_rank=512,
                qk_rope_head_dim=64,
                qk_nope_head_dim=128,
                v_head_dim=128,
            ),
            experts=_SARVAM_EXPERTS,
        ),
        "sarvam_moe": Family(
            defaults=defaults(
                19,
                64,
                4096,
                8192,
                262144,
                131072,
                num_key_value_heads=4,
                head_dim=64,
                moe_intermediate_size=1024,
                n_routed_experts=128,
                n_shared_experts=1,
                first_k_dense_replace=1,
            ),
            attention=_NORMED,
            experts=_SARVAM_EXPERTS,
            drafts=drafts_like("num_nextn_predict_layers", FULL),
        ),
        "solar_open": Family(
            defaults=defaults(
                48,
                64,
                4096,
                0,
                196608,
                131072,
                num_key_value_heads=8,
                head_dim=128,
                moe_intermediate_size=1280,
                n_routed_experts=128,
                n_shared_experts=1,
            ),
            attention=_LLAMA_ATTENTION,
            experts=_ROUTED,
        ),
        "xglm": Family(
            layers=("num_layers",),
            heads="attention_heads",
            hidden="d_model",
            defaults={
                "num_layers": 24,
                "attention_heads": 16,
                "d_model": 1024,
                "ffn_dim": 4096,
                "vocab_size": 256008,
                "max_position_embeddings": 2048,
            },
            attention=_BIASED,
            feed=Mlp(width=("ffn_dim",), matrices=2, bias=YES),
            norm_bias=True,
            tied=True,
        ),
        "youtu": latent_family(
            defaults=defaults(
                32,
                16,
                2048,
                6144,
                128256,
                131072,
                kv_lora_rank=512,
                q_lora_rank=1536,
                qk_rope_head_dim=64,
                qk_nope_head_dim=128,
                v_head_dim=128,
            ),
            experts=None,
            tied=True,
        ),
    }
)
"""By `model_type`."""
