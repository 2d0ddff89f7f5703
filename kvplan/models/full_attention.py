"""Model types in which every layer attends to every token, dense or with experts.

Source of spellings and defaults: the configuration classes of transformers 5.24, or of the model's own repository where
transformers has none (baichuan, chatglm, internlm, internlm2, orion, qwen, xverse, yuan and others).
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from kvplan.config_reader import ConfigReader
from kvplan.models.attention import Attention, Heads, plain_heads
from kvplan.models.family import Family, defaults, drafts_like, key_value_heads
from kvplan.models.feeds import DENSE, Experts, Mlp
from kvplan.models.layer_kinds import above_max_window_layers, all_of, if_flagged, if_windowed, listed
from kvplan.models.shape import FULL, NOTHING, Built, LayerKind, ModelShape
from kvplan.models.sparse_layers import all_dense, all_sparse, from_layer, where_there_are
from kvplan.models.traits import YES, Flag, QKNorm
from kvplan.parameters import Piece, Pieces


def falcon_kv_heads(reader: ConfigReader, num_heads: int) -> int:
    """The new architecture obeys the count; the old one with multi_query has one head, whatever the count says (71)."""
    is_new = reader.flag("new_decoder_architecture", default=False)
    is_multi_query = reader.flag("multi_query", default=True)
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


def _gpt_defaults(layers: int, heads: int, hidden: int, vocab: int, max_len: int) -> Mapping[str, int]:
    """Name the class defaults of a type with GPT-2's spellings."""
    return {"n_layer": layers, "n_head": heads, "n_embd": hidden, "vocab_size": vocab, "n_positions": max_len}


_ATTENTION_BIAS = Flag(key="attention_bias")
_USE_BIAS = Flag(default=True, key="use_bias")
_BIASED = Attention(qkv_bias=YES, output_bias=YES)
_LLAMA_ATTENTION = Attention(qkv_bias=_ATTENTION_BIAS, output_bias=_ATTENTION_BIAS)
_QKV_BIASED = Attention(qkv_bias=YES)
_PLAIN_MLP = Mlp(matrices=2)
_GPT_MLP = Mlp(width=("n_inner",), width_per_hidden=4, matrices=2, bias=YES)
_IF_WINDOWED = if_windowed(all_of("sliding"))
_IF_FLAGGED = listed("layer_types", if_flagged(if_windowed(above_max_window_layers)))

