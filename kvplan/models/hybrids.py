"""Model types with state-space, linear-attention or convolution layers, alone or beside attention.

Source: the configuration and model classes of transformers 5.24 and vLLM 0.32, and the repositories of MiniMax and
Moonshot AI for the types that these do not have.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from kvengine.spec import KVDtype
from kvplan.config_reader import ConfigReader
from kvplan.kv_layout.layers import AttentionKind
from kvplan.models.attention import Attention, Heads
from kvplan.models.family import Family, defaults, drafts_like
from kvplan.models.feeds import DENSE, SPARSE, Experts, Mlp, mlp_pieces
from kvplan.models.latent import WITHOUT_INDEX, LatentAttention
from kvplan.models.layer_kinds import all_of, at_layers, by_letter, by_number, every_nth, listed, periodic, repeated
from kvplan.models.layer_parts import LayerParts
from kvplan.models.shape import FULL, NOTHING, SLIDING, Built, LayerKind, ModelShape, together
from kvplan.models.sparse_layers import all_sparse, from_layer, periodic_experts
from kvplan.models.states import (
    Mamba1,
    Mamba2,
    delta_attention,
    gated_delta_net,
    lightning,
    recurrent_unit,
    rwkv4,
    short_conv,
)
from kvplan.models.traits import YES, Flag, QKNorm
from kvplan.parameters import Piece, Pieces, Role

_BIAS = Flag(key="attention_bias")
_LLAMA_ATTENTION = Attention(qkv_bias=_BIAS, output_bias=_BIAS)
_MAMBA, _LINEAR, _CONV, _HYBRID = (LayerKind(name) for name in ("mamba", "linear", "conv", "hybrid"))
_MAMBA_WORDS = {
    "mamba": _MAMBA,
    "linear_attention": _MAMBA,
    "attention": FULL,
    "full_attention": FULL,
    "hybrid": _HYBRID,
}
_LINEAR_WORDS = {"linear_attention": _LINEAR, "full_attention": FULL}
_PROJECTION_BIAS = Flag(key="mamba_proj_bias")
_CONV_BIAS = Flag(default=True, key="mamba_conv_bias")

_MAMBA_DEFAULTS = {
    "hidden_size": 768,
    "num_hidden_layers": 32,
    "vocab_size": 50280,
    "state_size": 16,
    "conv_kernel": 4,
    "expand": 2,
}
_MAMBA1 = Family(
    heads="",
    defaults=_MAMBA_DEFAULTS,
    kinds=all_of("mamba"),
    mixers={"mamba": Mamba1(bias=Flag(key="use_bias"), conv_bias=Flag(default=True, key="use_conv_bias"))},
    feed_kinds=lambda _, num_layers: [NOTHING] * num_layers,
    layer_norms=1,
    tied=True,
)
_GRANITE_MAMBA = Mamba2(
    state=("mamba_d_state",),
    kernel=("mamba_d_conv",),
    groups=("mamba_n_groups",),
    heads=("mamba_n_heads",),
    expand=("mamba_expand",),
    bias=_PROJECTION_BIAS,
    conv_bias=_CONV_BIAS,
)
_GRANITE_MAMBA_DEFAULTS = {
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
    "mamba_expand": 2,
}
_QWEN3_NEXT_DEFAULTS = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "head_dim": 256,
}
_QWEN3_NEXT = Family(
    defaults=defaults(
        48,
        16,
        2048,
        5632,
        151936,
        32768,
        num_key_value_heads=2,
        moe_intermediate_size=512,
        num_experts=512,
        shared_expert_intermediate_size=512,
        **_QWEN3_NEXT_DEFAULTS,
    ),
    kinds=listed("layer_types", every_nth(4, most=_LINEAR, keys=("full_attention_interval",)), _LINEAR_WORDS),
    attention=replace(_LLAMA_ATTENTION, qk_norm=QKNorm.PER_HEAD, gated=Flag(default=True, key="attn_output_gate")),
    mixers={"linear": gated_delta_net},
    experts=Experts(shared_width=("shared_expert_intermediate_size",), shared_gate=True),
    drafts=drafts_like("mtp_num_hidden_layers", FULL),
)
_QWEN3_5 = replace(
    _QWEN3_NEXT,
    defaults=defaults(32, 16, 4096, 12288, 248320, 32768, num_key_value_heads=4, **_QWEN3_NEXT_DEFAULTS),
    experts=None,
    towers=True,
    ignored=("mlp_only_layers",),
)


def _granite_feeds(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    """Granite 4 has models without experts, whose MLP is the one that experts would share."""
    count = reader.optional_count("num_local_experts", minimum=0)
    return [DENSE if count == 0 else SPARSE] * num_layers


# Nemotron-H: every layer is one thing, a state, attention, an MLP or experts, with one norm.
_NEMOTRON_WORDS = {
    "mamba": _MAMBA,
    "linear_attention": _MAMBA,
    "attention": FULL,
    "full_attention": FULL,
    "mlp": DENSE,
    "moe": SPARSE,
}
_NEMOTRON_LETTERS = {"M": _MAMBA, "*": FULL, "-": DENSE, "E": SPARSE}


def _nemotron_layers(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    rule = by_letter("hybrid_override_pattern", _NEMOTRON_LETTERS, _listed_nemotron_layers)
    return rule(reader, num_layers)


def _listed_nemotron_layers(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    if not reader.has("layers_block_type"):
        raise reader.refuse("neither 'hybrid_override_pattern' nor 'layers_block_type' says what its layers are")
    return listed("layers_block_type", all_of("full"), _NEMOTRON_WORDS)(reader, num_layers)


def _nemotron_mixers(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    kinds = _nemotron_layers(reader, num_layers)
    return [NOTHING if kind in (DENSE, SPARSE) else kind for kind in kinds]


def _nemotron_feeds(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    kinds = _nemotron_layers(reader, num_layers)
    return [kind if kind in (DENSE, SPARSE) else NOTHING for kind in kinds]


def _nemotron_count(reader: ConfigReader) -> int | None:
    pattern, words = reader.get("hybrid_override_pattern"), reader.get("layers_block_type")
    if isinstance(pattern, str):
        return len(pattern)
    return len(words) if isinstance(words, list) else None


def _nemotron_experts(shape: ModelShape, kind: LayerKind) -> Built:  # noqa: ARG001 - all layers are alike
    """Experts of two matrices, on a narrower copy of the input where `moe_latent_size` says so."""
    reader, hidden = shape.reader, shape.geometry.hidden_size
    count, width = reader.count("n_routed_experts"), reader.count("moe_intermediate_size")
    latent = reader.optional_count("moe_latent_size", minimum=0) or 0
    shared = reader.count("moe_shared_expert_intermediate_size")
    pieces = [
        Piece(count * 2 * (latent or hidden) * width, Role.EXPERT, width, experts=count),
        Piece(2 * hidden * shared, Role.SHARED_EXPERT, shared),
        Piece(hidden * count),
    ]
    if latent:
        pieces.append(Piece(2 * hidden * latent, Role.SHARED_EXPERT))
    return Built(pieces=tuple(pieces))


def _nemotron_drafts(shape: ModelShape, family: Family) -> tuple[LayerParts, ...]:
    """A draft step is a few layers, of which those with attention keep something."""
    reader = shape.reader
    steps = reader.optional_count("num_nextn_predict_layers", minimum=0, maximum=64) or 0
    pattern, words = reader.get("mtp_hybrid_override_pattern"), reader.get("mtp_layers_block_type")
    if isinstance(pattern, str):
        attention = pattern.count("*")
    elif isinstance(words, list):
        attention = sum(word in ("attention", "full_attention") for word in words)
    else:
        attention = 1
    return (family.mixer(FULL)(shape, FULL).parts,) * (steps * attention)


# Zamba 2: attention and MLP of a few blocks that layers take turns in using, on the hidden states beside the input.
_ZAMBA_MAMBA = Mamba2(
    state=("mamba_d_state", "state_size"),
    kernel=("mamba_d_conv", "conv_dimension"),
    groups=("mamba_ngroups",),
    heads=("n_mamba_heads",),
    expand=("mamba_expand", "expansion_factor"),
    bias=Flag(key="add_bias_linear"),
    conv_bias=Flag(default=True, key="use_conv_bias"),
)


def _zamba_heads(shape: ModelShape, kind: LayerKind) -> Heads:  # noqa: ARG001 - a rule like the others
    """Heads see twice the hidden size, whatever `kv_channels` says."""
    reader, sizes = shape.reader, shape.geometry
    size = reader.optional_count("attention_head_dim") or 2 * sizes.hidden_size // sizes.num_attention_heads
    return Heads(query=sizes.num_attention_heads, kv=sizes.num_kv_heads, key_size=size, value_size=size)


_ZAMBA_ATTENTION = Attention(heads=_zamba_heads, input_widths=2)
_ZAMBA_MLP = Mlp(width=("intermediate_size", "ffn_hidden_size"), width_per_hidden=4)


def _zamba_hybrid(shape: ModelShape, kind: LayerKind) -> Built:
    """Build what a layer owns of its shared block: the KV, a projection, and an adapter of the MLP."""
    reader, hidden = shape.reader, shape.geometry.hidden_size
    rank = reader.first_count(("adapter_rank", "lora_rank"))
    width = _zamba_mlp_width(shape)
    pieces = (Piece(hidden * hidden, Role.ATTENTION), Piece(rank * (hidden + 2 * width), Role.MLP))
    return Built(_ZAMBA_ATTENTION(shape, kind).parts, pieces) + _ZAMBA_MAMBA(shape, kind)


def _zamba_mlp_width(shape: ModelShape) -> int:
    reader = shape.reader
    return reader.optional_first_count(_ZAMBA_MLP.width) or 4 * shape.geometry.hidden_size


def _zamba_blocks(shape: ModelShape) -> Pieces:
    blocks, hidden = shape.reader.count("num_mem_blocks"), shape.geometry.hidden_size
    block = _ZAMBA_ATTENTION(shape, _HYBRID).pieces + _ZAMBA_MLP(shape, DENSE).pieces + (Piece(3 * hidden),)
    return block * min(blocks, 64)


# Kimi: layers are listed by number, counted from 1.
def _kimi_layers(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    if not reader.has("linear_attn_config"):
        return listed("layer_types", _every_latent, {"linear_attention": _LINEAR, "full_attention": WITHOUT_INDEX})(
            reader, num_layers
        )
    linear = reader.nested("linear_attn_config")
    numbers = set(linear.counts("kda_layers")) if linear.has("kda_layers") else set()
    return [_LINEAR if layer + 1 in numbers else WITHOUT_INDEX for layer in range(num_layers)]


def _every_latent(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    """One layer of every group has latent attention, the last one."""
    step = reader.optional_count("layer_group_size", maximum=10_000) or 4
    return [WITHOUT_INDEX if (layer + 1) % step == 0 else _LINEAR for layer in range(num_layers)]


def _kimi_experts(shape: ModelShape, kind: LayerKind) -> Built:
    """Kimi K3's experts work on a narrower copy of the input."""
    width = shape.reader.optional_count("routed_expert_hidden_size")
    if width is None:
        return Experts(shared_count=("num_shared_experts",))(shape, kind)
    hidden = shape.geometry.hidden_size
    narrow = ModelShape(reader=shape.reader, geometry=replace(shape.geometry, hidden_size=width))
    routed = Experts(shared_count=())(narrow, kind)
    count = shape.reader.optional_count("num_shared_experts", minimum=0) or 0
    shared = mlp_pieces(shape, count * shape.reader.count("moe_intermediate_size"), role=Role.SHARED_EXPERT)
    return Built(pieces=(*routed.pieces, *shared, Piece(2 * hidden * width, Role.SHARED_EXPERT)))


