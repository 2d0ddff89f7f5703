"""Model types with multi-head latent attention, and DeepSeek-V4 with its compressed streams.

Source: the configuration and model classes of transformers 5.24 and vLLM 0.32.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from kvplan.config_reader import ConfigReader, shown
from kvplan.kv_layout.layers import AttentionKind
from kvplan.models.attention import Attention, Heads, plain_heads
from kvplan.models.family import Family, defaults, drafts_like
from kvplan.models.feeds import Experts, Mlp
from kvplan.models.latent import WITH_INDEX, WITHOUT_INDEX, LatentAttention
from kvplan.models.layer_parts import KeptRows, LayerParts, RowUse
from kvplan.models.shape import Built, LayerKind, ModelShape, together
from kvplan.models.sparse_layers import all_sparse, where_there_are
from kvplan.models.traits import Flag
from kvplan.parameters import Piece, Pieces, Role

_BIAS = Flag(key="attention_bias")
_LATENT = LatentAttention(bias=_BIAS)
_EXPERTS = Experts(count=("n_routed_experts",))


def index_layers(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    """Layers have an index of keys where the configuration speaks of one; a shared index belongs to another layer."""
    if not reader.has("index_topk") and not reader.has_default("index_topk"):
        return [WITHOUT_INDEX] * num_layers
    if not reader.has("indexer_types"):
        return [WITH_INDEX] * num_layers
    words = reader.items("indexer_types", length=num_layers)
    return [WITH_INDEX if word == "full" else WITHOUT_INDEX for word in words]


def _dense_heads(shape: ModelShape, kind: LayerKind) -> Heads:
    """Without latents, heads are of `qk_nope_head_dim` and `qk_rope_head_dim` together, where those are stated."""
    reader, heads = shape.reader, plain_heads(shape, kind)
    nope, rope = (reader.optional_count(key, minimum=0) or 0 for key in ("qk_nope_head_dim", "qk_rope_head_dim"))
    size = nope + rope or heads.key_size
    return replace(heads, key_size=size, value_size=reader.optional_count("v_head_dim", minimum=0) or size)


def _latent_drafts(shape: ModelShape, family: Family) -> tuple[LayerParts, ...]:
    """A draft layer is one more layer of the last kind, with an index where the model has any."""
    has_index = shape.reader.has("index_topk")
    return drafts_like("num_nextn_predict_layers", WITH_INDEX if has_index else WITHOUT_INDEX)(shape, family)


def latent_family(**changes: object) -> Family:
    """Return a type with DeepSeek-V3's spellings and some differences."""
    base = Family(
        head_dim=(),
        kinds=index_layers,
        # They name layers with an index; which of these own it is said elsewhere.
        ignored=("layer_types",),
        mixers={"latent": _LATENT},
        experts=_EXPERTS,
        drafts=_latent_drafts,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


_V3_DEFAULTS = defaults(
    61,
    128,
    7168,
    18432,
    129280,
    163840,
    moe_intermediate_size=2048,
    n_routed_experts=256,
    n_shared_experts=1,
    first_k_dense_replace=3,
    kv_lora_rank=512,
    q_lora_rank=1536,
    qk_rope_head_dim=64,
    qk_nope_head_dim=128,
    v_head_dim=128,
)
_V3 = latent_family(defaults={**_V3_DEFAULTS, "max_position_embeddings": 4096})
_V32 = latent_family(defaults={**_V3_DEFAULTS, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64})


def _longcat_experts(shape: ModelShape, kind: LayerKind) -> Built:
    """LongCat: two MLPs, and experts of which some do nothing; its class allocates two matrices for those too."""
    reader, hidden = shape.reader, shape.geometry.hidden_size
    zeros = reader.optional_count("zero_expert_num", minimum=0)
    zeros = reader.count("zero_expert_num") if zeros is None and reader.has_default("zero_expert_num") else zeros or 0
    width = reader.count("expert_ffn_hidden_size")
    experts = Experts(count=("n_routed_experts",), width=("expert_ffn_hidden_size",), shared_count=())(shape, kind)
    idle = Built(pieces=(Piece(zeros * hidden), Piece(zeros * 2 * hidden * width, Role.UNLOADED)))
    mlp = Mlp(width=("ffn_hidden_size",))
    return experts + idle + mlp(shape, kind) + mlp(shape, kind)


# DeepSeek-V4: every layer keeps raw vectors of a window. Layers with a ratio keep a vector for so many tokens besides,
# and those with ratio 4 an index key for each of these.
_INDEXED_RATIO = 4


def _v4_layers(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    """Layers have a ratio each, or a word for which ratios are stated."""
    if not reader.has("compress_ratios") and reader.has("layer_types"):
        return [_v4_layer(reader, word) for word in reader.items("layer_types", length=num_layers)]
    if not reader.has("compress_ratios"):
        raise reader.refuse("key 'compress_ratios' is missing")
    ratios = reader.counts("compress_ratios", maximum=65_536)
    if len(ratios) < num_layers:
        raise reader.refuse(f"compress_ratios: expected {num_layers} entries, got {len(ratios)}")
    return [LayerKind("compressed", ratio) for ratio in ratios[:num_layers]]


def _v4_layer(reader: ConfigReader, word: object) -> LayerKind:
    usual = {"sliding_attention": 0, "compressed_sparse_attention": _INDEXED_RATIO, "heavily_compressed_attention": 128}
    if not isinstance(word, str) or word not in usual:
        raise reader.refuse(f"layer_types: layers of kind {shown(word)} are not known here; known: {', '.join(usual)}")
    stated = reader.nested("compress_rates").optional_count(word, maximum=65_536)
    return LayerKind("compressed", stated or usual[word])


def _v4_attention(shape: ModelShape, kind: LayerKind) -> Built:
    reader, sizes = shape.reader, shape.geometry
    hidden, heads, size = sizes.hidden_size, sizes.num_attention_heads, sizes.head_dim
    query_rank, groups, rank = reader.count("q_lora_rank"), reader.count("o_groups"), reader.count("o_lora_rank")
    window = KeptRows(
        kind=AttentionKind.SLIDING_WINDOW,
        num_heads=1,
        key_size=size,
        value_size=0,
        reach=reader.count("sliding_window"),
    )
    pieces = (
        Piece(hidden * query_rank + hidden * size, Role.ATTENTION),
        Piece(query_rank * heads * size, Role.ATTENTION, heads),
        Piece(rank * heads * size, Role.ATTENTION, groups),
        Piece(groups * rank * hidden, Role.ATTENTION, groups),
        Piece(heads, shards=heads),
        Piece(query_rank + size),
    )
    return Built((window,), pieces) + _compressed(shape, kind.size)


def _compressed(shape: ModelShape, ratio: int) -> Built:
    if ratio == 0:
        return Built()
    reader, hidden, size = shape.reader, shape.geometry.hidden_size, shape.geometry.head_dim
    rows = KeptRows(kind=AttentionKind.MLA, num_heads=1, key_size=size, value_size=0, tokens_per_row=ratio)
    if ratio != _INDEXED_RATIO:
        return Built((rows,), (Piece(2 * size * hidden, Role.ATTENTION), Piece(ratio * size + size)))
    key, heads = reader.count("index_head_dim"), reader.count("index_n_heads")
    index = KeptRows(
        kind=AttentionKind.MLA, num_heads=1, key_size=key, value_size=0, tokens_per_row=ratio, use=RowUse.INDEX
    )
    # Overlapping compression projects twice the width.
    projections = 4 * size * hidden + 4 * key * hidden + reader.count("q_lora_rank") * heads * key
    return Built(
        (rows, index),
        (
            Piece(projections, Role.ATTENTION),
            Piece(hidden * heads + ratio * 2 * (size + key) + size + key),
        ),
    )


def _hyper_connections(shape: ModelShape, kind: LayerKind) -> Pieces:  # noqa: ARG001 - all layers are alike
    copies = shape.reader.count("hc_mult")
    mixes = (2 + copies) * copies
    return (Piece(2 * (mixes * copies * shape.geometry.hidden_size + mixes + 3)),)


def _hyper_head(shape: ModelShape) -> Pieces:
    copies = shape.reader.count("hc_mult")
    return (Piece(copies * copies * shape.geometry.hidden_size + copies + 1),)


_V4 = Family(
    defaults=defaults(
        43,
        64,
        4096,
        2048,
        129280,
        1048576,
        head_dim=512,
        moe_intermediate_size=2048,
        n_routed_experts=256,
        n_shared_experts=1,
        q_lora_rank=1024,
        o_groups=8,
        o_lora_rank=1024,
        sliding_window=128,
        hc_mult=4,
        index_head_dim=128,
        index_n_heads=64,
        index_topk=512,
    ),
    kv_heads=lambda reader, _: reader.optional_count("num_key_value_heads") or 1,
    kinds=_v4_layers,
    mixers={"compressed": _v4_attention},
    experts=_EXPERTS,
    feed_kinds=all_sparse,
    per_layer=_hyper_connections,
    beside=_hyper_head,
    drafts=drafts_like("num_nextn_predict_layers", LayerKind("compressed", 0)),
    ignored=("index_topk", "num_hash_layers"),
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "deepseek_v2": latent_family(
            defaults=defaults(
                32,
                32,
                4096,
                11008,
                102400,
                2048,
                first_k_dense_replace=0,
                n_shared_experts=2,
                n_routed_experts=64,
                moe_intermediate_size=1407,
                qk_rope_head_dim=64,
                qk_nope_head_dim=128,
                v_head_dim=128,
                kv_lora_rank=512,
                q_lora_rank=1536,
            ),
            mixers={"latent": replace(_LATENT, plain=Attention(heads=_dense_heads, qkv_bias=_BIAS, output_bias=_BIAS))},
        ),
        "deepseek_v3": _V3,
        "deepseek_v32": _V32,
        "deepseek_v4": _V4,
        "glm4_moe_lite": latent_family(
            defaults=defaults(
                47,
                20,
                2048,
                10240,
                154880,
                202752,
                moe_intermediate_size=1536,
                n_routed_experts=64,
                n_shared_experts=1,
                first_k_dense_replace=1,
                kv_lora_rank=512,
                q_lora_rank=768,
                qk_rope_head_dim=64,
                qk_nope_head_dim=192,
                v_head_dim=256,
            )
        ),
        "glm_moe_dsa": latent_family(
            defaults=defaults(
                78,
                64,
                6144,
                12288,
                154880,
                202752,
                moe_intermediate_size=2048,
                n_routed_experts=256,
                n_shared_experts=1,
                first_k_dense_replace=3,
                kv_lora_rank=512,
                q_lora_rank=2048,
                qk_rope_head_dim=64,
                qk_nope_head_dim=192,
                v_head_dim=256,
                index_topk=2048,
                index_head_dim=128,
                index_n_heads=32,
            )
        ),
        "kimi_k2": _V3,
        "longcat_flash": Family(
            head_dim=(),
            layers=("num_layers", "num_hidden_layers"),
            defaults={
                "num_layers": 28,
                "num_attention_heads": 64,
                "hidden_size": 6144,
                "vocab_size": 131072,
                "max_position_embeddings": 131072,
                "ffn_hidden_size": 12288,
                "expert_ffn_hidden_size": 2048,
                "n_routed_experts": 512,
                "zero_expert_num": 256,
                "kv_lora_rank": 512,
                "q_lora_rank": 1536,
                "qk_rope_head_dim": 64,
                "qk_nope_head_dim": 128,
                "v_head_dim": 128,
            },
            kinds=lambda _, num_layers: [LayerKind("two_latents")] * num_layers,
            mixers={"two_latents": together(_LATENT, _LATENT)},
            experts=_longcat_experts,
            feed_kinds=all_sparse,
            layer_norms=4,
        ),
        "minicpm3": latent_family(
            defaults=defaults(
                62,
                40,
                2560,
                6400,
                73448,
                32768,
                kv_lora_rank=256,
                q_lora_rank=768,
                qk_rope_head_dim=32,
                qk_nope_head_dim=64,
                v_head_dim=64,
            ),
            feed_kinds=where_there_are("n_routed_experts"),
            tied=True,
            latent_in_vllm=False,
        ),
        "mistral4": latent_family(
            defaults=defaults(
                36,
                32,
                4096,
                12288,
                131072,
                1048576,
                moe_intermediate_size=2048,
                n_routed_experts=128,
                n_shared_experts=1,
                first_k_dense_replace=0,
                kv_lora_rank=256,
                q_lora_rank=1024,
                qk_rope_head_dim=64,
                qk_nope_head_dim=64,
                v_head_dim=128,
            )
        ),
    }
)
"""By `model_type`."""