LLAMA = Family(
    defaults=defaults(32, 32, 4096, 11008, 32000, 2048),
    attention=_LLAMA_ATTENTION,
    feed=Mlp(bias=Flag(key="mlp_bias")),
    kinds=_IF_WINDOWED,
)
_LLAMA_LIKE = replace(LLAMA, defaults={})
"""Types with Llama's spellings whose own defaults are not known here: keys must be there."""
MISTRAL = Family(
    defaults=defaults(32, 32, 4096, 14336, 32000, 131072, num_key_value_heads=8, sliding_window=4096),
    kinds=_IF_WINDOWED,
)
MIXTRAL = Family(
    defaults=defaults(32, 32, 4096, 14336, 32000, 131072, num_key_value_heads=8, num_local_experts=8),
    kinds=_IF_WINDOWED,
    experts=Experts(count=("num_local_experts", "num_experts"), width=("intermediate_size",), shared_count=()),
)
QWEN2 = Family(
    defaults=defaults(32, 32, 4096, 22016, 151936, 32768, num_key_value_heads=32),
    kinds=_IF_FLAGGED,
    attention=_QKV_BIASED,
)
QWEN3 = replace(
    QWEN2,
    defaults={**QWEN2.defaults, "head_dim": 128},
    attention=replace(_LLAMA_ATTENTION, qk_norm=QKNorm.PER_HEAD),
)
QWEN2_VL = replace(QWEN2, defaults=defaults(80, 64, 8192, 29568, 152064, 32768, num_key_value_heads=8), towers=True)
QWEN3_MOE = replace(
    QWEN3,
    defaults=defaults(
        24, 32, 2048, 6144, 151936, 32768, num_key_value_heads=4, moe_intermediate_size=768, num_experts=128
    ),
    experts=Experts(shared_count=()),
)
_PHI3 = Family(defaults=defaults(32, 32, 3072, 8192, 32064, 4096), kinds=_IF_WINDOWED)
_GPT2 = Family(
    layers=("n_layer",),
    heads="n_head",
    hidden="n_embd",
    defaults=_gpt_defaults(12, 12, 768, 50257, 1024),
    attention=_BIASED,
    feed=_GPT_MLP,
    norm_bias=True,
    tied=True,
    extra_positions=0,
)
_GPT_J = replace(
    _GPT2,
    defaults=_gpt_defaults(28, 16, 4096, 50400, 2048),
    attention=Attention(),
    layer_norms=1,
    head_bias=YES,
    tied=False,
    extra_positions=None,
)
"""GPT-J; CodeGen is the same but for how its weights are laid out."""
_OLMO = Family(
    defaults=defaults(32, 32, 4096, 11008, 50304, 2048),
    attention=_LLAMA_ATTENTION,
    layer_norms=0,
    final_norms=0,
)
_GLM4_MOE = Family(
    defaults=defaults(
        46,
        96,
        4096,
        10944,
        151552,
        131072,
        num_key_value_heads=8,
        n_routed_experts=128,
        moe_intermediate_size=1408,
        first_k_dense_replace=1,
        n_shared_experts=1,
    ),
    attention=Attention(qkv_bias=_ATTENTION_BIAS, qk_norm=QKNorm.PER_HEAD, qk_norm_key="use_qk_norm"),
    experts=Experts(count=("n_routed_experts",)),
    drafts=drafts_like("num_nextn_predict_layers", FULL),
    heads_divide=False,
)
_ERNIE_MOE = Family(
    defaults=defaults(
        28,
        20,
        2560,
        12288,
        103424,
        131072,
        num_key_value_heads=4,
        moe_num_experts=64,
        moe_intermediate_size=1536,
        moe_num_shared_experts=2,
        moe_layer_start_index=1,
    ),
    attention=Attention(qkv_bias=Flag(key="use_bias"), output_bias=Flag(key="use_bias")),
    feed=Mlp(bias=Flag(key="use_bias")),
    feed_kinds=from_layer("moe_layer_start_index", step_key="moe_layer_interval"),
    experts=Experts(count=("moe_num_experts",), shared_count=("moe_num_shared_experts",), router_bias=True),
    tied=True,
)
_GLM4 = Family(
    defaults=defaults(40, 32, 4096, 13696, 151552, 131072, num_key_value_heads=2, head_dim=128),
    attention=Attention(qkv_bias=Flag(default=True, key="attention_bias")),
    layer_norms=4,
)
_GRANITE_MOE = Family(
    defaults=defaults(32, 32, 4096, 11008, 32000, 2048, num_local_experts=8, shared_intermediate_size=0),
    attention=Attention(qkv_bias=_ATTENTION_BIAS, output_bias=_ATTENTION_BIAS),
    experts=Experts(
        count=("num_local_experts",), width=("intermediate_size",), shared_width=("shared_intermediate_size",)
    ),
    feed_kinds=all_sparse,
)
_HUNYUAN_ATTENTION = Attention(
    qkv_bias=_ATTENTION_BIAS,
    output_bias=_ATTENTION_BIAS,
    qk_norm=QKNorm.PER_HEAD,
)


