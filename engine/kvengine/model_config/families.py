"""One reader for each kind of family: the fields of its `config.json` to the parts of a decoder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvengine.model_config.checks import rotated_size
from kvengine.model_config.decoder import (
    Activation,
    Attention,
    DecoderConfig,
    DenseFeed,
    ExpertFeed,
    ExpertNames,
    Feed,
    GroupedAttention,
    LatentAttention,
    RopeConfig,
    RopeKind,
    Scoring,
    zip_layers,
)
from kvengine.model_config.fields import Fields
from kvengine.model_config.rope import json_rope, scaled_rope, yarn_gain

_FULL, _SLIDING = "full_attention", "sliding_attention"
_MIXTRAL_NAMES = ExpertNames(block="block_sparse_moe", gate="w1", up="w3", down="w2")
_GEMMA_SCALAR = 256.0
"""Class default of `query_pre_attn_scalar`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traits:
    """What sets families with grouped attention apart, besides their feed-forward layers."""

    qkv_bias: bool = False
    """Whether queries, keys and values always have one."""
    optional_bias: bool = False
    """Whether `attention_bias` gives all four projections one."""
    qk_norm: bool = False
    windows: "_Windows"


_Windows = Callable[[Fields, int], list[int | None]]
"""Reads the window of each layer, of so many layers."""


def _no_windows(fields: Fields, count: int) -> list[int | None]:
    fields.refuse("sliding_window")
    return [None] * count


def _windows_everywhere(fields: Fields, count: int) -> list[int | None]:
    """Mistral: a window that is there, and shorter than the context, is every layer's."""
    window = fields.whole_or_none("sliding_window")
    if window is None or window >= fields.whole("max_position_embeddings"):
        return [None] * count
    return _windows_of(fields, fields.words("layer_types", count=count) or [_SLIDING] * count)


def _windows_above(fields: Fields, count: int) -> list[int | None]:
    """Qwen: windows count only where they are switched on, and then from the layer `max_window_layers` on."""
    if not fields.flag("use_sliding_window", default=False) or fields.get("sliding_window") is None:
        return [None] * count
    first = fields.whole("max_window_layers", minimum=0)
    types = fields.words("layer_types", count=count)
    return _windows_of(fields, types or [_SLIDING if index >= first else _FULL for index in range(count)])


def _windows_of(fields: Fields, types: list[str]) -> list[int | None]:
    for kind in types:
        if kind not in (_FULL, _SLIDING):
            raise fields.error("layer_types", f"{kind!r} is not supported; supported: {_FULL}, {_SLIDING}")
    window = fields.whole("sliding_window") if _SLIDING in types else None
    return [window if kind == _SLIDING else None for kind in types]


_LLAMA = _Traits(optional_bias=True, windows=_no_windows)
_MISTRAL = _Traits(windows=_windows_everywhere)
_QWEN2 = _Traits(qkv_bias=True, windows=_windows_above)
_QWEN3 = _Traits(optional_bias=True, qk_norm=True, windows=_windows_above)


def _dense(traits: _Traits) -> Callable[[Fields, frozenset[int]], DecoderConfig]:
    def read(fields: Fields, more_eos: frozenset[int]) -> DecoderConfig:
        fields.refuse("hidden_act", "silu")
        attention = _grouped_attention(fields, traits)
        feed = DenseFeed(intermediate_size=fields.whole("intermediate_size"))
        return _decoder(fields, attention, [feed] * len(attention), more_eos)

    return read


def _mixtral(fields: Fields, more_eos: frozenset[int]) -> DecoderConfig:
    fields.refuse("hidden_act", "silu")
    attention = _grouped_attention(fields, _MISTRAL)
    feed = ExpertFeed(
        num_experts=fields.whole("num_local_experts"),
        top_k=fields.whole("num_experts_per_tok"),
        intermediate_size=fields.whole("intermediate_size"),
        normalize=True,
        names=_MIXTRAL_NAMES,
    )
    return _decoder(fields, attention, [feed] * len(attention), more_eos)


def _qwen3_moe(fields: Fields, more_eos: frozenset[int]) -> DecoderConfig:
    fields.refuse("hidden_act", "silu")
    attention = _grouped_attention(fields, _QWEN3)
    experts = ExpertFeed(
        num_experts=_num_experts(fields, "num_experts"),
        top_k=fields.whole("num_experts_per_tok"),
        intermediate_size=fields.whole("moe_intermediate_size"),
        normalize=fields.flag("norm_topk_prob", default=False),
    )
    every, dense_only = fields.whole_or("decoder_sparse_step", 1), set(fields.wholes("mlp_only_layers"))
    feeds: list[Feed] = [
        DenseFeed(intermediate_size=fields.whole("intermediate_size"))
        if index in dense_only or (index + 1) % every
        else experts
        for index in range(len(attention))
    ]
    return _decoder(fields, attention, feeds, more_eos)