_KIMI = Family(
    defaults=defaults(
        27,
        32,
        2304,
        9216,
        163840,
        1048576,
        moe_intermediate_size=1024,
        num_experts=256,
        num_shared_experts=1,
        first_k_dense_replace=1,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
    ),
    head_dim=(),
    kinds=_kimi_layers,
    mixers={
        "latent": LatentAttention(output_gate=Flag(key="mla_use_output_gate")),
        "linear": delta_attention,
    },
    experts=_kimi_experts,
    drafts=drafts_like("num_nextn_predict_layers", WITHOUT_INDEX),
    exact=False,
)


def _minimax(type_list: Mapping[int, LayerKind]) -> Family:
    return Family(
        defaults=defaults(32, 32, 4096, 14336, 32000, 131072, num_key_value_heads=8, num_local_experts=8),
        kinds=listed("layer_types", by_number("attn_type_list", type_list), _LINEAR_WORDS),
        mixers={"linear": lightning},
        experts=Experts(
            count=("num_local_experts",), width=("intermediate_size",), shared_width=("shared_intermediate_size",)
        ),
        feed_kinds=all_sparse,
    )


_MINIMAX = _minimax({0: _LINEAR, 1: FULL})


def _lfm2_mlp(shape: ModelShape, kind: LayerKind) -> Built:  # noqa: ARG001 - all layers are alike
    """LFM2 takes two thirds of the stated width, rounded up, unless told not to."""
    reader = shape.reader
    width = reader.first_count(("block_ff_dim", "intermediate_size"))
    if reader.flag("block_auto_adjust_ff_dim", default=True):
        multiple = reader.optional_count("block_multiple_of") or 256
        width = int(2 * width / 3 * reader.ratio("block_ffn_dim_multiplier", default=1.0))
        width = -(-width // multiple) * multiple
    return Mlp()(shape, LayerKind(DENSE.name, max(width, 1)))


_LFM2 = Family(
    defaults=defaults(32, 32, 2560, 12288, 65536, 128000, num_key_value_heads=8, conv_L_cache=3),
    kinds=listed(
        "layer_types",
        lambda reader, n: at_layers("full_attn_idxs", FULL, _CONV, default=range(n))(reader, n),
        {"conv": _CONV, "full_attention": FULL},
    ),
    attention=Attention(qk_norm=QKNorm.PER_HEAD),
    ignored=("conv_L_cache",),
    mixers={"conv": short_conv},
    feed=_lfm2_mlp,
    tied=True,
)
_JAMBA_DEFAULTS = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "bailing_hybrid": replace(
            _KIMI,
            defaults=defaults(
                42,
                32,
                2560,
                6144,
                157184,
                262144,
                moe_intermediate_size=768,
                num_experts=512,
                num_shared_experts=1,
                first_k_dense_replace=2,
                kv_lora_rank=512,
                qk_rope_head_dim=64,
                qk_nope_head_dim=128,
                v_head_dim=128,
                linear_num_heads=32,
                linear_head_dim=128,
            ),
        ),
        "bamba": Family(
            defaults=defaults(32, 32, 4096, 14336, 128000, 262144, num_key_value_heads=8, **_GRANITE_MAMBA_DEFAULTS),
            kinds=at_layers("attn_layer_indices", FULL, _MAMBA),
            attention=_LLAMA_ATTENTION,
            mixers={"mamba": _GRANITE_MAMBA},
            feed=Mlp(bias=Flag(key="mlp_bias")),
        ),
        "falcon_h1": Family(
            defaults=defaults(32, 32, 4096, 14336, 128000, 8192, num_key_value_heads=8, **_GRANITE_MAMBA_DEFAULTS),
            kinds=all_of("hybrid"),
            ignored=("mamba_expand",),
            mixers={
                "hybrid": together(
                    _LLAMA_ATTENTION,
                    replace(
                        _GRANITE_MAMBA, width="mamba_d_ssm", head_size="mamba_d_head", norm=Flag(key="mamba_rms_norm")
                    ),
                )
            },
            feed=Mlp(bias=Flag(key="mlp_bias")),
        ),
        "falcon_mamba": _MAMBA1,
        "granitemoehybrid": Family(
            defaults=defaults(
                32,
                32,
                4096,
                11008,
                32000,
                2048,
                num_key_value_heads=32,
                num_local_experts=8,
                shared_intermediate_size=1024,
                **_GRANITE_MAMBA_DEFAULTS,
            ),
            kinds=listed("layer_types", all_of("mamba"), _MAMBA_WORDS),
            attention=_LLAMA_ATTENTION,
            mixers={"mamba": _GRANITE_MAMBA},
            feed_kinds=_granite_feeds,
            feed=Mlp(width=("shared_intermediate_size",)),
            experts=Experts(
                count=("num_local_experts",), width=("intermediate_size",), shared_width=("shared_intermediate_size",)
            ),
        ),
        "jamba": Family(
            defaults=defaults(
                32, 32, 4096, 14336, 65536, 262144, num_key_value_heads=8, num_experts=16, **_JAMBA_DEFAULTS
            ),
            kinds=periodic(FULL, _MAMBA, period=("attn_layer_period", 8), offset=("attn_layer_offset", 4)),
            mixers={
                "mamba": Mamba1(
                    state="mamba_d_state",
                    kernel="mamba_d_conv",
                    expand="mamba_expand",
                    rank="mamba_dt_rank",
                    width="",
                    bias=_PROJECTION_BIAS,
                    conv_bias=_CONV_BIAS,
                    norms=True,
                )
            },
            feed_kinds=periodic_experts,
            experts=Experts(width=("intermediate_size",), shared_count=()),
        ),
        "kimi_linear": _KIMI,
        "lfm2": _LFM2,
        "lfm2_moe": replace(
            _LFM2,
            defaults=defaults(
                32,
                32,
                2048,
                7168,
                65536,
                128000,
                num_key_value_heads=8,
                conv_L_cache=3,
                num_experts=32,
                moe_intermediate_size=1792,
            ),
            feed=Mlp(),
            feed_kinds=from_layer("num_dense_layers"),
            experts=Experts(shared_count=()),
        ),
        "mamba": _MAMBA1,
        "mamba2": Family(
            heads="",
            defaults={
                "hidden_size": 4096,
                "num_hidden_layers": 64,
                "vocab_size": 32768,
                "state_size": 128,
                "conv_kernel": 4,
                "n_groups": 8,
                "num_heads": 128,
                "expand": 2,
            },
            kinds=all_of("mamba"),
            mixers={
                "mamba": Mamba2(
                    state=("state_size",),
                    kernel=("conv_kernel",),
                    groups=("n_groups",),
                    heads=("num_heads",),
                    expand=("expand",),
                    bias=Flag(key="use_bias"),
                    conv_bias=Flag(default=True, key="use_conv_bias"),
                )
            },
            feed_kinds=lambda _, num_layers: [NOTHING] * num_layers,
            layer_norms=1,
        ),
        "minimax": _MINIMAX,
        "minimax_m1": _MINIMAX,
        "minimax_text_01": _MINIMAX,
        "nemotron_h": Family(
            num_layers=_nemotron_count,
            defaults={
                "num_attention_heads": 32,
                "hidden_size": 4096,
                "vocab_size": 131072,
                "max_position_embeddings": 4096,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "intermediate_size": 21504,
                "ssm_state_size": 128,
                "conv_kernel": 4,
                "n_groups": 8,
                "mamba_num_heads": 128,
                "mamba_head_dim": 64,
                "n_routed_experts": 8,
                "moe_intermediate_size": 7688,
                "moe_shared_expert_intermediate_size": 7688,
            },
            head_dim=("head_dim", "attention_head_dim"),
            kinds=_nemotron_mixers,
            attention=_LLAMA_ATTENTION,
            mixers={
                "mamba": Mamba2(
                    state=("ssm_state_size",),
                    kernel=("conv_kernel",),
                    groups=("n_groups",),
                    heads=("mamba_num_heads",),
                    head_size="mamba_head_dim",
                    bias=_PROJECTION_BIAS,
                    conv_bias=Flag(default=True, key="use_conv_bias"),
                    dtype=KVDtype.FLOAT32,
                )
            },
            feed_kinds=_nemotron_feeds,
            feed=Mlp(matrices=2, bias=Flag(key="mlp_bias")),
            experts=_nemotron_experts,
            layer_norms=1,
            drafts=_nemotron_drafts,
        ),
        "olmo_hybrid": replace(
            _QWEN3_NEXT,
            defaults=defaults(
                32,
                30,
                3840,
                11008,
                100352,
                65536,
                num_key_value_heads=30,
                linear_num_key_heads=30,
                linear_num_value_heads=30,
                linear_key_head_dim=96,
                linear_value_head_dim=192,
                linear_conv_kernel_dim=4,
            ),
            attention=replace(_LLAMA_ATTENTION, qk_norm=QKNorm.FULL),
            experts=None,
            exact=False,
        ),
        "qwen3_5_moe_text": replace(
            _QWEN3_NEXT,
            defaults=defaults(
                40,
                16,
                2048,
                512,
                248320,
                32768,
                num_key_value_heads=2,
                moe_intermediate_size=512,
                num_experts=256,
                shared_expert_intermediate_size=512,
                **_QWEN3_NEXT_DEFAULTS,
            ),
            towers=True,
        ),
        "qwen3_5_text": _QWEN3_5,
        "qwen3_next": _QWEN3_NEXT,
        "recurrent_gemma": Family(
            defaults={
                "num_hidden_layers": 26,
                "num_attention_heads": 10,
                "hidden_size": 2560,
                "intermediate_size": 7680,
                "vocab_size": 256000,
                "num_key_value_heads": 10,
                "attention_window_size": 2048,
                "max_position_embeddings": 8192,
            },
            kinds=repeated(
                "block_types",
                {"recurrent": LayerKind("recurrent"), "attention": SLIDING},
                ("recurrent", "recurrent", "attention"),
            ),
            mixers={
                "recurrent": recurrent_unit,
                "sliding": Attention(
                    kind=AttentionKind.SLIDING_WINDOW,
                    reach=("attention_window_size",),
                    qkv_bias=_BIAS,
                    output_bias=YES,
                ),
            },
            feed=Mlp(halves=2, bias=YES),
            tied=True,
        ),
        "rwkv": Family(
            heads="",
            defaults={"num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 50277, "context_length": 1024},
            kinds=all_of("rwkv"),
            mixers={"rwkv": rwkv4},
            feed_kinds=lambda _, num_layers: [NOTHING] * num_layers,
            norm_bias=True,
            beside=lambda shape: (Piece(2 * shape.geometry.hidden_size),),
            ignored=("rescale_every",),
        ),
        "zamba2": Family(
            defaults={
                "num_hidden_layers": 54,
                "num_attention_heads": 32,
                "hidden_size": 2560,
                "vocab_size": 32000,
                "max_position_embeddings": 4096,
                "num_key_value_heads": 32,
                "mamba_d_state": 64,
                "mamba_d_conv": 4,
                "mamba_ngroups": 1,
                "mamba_expand": 2,
                "n_mamba_heads": 8,
                "num_mem_blocks": 1,
                "adapter_rank": 128,
            },
            kinds=listed(
                "layers_block_type",
                at_layers("hybrid_layer_ids", _HYBRID, _MAMBA, default=(6, 12, 18, 24, 30, 36, 42, 47, 51)),
                _MAMBA_WORDS,
            ),
            mixers={"mamba": _ZAMBA_MAMBA, "hybrid": _zamba_hybrid},
            feed_kinds=lambda _, num_layers: [NOTHING] * num_layers,
            layer_norms=1,
            beside=_zamba_blocks,
            tied=True,
        ),
    }
)
"""By `model_type`."""