def _shared_kv(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    """Hunyuan with cross-layer attention: the first layer of every `cla_share_factor` owns the KV of them all."""
    factor = reader.optional_count("cla_share_factor") or 1
    if not reader.flag("use_cla", default=False):
        factor = 1
    return [FULL if layer % factor == 0 else LayerKind("shared") for layer in range(num_layers)]


def _hunyuan_experts(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    """Every layer has experts, but the first few where the configuration skips them."""
    many = (reader.optional_first_count(("num_experts",), minimum=0) or 1) > 1
    return from_layer("moe_layer_num_skipped")(reader, num_layers) if many else all_dense(reader, num_layers)


_HUNYUAN = Family(
    defaults=defaults(32, 32, 4096, 11008, 290943, 2048, num_experts=1),
    head_dim=("head_dim", "attention_head_dim"),
    kinds=_shared_kv,
    attention=replace(_HUNYUAN_ATTENTION, qk_norm_key="use_qk_norm"),
    mixers={"shared": replace(_HUNYUAN_ATTENTION, qk_norm_key="use_qk_norm", own_kv=False)},
    feed=Mlp(bias=Flag(key="mlp_bias")),
    feed_kinds=_hunyuan_experts,
    experts=Experts(width=("moe_intermediate_size", "intermediate_size"), shared_count=("num_shared_expert",)),
    ignored=("kv_lora_rank",),
)
_HUNYUAN_V1 = replace(
    _HUNYUAN, attention=_HUNYUAN_ATTENTION, mixers={"shared": replace(_HUNYUAN_ATTENTION, own_kv=False)}
)


def _decilm_kinds(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    """Nemotron-NAS: the search left some layers without attention, and others with their own number of KV heads."""
    num_heads = reader.count("num_attention_heads")
    kinds = []
    for block in _blocks(reader, num_layers):
        attention = block.nested("attention")
        if attention.flag("no_op", default=False) or attention.flag("replace_with_linear", default=False):
            kinds.append(NOTHING)
            continue
        group = attention.count("n_heads_in_group")
        if num_heads % group:
            raise attention.refuse(f"n_heads_in_group {group} does not divide the {num_heads} attention heads")
        kinds.append(LayerKind("full", num_heads // group))
    return kinds


def _decilm_feeds(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    hidden = reader.count("hidden_size")
    kinds = []
    for block in _blocks(reader, num_layers):
        feed = block.nested("ffn")
        if feed.flag("no_op", default=False) or feed.flag("replace_with_linear", default=False):
            kinds.append(NOTHING)
            continue
        width = feed.optional_count("intermediate_size") or int(2 * feed.ratio("ffn_mult", default=4) * hidden / 3)
        kinds.append(LayerKind(DENSE.name, -(-width // 256) * 256))
    return kinds


def _blocks(reader: ConfigReader, num_layers: int) -> list[ConfigReader]:
    return reader.objects("block_configs", length=num_layers)


def _decilm_kv_heads(reader: ConfigReader, num_heads: int) -> int:
    """The heads of the first layer that has attention; layers have their own."""
    for block in reader.objects("block_configs"):
        group = block.nested("attention").optional_count("n_heads_in_group")
        if group and num_heads % group == 0:
            return num_heads // group
    return num_heads


def _heads_of_kind(shape: ModelShape, kind: LayerKind) -> Heads:
    heads = plain_heads(shape, kind)
    return replace(heads, kv=kind.size or heads.kv)


def _falcon_norms(shape: ModelShape, kind: LayerKind) -> Pieces:  # noqa: ARG001 - all layers are alike
    """One norm serves attention and MLP side by side; the new architecture has one for each."""
    reader = shape.reader
    is_new = reader.flag("new_decoder_architecture", default=False)
    apart = not reader.flag("parallel_attn", default=True)
    stated = reader.optional_count("num_ln_in_parallel_attn", maximum=2)
    count = (stated or 2) if is_new else 2 if apart else 1
    return (Piece(count * 2 * shape.geometry.hidden_size),)


def _bloom_norm(shape: ModelShape) -> Pieces:
    return (Piece(2 * shape.geometry.hidden_size),)


def _dbrx_experts(shape: ModelShape, kind: LayerKind) -> Built:
    """DBRX describes its experts in an object of their own."""
    experts = shape.reader.nested("ffn_config")
    return Experts(count=("moe_num_experts",), width=("ffn_hidden_size",), shared_count=())(
        ModelShape(reader=experts, geometry=shape.geometry), kind
    )


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "apertus": Family(
            defaults=defaults(32, 32, 4096, 14336, 131072, 65536),
            attention=replace(_LLAMA_ATTENTION, qk_norm=QKNorm.PER_HEAD),
            feed=_PLAIN_MLP,
            per_layer=lambda _, __: (Piece(2),),
        ),
        "aquila": _LLAMA_LIKE,
        "arcee": replace(
            LLAMA, defaults=defaults(32, 32, 2560, 18432, 32000, 4096), feed=Mlp(matrices=2, bias=Flag(key="mlp_bias"))
        ),
        "baichuan": Family(),
        "bitnet": Family(defaults=defaults(30, 20, 2560, 6912, 128256, 2048, num_key_value_heads=5), exact=False),
        "bloom": Family(
            layers=("n_layer", "num_hidden_layers"),
            heads="n_head",
            hidden="hidden_size",
            defaults={"n_layer": 2, "n_head": 8, "hidden_size": 64, "vocab_size": 250880, "seq_length": 2048},
            attention=_BIASED,
            feed=Mlp(width=(), width_per_hidden=4, matrices=2, bias=YES),
            norm_bias=True,
            tied=True,
            beside=_bloom_norm,
        ),
        "chatglm": Family(
            layers=("num_layers",),
            vocab="padded_vocab_size",
            head_dim=("kv_channels",),
            kv_heads=chatglm_kv_heads,
            attention=Attention(qkv_bias=Flag(key="add_qkv_bias")),
            feed=Mlp(width=("ffn_hidden_size",)),
        ),
        "codegen": _GPT_J,
        "cohere": Family(
            defaults=defaults(40, 64, 8192, 22528, 256000, 8192),
            layer_norms=1,
            tied=True,
            attention=replace(_LLAMA_ATTENTION, qk_norm=QKNorm.FULL, qk_norm_key="use_qk_norm"),
        ),
        "dbrx": Family(
            layers=("n_layers",),
            heads="n_heads",
            hidden="d_model",
            kv_heads=attn_config_kv_heads,
            defaults={"n_layers": 24, "n_heads": 16, "d_model": 2048, "vocab_size": 32000, "max_seq_len": 2048},
            nested_defaults={"ffn_config": {"moe_num_experts": 4, "ffn_hidden_size": 3584}},
            experts=_dbrx_experts,
            feed_kinds=all_sparse,
        ),
        "deepseek": Family(
            defaults=defaults(30, 32, 4096, 11008, 102400, 2048),
            attention=_LLAMA_ATTENTION,
            experts=Experts(count=("n_routed_experts",)),
            feed_kinds=where_there_are("n_routed_experts"),
        ),
        "dots1": Family(
            defaults=defaults(
                62,
                32,
                4096,
                10944,
                152064,
                2048,
                num_key_value_heads=32,
                moe_intermediate_size=1408,
                first_k_dense_replace=0,
            ),
            attention=replace(_LLAMA_ATTENTION, qk_norm=QKNorm.PER_HEAD),
            experts=Experts(count=("n_routed_experts",)),
            feed_kinds=where_there_are("n_routed_experts"),
        ),
        "ernie4_5": Family(
            defaults=defaults(18, 16, 1024, 3072, 103424, 131072, num_key_value_heads=2, head_dim=128),
            attention=Attention(qkv_bias=Flag(key="use_bias"), output_bias=Flag(key="use_bias")),
            feed=Mlp(bias=Flag(key="use_bias")),
            tied=True,
        ),
        "ernie4_5_moe": _ERNIE_MOE,
        "ernie4_5_moe_vl": replace(_ERNIE_MOE, towers=True),
        "ernie4_5_vl_moe_text": replace(_ERNIE_MOE, towers=True),
        "exaone": Family(
            layers=("num_layers", "num_hidden_layers"), feed=Mlp(width=("intermediate_size",), width_per_hidden=4)
        ),
        "falcon": Family(
            defaults=defaults(32, 71, 4544, 0, 65024, 2048),
            kv_heads=falcon_kv_heads,
            attention=Attention(qkv_bias=Flag(key="bias"), output_bias=Flag(key="bias")),
            feed=Mlp(width=("ffn_hidden_size",), width_per_hidden=4, matrices=2, bias=Flag(key="bias")),
            norm_bias=True,
            layer_norms=0,
            per_layer=_falcon_norms,
            tied=True,
        ),
        "gemma": Family(
            defaults=defaults(28, 16, 3072, 24576, 256000, 8192, num_key_value_heads=16, head_dim=256),
            attention=_LLAMA_ATTENTION,
            tied=True,
        ),
        "glm": Family(
            defaults=defaults(40, 32, 4096, 13696, 151552, 131072, num_key_value_heads=2, head_dim=128),
            attention=Attention(qkv_bias=Flag(default=True, key="attention_bias")),
        ),
        "glm4v_moe_text": _GLM4_MOE,
        "glm4v_text": replace(_GLM4, towers=True),
        "glm4": _GLM4,
        "glm4_moe": _GLM4_MOE,
        "gpt2": _GPT2,
        "gpt_bigcode": replace(_GPT2, kv_heads=bigcode_kv_heads),
        "gpt_neox": Family(
            defaults=defaults(44, 64, 6144, 24576, 50432, 2048),
            attention=Attention(
                qkv_bias=Flag(default=True, key="attention_bias"), output_bias=Flag(default=True, key="attention_bias")
            ),
            feed=Mlp(matrices=2, bias=YES),
            norm_bias=True,
        ),
        "gptj": _GPT_J,
        "granite": replace(
            LLAMA, defaults=defaults(32, 32, 4096, 11008, 32000, 2048), kinds=listed("layer_types", all_of("full"))
        ),
        "granitemoe": _GRANITE_MOE,
        "granitemoeshared": _GRANITE_MOE,
        "grok-1": replace(MIXTRAL, exact=False),
        "helium": Family(
            defaults=defaults(24, 20, 2560, 7040, 48000, 4096, num_key_value_heads=20, head_dim=128),
            attention=_LLAMA_ATTENTION,
            feed=Mlp(bias=Flag(key="mlp_bias")),
        ),
        "hunyuan": _HUNYUAN,
        "hunyuan_moe": _HUNYUAN,
        "hunyuan_v1_dense": _HUNYUAN_V1,
        "hunyuan_v1_moe": replace(
            _HUNYUAN_V1,
            defaults={**_HUNYUAN.defaults, "num_shared_expert": 1},
            feed_kinds=from_layer("moe_layer_num_skipped"),
        ),
        "internlm": Family(
            attention=Attention(qkv_bias=Flag(default=True, key="bias"), output_bias=Flag(default=True, key="bias"))
        ),
        "internlm2": Family(attention=Attention(qkv_bias=Flag(key="bias"), output_bias=Flag(key="bias"))),
        "internlm3": Family(
            attention=Attention(qkv_bias=Flag(key="qkv_bias"), output_bias=Flag(key="bias")),
            feed=Mlp(bias=Flag(key="bias")),
        ),
        "iquestcoder": _LLAMA_LIKE,
        "llama": LLAMA,
        "llava": replace(LLAMA, towers=True),
        "mimo": replace(QWEN2, drafts=drafts_like("num_nextn_predict_layers", FULL)),
        "minicpm": replace(LLAMA, tied=True, exact=False),
        "minimax_m2": Family(
            defaults=defaults(
                62, 48, 3072, 1536, 200064, 196608, num_key_value_heads=8, head_dim=128, num_local_experts=256
            ),
            attention=Attention(qk_norm=QKNorm.FULL),
            experts=Experts(count=("num_local_experts",), width=("intermediate_size",), shared_count=()),
            feed_kinds=all_sparse,
            drafts=drafts_like("num_mtp_modules", FULL, keys=("mtp_transformer_layers",)),
        ),
        "ministral3": Family(
            defaults=defaults(34, 32, 4096, 14336, 131072, 262144, num_key_value_heads=8, head_dim=128),
            kinds=_IF_WINDOWED,
        ),
        "mistral": MISTRAL,
        "mixtral": MIXTRAL,
        "mpt": Family(
            layers=("n_layers",),
            heads="n_heads",
            hidden="d_model",
            kv_heads=attn_config_kv_heads,
            defaults={"n_layers": 24, "n_heads": 16, "d_model": 2048, "vocab_size": 50368, "max_seq_len": 2048},
            feed=Mlp(width=("ffn_hidden_size",), width_per_hidden=4, matrices=2),
            tied=True,
        ),
        "nemotron": Family(
            defaults=defaults(32, 48, 6144, 24576, 256000, 4096),
            attention=_LLAMA_ATTENTION,
            feed=Mlp(matrices=2, bias=Flag(key="mlp_bias")),
            norm_bias=True,
        ),
        "nemotron-nas": Family(
            kv_heads=_decilm_kv_heads,
            kinds=_decilm_kinds,
            attention=replace(_LLAMA_ATTENTION, heads=_heads_of_kind),
            feed_kinds=_decilm_feeds,
            layer_norms=2,
            exact=False,
        ),
        "olmo": _OLMO,
        "olmo2": replace(_OLMO, attention=replace(_LLAMA_ATTENTION, qk_norm=QKNorm.FULL), layer_norms=2, final_norms=1),
        "olmoe": Family(
            defaults=defaults(16, 16, 2048, 2048, 50304, 4096, num_experts=64),
            attention=replace(_LLAMA_ATTENTION, qk_norm=QKNorm.FULL),
            experts=Experts(width=("intermediate_size",), shared_count=()),
            feed_kinds=all_sparse,
        ),
        "opt": Family(
            defaults={**defaults(12, 12, 768, 3072, 50272, 2048), "ffn_dim": 3072},
            attention=_BIASED,
            feed=Mlp(width=("ffn_dim",), matrices=2, bias=YES),
            norm_bias=True,
            tied=True,
            extra_positions=2,
            table_width="word_embed_proj_dim",
        ),
        "orion": Family(
            defaults=defaults(40, 40, 5120, 15360, 84608, 4096), norm_bias=True, attention=_LLAMA_ATTENTION
        ),
        "persimmon": Family(
            defaults=defaults(36, 64, 4096, 16384, 262144, 16384),
            attention=replace(_BIASED, qk_norm=QKNorm.PER_HEAD, qk_norm_key="qk_layernorm"),
            feed=Mlp(matrices=2, bias=YES),
            norm_bias=True,
            exact=False,
        ),
        "phi": Family(
            defaults=defaults(24, 32, 2048, 8192, 51200, 2048),
            attention=_BIASED,
            feed=Mlp(matrices=2, bias=YES),
            norm_bias=True,
            layer_norms=1,
            head_bias=YES,
        ),
        "phi3": _PHI3,
        "phi3_v": replace(_PHI3, towers=True),
        "phi3small": Family(
            defaults=defaults(32, 32, 4096, 14336, 100352, 8192, num_key_value_heads=8, ff_intermediate_size=14336),
            attention=Attention(
                qkv_bias=Flag(default=True, key="attention_bias"), output_bias=Flag(default=True, key="attention_bias")
            ),
            feed=Mlp(width=("ff_intermediate_size",), bias=YES),
            norm_bias=True,
            tied=True,
            # Every n-th layer is dense, the others are block-sparse: both keep every token.
            ignored=("dense_attention_every_n_layers",),
            exact=False,
        ),
        "phi4": _PHI3,
        "phi4mm": replace(_PHI3, towers=True),
        "phi4_multimodal": replace(
            _PHI3, defaults=defaults(32, 32, 3072, 8192, 200064, 131072, num_key_value_heads=8), towers=True
        ),
        "phimoe": Family(
            defaults=defaults(32, 32, 4096, 6400, 32064, 131072, num_key_value_heads=8, num_local_experts=16),
            kinds=_IF_WINDOWED,
            attention=_LLAMA_ATTENTION,
            norm_bias=True,
            experts=Experts(count=("num_local_experts",), width=("intermediate_size",), shared_count=()),
            feed_kinds=all_sparse,
            head_bias=Flag(key="lm_head_bias"),
        ),
        "qwen": Family(head_dim=("kv_channels",), attention=_QKV_BIASED, feed=Mlp(halves=2), tied=False),
        "qwen2": QWEN2,
        "qwen2_5_vl": QWEN2_VL,
        "qwen2_5_vl_text": QWEN2_VL,
        "qwen2_moe": replace(
            QWEN2,
            defaults=defaults(
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
            experts=Experts(shared_width=("shared_expert_intermediate_size",), shared_gate=True),
        ),
        "qwen2_vl": QWEN2_VL,
        "qwen2_vl_text": QWEN2_VL,
        "qwen3": QWEN3,
        "qwen2_5_omni_text": QWEN2_VL,
        "qwen3_moe": QWEN3_MOE,
        "qwen3_omni_moe_text": replace(
            QWEN3_MOE,
            defaults=defaults(
                28, 28, 2048, 18944, 3584, 32768, num_key_value_heads=4, moe_intermediate_size=768, num_experts=128
            ),
            towers=True,
            heads_divide=False,
        ),
        "qwen3_vl_moe_text": replace(
            QWEN3_MOE,
            defaults=defaults(
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
        "qwen3_vl_text": replace(QWEN3, defaults={**QWEN3.defaults, "max_position_embeddings": 128000}, towers=True),
        "seed_oss": Family(
            defaults=defaults(64, 80, 4096, 27648, 155136, 524288, num_key_value_heads=8, head_dim=128),
            attention=Attention(
                qkv_bias=Flag(default=True, key="attention_bias"), output_bias=Flag(key="attention_out_bias")
            ),
            feed=Mlp(bias=Flag(key="mlp_bias")),
        ),
        "smollm3": Family(
            defaults=defaults(36, 16, 2048, 11008, 128256, 32768, num_key_value_heads=4),
            kinds=_IF_FLAGGED,
            attention=_LLAMA_ATTENTION,
            feed=Mlp(bias=Flag(key="mlp_bias")),
            tied=True,
        ),
        "solar": _LLAMA_LIKE,
        "stablelm": Family(
            defaults=defaults(32, 32, 2560, 6912, 50304, 4096, num_key_value_heads=32),
            attention=Attention(qkv_bias=Flag(key="use_qkv_bias")),
            norm_bias=True,
        ),
        "starcoder2": Family(
            defaults=defaults(30, 24, 3072, 12288, 49152, 4096, num_key_value_heads=2),
            kinds=_IF_WINDOWED,
            attention=Attention(qkv_bias=_USE_BIAS, output_bias=_USE_BIAS),
            feed=Mlp(matrices=2, bias=_USE_BIAS),
            norm_bias=True,
            tied=True,
        ),
        "xverse": Family(),
        "yuan": Family(exact=False),
    }
)
"""By `model_type`."""