def _gemma(*, version: int) -> Callable[[Fields, frozenset[int]], DecoderConfig]:
    def read(fields: Fields, more_eos: frozenset[int]) -> DecoderConfig:
        fields.refuse("hidden_activation", Activation.GELU_TANH.value)
        fields.refuse("use_bidirectional_attention", False)
        count = fields.num_layers("num_hidden_layers")
        pattern = 2 if version == 2 else fields.whole_or("sliding_window_pattern", 6)
        types = fields.words("layer_types", count=count)
        windows = _windows_of(fields, types or [_SLIDING if (index + 1) % pattern else _FULL for index in range(count)])
        full_rope, local_rope = _gemma_ropes(fields, version)
        scale = fields.number_or("query_pre_attn_scalar", _GEMMA_SCALAR) ** -0.5
        attention = [
            GroupedAttention(
                **_heads(fields),
                rope=local_rope if window else full_rope,
                scale=scale,
                window=window,
                # Gemma 3 states soft-capping and leaves it out of its attention.
                softcap=fields.number_or_none("attn_logit_softcapping") if version == 2 else None,
                qkv_bias=fields.flag("attention_bias", default=False),
                out_bias=fields.flag("attention_bias", default=False),
                qk_norm=version == 3,
            )
            for window in windows
        ]
        feed = DenseFeed(intermediate_size=fields.whole("intermediate_size"), activation=Activation.GELU_TANH)
        return _decoder(
            fields,
            attention,
            [feed] * count,
            more_eos,
            tied=True,
            norm_offset=1.0,
            sandwich_norms=True,
            embedding_scale=fields.whole("hidden_size") ** 0.5,
            final_softcap=fields.number_or_none("final_logit_softcapping"),
        )

    return read


def _gemma_ropes(fields: Fields, version: int) -> tuple[RopeConfig, RopeConfig]:
    """Rotary positions of the layers that attend to all, and of those that attend to a window."""
    if version == 2:
        rope = json_rope(fields)
        return rope, rope
    by_type = fields.nested("rope_parameters")
    if by_type is None:
        full = json_rope(fields, theta=1e6)
        return full, RopeConfig(theta=fields.number_or("rope_local_base_freq", 10000.0))
    full_fields, local_fields = by_type.nested(_FULL), by_type.nested(_SLIDING)
    return (
        RopeConfig(theta=1e6) if full_fields is None else _typed_rope(full_fields, 1e6),
        RopeConfig(theta=10000.0) if local_fields is None else _typed_rope(local_fields, 10000.0),
    )


def _typed_rope(fields: Fields, theta: float) -> RopeConfig:
    return scaled_rope(fields, theta=fields.number_or("rope_theta", theta), default_kind=True)


def _deepseek(*, version: int) -> Callable[[Fields, frozenset[int]], DecoderConfig]:
    def read(fields: Fields, more_eos: frozenset[int]) -> DecoderConfig:
        fields.refuse("hidden_act", "silu")
        fields.refuse("attention_bias", False)
        fields.refuse("moe_layer_freq", 1)
        fields.refuse("rope_interleave", True)
        count = fields.num_layers("num_hidden_layers")
        dense = DenseFeed(intermediate_size=fields.whole("intermediate_size"))
        experts = _deepseek_experts(fields, version)
        num_dense = fields.whole_or("first_k_dense_replace", 0, minimum=0)
        feeds: list[Feed] = [dense if index < num_dense else experts for index in range(count)]
        return _decoder(fields, [_latent_attention(fields)] * count, feeds, more_eos)

    return read


def _latent_attention(fields: Fields) -> LatentAttention:
    nope, rope = fields.whole("qk_nope_head_dim"), json_rope(fields)
    rotated = rotated_size(fields, "qk_rope_head_dim", fields.whole("qk_rope_head_dim"))
    return LatentAttention(
        num_heads=fields.whole("num_attention_heads"),
        q_lora_rank=fields.whole_or_none("q_lora_rank"),
        kv_lora_rank=fields.whole("kv_lora_rank"),
        nope_head_dim=nope,
        rope_head_dim=rotated,
        value_head_dim=fields.whole("v_head_dim"),
        rope=rope,
        scale=(nope + rotated) ** -0.5 * _latent_gain(fields, rope) ** 2,
    )


def _latent_gain(fields: Fields, rope: RopeConfig) -> float:
    """What a long context multiplies queries and keys by: `mscale_all_dim` of the rotary scaling says how much."""
    scaling = fields.nested("rope_parameters") or fields.nested("rope_scaling")
    if scaling is None or rope.kind is RopeKind.DEFAULT or not scaling.get("mscale_all_dim"):
        return 1.0
    return yarn_gain(rope.factor, scaling.number("mscale_all_dim"))


def _deepseek_experts(fields: Fields, version: int) -> ExpertFeed:
    expert_size = fields.whole("moe_intermediate_size")
    if version == 2:
        fields.refuse("topk_method", "greedy", "group_limited_greedy")
        fields.refuse("scoring_func", Scoring.SOFTMAX.value)
        fields.refuse("norm_topk_prob", False)
    else:
        fields.refuse("topk_method", "noaux_tc")
        fields.refuse("scoring_func", Scoring.SIGMOID.value)
    is_grouped = version == 3 or fields.get("topk_method") == "group_limited_greedy"
    return ExpertFeed(
        num_experts=_num_experts(fields, "n_routed_experts"),
        top_k=fields.whole("num_experts_per_tok"),
        intermediate_size=expert_size,
        normalize=version == 3 and fields.flag("norm_topk_prob", default=True),
        scoring=Scoring.SOFTMAX if version == 2 else Scoring.SIGMOID,
        num_groups=fields.whole_or("n_group", 1) if is_grouped else 1,
        top_groups=fields.whole_or("topk_group", 1) if is_grouped else 1,
        selection_bias=version == 3,
        routed_scale=fields.number_or("routed_scaling_factor", 1.0),
        shared_size=expert_size * fields.whole_or("n_shared_experts", 0, minimum=0),
    )


def _grouped_attention(fields: Fields, traits: _Traits) -> list[Attention]:
    if not traits.optional_bias:
        fields.refuse("attention_bias", *{traits.qkv_bias, False})
    bias = traits.optional_bias and fields.flag("attention_bias", default=False)
    heads, rope = _heads(fields), json_rope(fields)
    windows = traits.windows(fields, fields.num_layers("num_hidden_layers"))
    return [
        GroupedAttention(
            **heads,
            rope=rope,
            scale=heads["head_dim"] ** -0.5,
            window=window,
            qkv_bias=bias or traits.qkv_bias,
            out_bias=bias,
            qk_norm=traits.qk_norm,
        )
        for window in windows
    ]


def _num_experts(fields: Fields, key: str) -> int:
    """Read how many experts there are, which transformers 5 writes under one name for all families."""
    newer = "num_local_experts"
    return fields.whole(newer if fields.get(key) is None and fields.get(newer) is not None else key)


def _heads(fields: Fields) -> dict[str, int]:
    num_heads = fields.whole("num_attention_heads")
    head_dim = fields.whole_or_none("head_dim") or fields.whole("hidden_size") // num_heads
    return {
        "num_heads": num_heads,
        # Absent in the first Llama configs: as many as query heads.
        "num_kv_heads": fields.whole_or_none("num_key_value_heads") or num_heads,
        "head_dim": rotated_size(fields, "head_dim", head_dim),
    }


def _decoder(
    fields: Fields,
    attention: Sequence[Attention],
    feeds: Sequence[Feed],
    more_eos: frozenset[int],
    *,
    tied: bool = False,
    **differences: Any,
) -> DecoderConfig:
    return DecoderConfig(
        layers=zip_layers(attention, feeds),
        hidden_size=fields.whole("hidden_size"),
        vocab_size=fields.whole("vocab_size"),
        max_model_len=fields.whole("max_position_embeddings"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=tied),
        eos_token_ids=frozenset(fields.ids("eos_token_id") | more_eos),
        fp8_block=_fp8_block(fields),
        **differences,
    )


def _fp8_block(fields: Fields) -> tuple[int, int] | None:
    quantization = fields.nested("quantization_config")
    if quantization is None:
        return None
    method, block = quantization.get("quant_method"), quantization.wholes("weight_block_size")
    if method != "fp8" or len(block) != 2 or 0 in block:
        what = f"{method!r} weights" + ("" if method != "fp8" else " without a weight_block_size of two numbers")
        raise fields.error("quantization_config", f"{what} are not supported; block-quantised 'fp8' is")
    return block[0], block[1]


FAMILIES: dict[str, Callable[[Fields, frozenset[int]], DecoderConfig]] = {
    "llama": _dense(_LLAMA),
    "mistral": _dense(_MISTRAL),
    "qwen2": _dense(_QWEN2),
    "qwen3": _dense(_QWEN3),
    "gemma2": _gemma(version=2),
    "gemma3_text": _gemma(version=3),
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek(version=2),
    "deepseek_v3": _deepseek(version=3),
}
"""By `model_type`; each also takes the end tokens that are stated elsewhere."""
