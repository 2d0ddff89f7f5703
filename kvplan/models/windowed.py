"""Model types in which some layers attend to a window or a chunk of tokens only, or share the KV of others.

Source: the configuration and model classes of transformers 5.24, and of vLLM 0.32 for types that it alone knows.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from kvplan.config_reader import ConfigReader
from kvplan.kv_layout.layers import AttentionKind
from kvplan.models.attention import Attention, Heads, plain_heads
from kvplan.models.family import Family, defaults, drafts_like
from kvplan.models.feeds import DENSE, SPARSE, Experts, Mlp
from kvplan.models.layer_kinds import all_full, alternating, by_number, every_nth, if_windowed, listed
from kvplan.models.shape import CHUNKED, FULL, SLIDING, Built, KindRule, LayerKind, Mixer, ModelShape
from kvplan.models.sparse_layers import all_sparse, from_layer, interleaved, usual
from kvplan.models.traits import YES, Flag, QKNorm
from kvplan.parameters import Piece, Pieces, Role

_ATTENTION_BIAS = Flag(key="attention_bias")
_LLAMA_ATTENTION = Attention(qkv_bias=_ATTENTION_BIAS, output_bias=_ATTENTION_BIAS)
_FULL_SHARED, _SLIDING_SHARED = LayerKind("full_shared"), LayerKind("sliding_shared")
_PATTERN_KEYS = ("sliding_window_pattern", "_sliding_window_pattern")


def _interleaved_windows(n: int) -> KindRule:
    return listed("layer_types", if_windowed(every_nth(n, keys=_PATTERN_KEYS)))


def _gpt_neo_layers(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    """GPT-Neo lists its layers, or patterns with how often each is repeated: `[[["global", "local"], 12]]`."""
    if reader.has("attention_layers"):
        return listed("attention_layers", all_full)(reader, num_layers)
    if not reader.has("attention_types"):
        return alternating(FULL, SLIDING)(reader, num_layers)
    words: list[object] = []
    for entry in reader.items("attention_types"):
        if not (
            isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list) and isinstance(entry[1], int)
        ):
            raise reader.refuse("attention_types: expected pairs of a list of kinds and a number")
        words += entry[0] * min(max(entry[1], 0), num_layers)
    kinds = {"global": FULL, "local": SLIDING}
    unknown = [word for word in words if not isinstance(word, str) or word not in kinds]
    if unknown or len(words) != num_layers:
        raise reader.refuse(f"attention_types: expected {num_layers} layers, each global or local")
    return [kinds[str(word)] for word in words]


def _llama4_layers(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    """Llama 4: layers without rotary positions (0 in the list, else every fourth) see all, the others a chunk."""
    if not reader.has("attention_chunk_size") and not reader.has_default("attention_chunk_size"):
        return all_full(reader, num_layers)
    if reader.has("layer_types"):
        return listed("layer_types", all_full)(reader, num_layers)
    if reader.get("no_rope_layers"):
        return by_number("no_rope_layers", {0: FULL, 1: CHUNKED})(reader, num_layers)
    return every_nth(reader.optional_count("no_rope_layer_interval") or 4, most=CHUNKED)(reader, num_layers)


def _other_heads(prefix: str) -> Callable[[ModelShape, LayerKind], Heads]:
    """Heads that sliding layers have under keys of their own; each falls back on the full layers' (MiMo-V2)."""

    def rule(shape: ModelShape, kind: LayerKind) -> Heads:
        reader, heads = shape.reader, _value_heads(shape, kind)
        return Heads(
            query=reader.optional_count(f"{prefix}_num_attention_heads") or heads.query,
            kv=reader.optional_count(f"{prefix}_num_key_value_heads") or _default_kv(reader, prefix, heads),
            key_size=reader.optional_count(f"{prefix}_head_dim") or heads.key_size,
            value_size=reader.optional_count(f"{prefix}_v_head_dim") or heads.value_size,
        )

    return rule


def _default_kv(reader: ConfigReader, prefix: str, heads: Heads) -> int:
    key = f"{prefix}_num_key_value_heads"
    return reader.count(key) if reader.has_default(key) else heads.kv


def _value_heads(shape: ModelShape, kind: LayerKind) -> Heads:
    heads = plain_heads(shape, kind)
    return replace(heads, value_size=shape.reader.optional_count("v_head_dim") or heads.key_size)


def _step_sliding_heads(shape: ModelShape, kind: LayerKind) -> Heads:
    """Step 3.5 keeps the heads of sliding layers in an object of their own."""
    heads, other = plain_heads(shape, kind), shape.reader.nested("attention_other_setting")
    return Heads(
        query=other.optional_count("num_attention_heads") or heads.query,
        kv=other.optional_count("num_attention_groups") or heads.kv,
        key_size=other.optional_count("head_dim") or heads.key_size,
        value_size=other.optional_count("head_dim") or heads.value_size,
    )


def _step_sparse_layers(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    """Step 3.5 lists the numbers of the layers with experts in text: `3,4,5`."""
    text = reader.get("moe_layers_enum")
    if not isinstance(text, str):
        return usual(reader, num_layers)
    numbers = {int(part) for part in text.split(",") if part.strip().isdecimal()}
    return [SPARSE if layer in numbers else DENSE for layer in range(num_layers)]


def _sharing_layers(n: int) -> KindRule:
    """Sliding and full layers, of which the last `num_kv_shared_layers` read the KV of earlier ones."""
    windows = _interleaved_windows(n)

    def rule(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
        shared = reader.optional_count("num_kv_shared_layers", minimum=0)
        if shared is None:
            shared = reader.count("num_kv_shared_layers") if reader.has_default("num_kv_shared_layers") else 0
        if shared >= num_layers:
            raise reader.refuse(f"num_kv_shared_layers: {shared} of {num_layers} layers leave none with KV of its own")
        own = num_layers - shared
        kinds = windows(reader, num_layers)
        readers = {FULL: _FULL_SHARED, SLIDING: _SLIDING_SHARED}
        return kinds[:own] + [readers[kind] for kind in kinds[own:]]

    return rule


def _sharing(full: Attention, sliding: Attention) -> Mapping[str, Mixer]:
    sliding = replace(sliding, kind=AttentionKind.SLIDING_WINDOW)
    return {
        "full": full,
        "sliding": sliding,
        _FULL_SHARED.name: replace(full, own_kv=False),
        _SLIDING_SHARED.name: replace(sliding, own_kv=False),
    }


def _gemma4_full_heads(shape: ModelShape, kind: LayerKind) -> Heads:
    """Full layers of Gemma 4 have fewer and larger heads."""
    reader, heads = shape.reader, plain_heads(shape, kind)
    size = reader.optional_count("global_head_dim") or 512
    return replace(
        heads,
        kv=reader.optional_count("num_global_key_value_heads") or heads.kv,
        key_size=size,
        value_size=size,
    )


def _gemma4_full(shape: ModelShape, kind: LayerKind, *, own_kv: bool = True) -> Built:
    """With `attention_k_eq_v`, full layers make values from keys: no projection, but kept beside them."""
    same = shape.reader.flag("attention_k_eq_v", default=False)
    attention = replace(_GEMMA_ATTENTION, heads=_gemma4_full_heads, value_projection=not same, own_kv=own_kv)
    return attention(shape, kind)


def _gemma4_feeds(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    """With `use_double_wide_mlp`, layers that share KV have MLPs of twice the width; experts come beside the MLP."""
    width = reader.count("intermediate_size")
    shared = reader.optional_count("num_kv_shared_layers", minimum=0) or 0
    wide = shared if reader.flag("use_double_wide_mlp", default=False) else 0
    return [LayerKind(DENSE.name, width if layer < num_layers - wide else 2 * width) for layer in range(num_layers)]


def _gemma4_feed(shape: ModelShape, kind: LayerKind) -> Built:
    built = Mlp()(shape, kind)
    if not shape.reader.flag("enable_moe_block", default=False):
        return built
    hidden, count = shape.geometry.hidden_size, shape.reader.count("num_experts")
    # Three norms more, a scale of the router's input, and one for each expert.
    extra = Built(pieces=(Piece(4 * hidden + count),))
    return built + Experts(shared_count=())(shape, kind) + extra


def _per_layer_inputs(shape: ModelShape, kind: LayerKind) -> Pieces:  # noqa: ARG001 - all layers are alike
    hidden = shape.geometry.hidden_size
    width = _per_layer_width(shape.reader)
    return (Piece(2 * hidden * width, Role.MLP, width), Piece(hidden)) if width else ()


def _per_layer_width(reader: ConfigReader) -> int:
    width = reader.optional_count("hidden_size_per_layer_input", minimum=0)
    return (256 if reader.has_default("hidden_size_per_layer_input") else 0) if width is None else width


def _per_layer_tables(shape: ModelShape) -> Pieces:
    """Gemma 3n and 4 add to every layer's input rows of a table of their own."""
    reader, sizes = shape.reader, shape.geometry
    width = _per_layer_width(reader) * sizes.num_layers
    if not width:
        return ()
    rows = reader.count("vocab_size_per_layer_input")
    return (
        Piece(rows * width, Role.TABLE, rows),
        Piece(width * sizes.hidden_size, Role.MLP, width),
        Piece(_per_layer_width(reader)),
    )


def _gemma3n_layer(shape: ModelShape, kind: LayerKind) -> Pieces:
    """Alternating updates over several copies of the input, and a learned residual of low rank."""
    reader, hidden = shape.reader, shape.geometry.hidden_size
    copies, rank = reader.count("altup_num_inputs"), reader.count("laurel_rank")
    updates = 2 * hidden + copies * copies + copies**3 + copies * hidden
    return (
        Piece(updates),
        Piece(2 * hidden * rank, Role.MLP),
        Piece(hidden),
        *_per_layer_inputs(shape, kind),
    )


def _gemma3n_beside(shape: ModelShape) -> Pieces:
    hidden, copies = shape.geometry.hidden_size, shape.reader.count("altup_num_inputs")
    return (*_per_layer_tables(shape), Piece(2 * (copies - 1) * hidden * hidden, Role.MLP))


def _gemma3n_feeds(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    """Widths of the MLPs may be listed layer by layer."""
    if not isinstance(reader.get("intermediate_size"), list):
        return [LayerKind(DENSE.name, reader.count("intermediate_size"))] * num_layers
    widths = reader.counts("intermediate_size", minimum=1)
    if len(widths) < num_layers:
        raise reader.refuse(f"intermediate_size: expected {num_layers} entries, got {len(widths)}")
    return [LayerKind(DENSE.name, width) for width in widths[:num_layers]]


_GEMMA_ATTENTION = replace(_LLAMA_ATTENTION, qk_norm=QKNorm.PER_HEAD)
_GEMMA2 = Family(
    defaults=defaults(26, 8, 2304, 9216, 256000, 8192, num_key_value_heads=4, head_dim=256, sliding_window=4096),
    kinds=listed("layer_types", if_windowed(alternating(SLIDING, FULL))),
    attention=_LLAMA_ATTENTION,
    layer_norms=4,
    tied=True,
)
_GEMMA3 = replace(
    _GEMMA2,
    defaults={**_GEMMA2.defaults, "vocab_size": 262208, "max_position_embeddings": 131072},
    kinds=_interleaved_windows(6),
    attention=_GEMMA_ATTENTION,
)
_EXAONE4 = Family(
    defaults=defaults(32, 32, 4096, 16384, 102400, 2048, num_key_value_heads=32, sliding_window=4096),
    kinds=_interleaved_windows(4),
    attention=Attention(qk_norm=QKNorm.PER_HEAD),
)
_STEP = Family(
    defaults=defaults(45, 64, 4096, 11264, 128815, 128000, num_key_value_heads=8, head_dim=128, sliding_window=512),
    kinds=listed("layer_types", if_windowed(every_nth(4))),
    attention=Attention(qk_norm=QKNorm.PER_HEAD),
    mixers={
        "sliding": Attention(kind=AttentionKind.SLIDING_WINDOW, qk_norm=QKNorm.PER_HEAD, heads=_step_sliding_heads)
    },
    feed_kinds=_step_sparse_layers,
    experts=Experts(
        count=("moe_num_experts", "num_experts", "n_routed_experts"),
        shared_count=("n_shared_experts",),
        shared_width=("share_expert_dim", "share_expert_dims"),
    ),
    drafts=drafts_like("num_nextn_predict_layers", SLIDING),
    exact=False,
)


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "afmoe": Family(
            defaults=defaults(
                32,
                16,
                2048,
                6144,
                200192,
                16384,
                num_key_value_heads=16,
                head_dim=128,
                sliding_window=1024,
                num_experts=64,
                moe_intermediate_size=1408,
                num_shared_experts=2,
                num_dense_layers=1,
            ),
            kinds=listed("layer_types", if_windowed(every_nth(4, keys=("global_attn_every_n_layers",)))),
            attention=replace(Attention(), qk_norm=QKNorm.PER_HEAD),
            experts=Experts(shared_count=("num_shared_experts",)),
            feed_kinds=from_layer("num_dense_layers"),
            layer_norms=4,
            exact=False,
        ),
        "cohere2": Family(
            defaults=defaults(40, 64, 8192, 22528, 256000, 8192, head_dim=128, sliding_window=4096),
            kinds=_interleaved_windows(4),
            attention=_LLAMA_ATTENTION,
            layer_norms=1,
            tied=True,
        ),
        "cwm": Family(
            defaults=defaults(
                64, 48, 6144, 21504, 128256, 131072, num_key_value_heads=8, head_dim=128, sliding_window=8192
            ),
            kinds=listed("layer_types", lambda _, n: [FULL if layer % 4 == 0 else SLIDING for layer in range(n)]),
        ),
        "exaone4": _EXAONE4,
        "exaone4_5_text": _EXAONE4,
        "exaone_moe": replace(
            _EXAONE4,
            defaults={
                **_EXAONE4.defaults,
                "moe_intermediate_size": 1024,
                "num_experts": 64,
                "first_k_dense_replace": 1,
                "num_shared_experts": 1,
            },
            experts=Experts(shared_count=("num_shared_experts",)),
            drafts=drafts_like("num_nextn_predict_layers", FULL),
        ),
        "gemma2": _GEMMA2,
        "gemma3_text": _GEMMA3,
        "gemma3": _GEMMA3,
        "gemma3n_text": Family(
            defaults=defaults(
                35,
                8,
                2048,
                16384,
                262400,
                32768,
                num_key_value_heads=2,
                head_dim=256,
                sliding_window=512,
                num_kv_shared_layers=15,
                hidden_size_per_layer_input=256,
                vocab_size_per_layer_input=262144,
                altup_num_inputs=4,
                laurel_rank=64,
            ),
            kinds=_sharing_layers(5),
            attention=_GEMMA_ATTENTION,
            mixers=_sharing(_GEMMA_ATTENTION, _GEMMA_ATTENTION),
            feed_kinds=_gemma3n_feeds,
            layer_norms=4,
            per_layer=_gemma3n_layer,
            beside=_gemma3n_beside,
            tied=True,
            towers=True,
        ),
        "gemma4_text": Family(
            defaults=defaults(
                30,
                8,
                2304,
                9216,
                262144,
                131072,
                num_key_value_heads=4,
                head_dim=256,
                sliding_window=512,
                hidden_size_per_layer_input=256,
                vocab_size_per_layer_input=262144,
            ),
            kinds=_sharing_layers(6),
            attention=_GEMMA_ATTENTION,
            mixers={
                **_sharing(_GEMMA_ATTENTION, _GEMMA_ATTENTION),
                "full": _gemma4_full,
                _FULL_SHARED.name: lambda shape, kind: _gemma4_full(shape, kind, own_kv=False),
            },
            feed_kinds=_gemma4_feeds,
            feed=_gemma4_feed,
            layer_norms=4,
            per_layer=_per_layer_inputs,
            beside=_per_layer_tables,
            tied=True,
            towers=True,
        ),
        "gpt_neo": Family(
            layers=("num_layers",),
            heads="num_heads",
            defaults={
                "num_layers": 24,
                "num_heads": 16,
                "hidden_size": 2048,
                "vocab_size": 50257,
                "max_position_embeddings": 2048,
                "window_size": 256,
            },
            kinds=_gpt_neo_layers,
            ignored=("attention_types",),
            attention=Attention(output_bias=YES, reach=("window_size",)),
            feed=Mlp(width_per_hidden=4, matrices=2, bias=YES),
            norm_bias=True,
            tied=True,
            extra_positions=0,
        ),
        "gpt_oss": Family(
            defaults=defaults(
                36,
                64,
                2880,
                2880,
                201088,
                131072,
                num_key_value_heads=8,
                head_dim=64,
                sliding_window=128,
                num_local_experts=128,
            ),
            kinds=listed("layer_types", if_windowed(alternating(SLIDING, FULL))),
            attention=Attention(
                qkv_bias=Flag(default=True, key="attention_bias"),
                output_bias=Flag(default=True, key="attention_bias"),
                sinks=YES,
            ),
            experts=Experts(
                count=("num_local_experts", "num_experts"), width=("intermediate_size",), shared_count=(), bias=True
            ),
            feed_kinds=all_sparse,
        ),
        "llama4_text": Family(
            defaults=defaults(
                48,
                40,
                5120,
                8192,
                202048,
                131072,
                num_key_value_heads=8,
                head_dim=128,
                attention_chunk_size=8192,
                num_local_experts=16,
                intermediate_size_mlp=16384,
            ),
            kinds=_llama4_layers,
            attention=_LLAMA_ATTENTION,
            feed=Mlp(width=("intermediate_size_mlp",)),
            feed_kinds=interleaved,
            experts=Experts(
                count=("num_local_experts",), width=("intermediate_size",), shared_width=("intermediate_size",)
            ),
            towers=True,
        ),
        "mimo_v2_flash": Family(
            defaults=defaults(
                48,
                64,
                4096,
                16384,
                152576,
                131072,
                num_key_value_heads=4,
                head_dim=192,
                v_head_dim=128,
                swa_num_key_value_heads=8,
                sliding_window=128,
                n_routed_experts=256,
                moe_intermediate_size=2048,
            ),
            kinds=listed("layer_types", by_number("hybrid_layer_pattern", {0: FULL, 1: SLIDING})),
            attention=Attention(
                heads=_value_heads,
                qkv_bias=_ATTENTION_BIAS,
                sinks=Flag(key="add_full_attention_sink_bias"),
            ),
            mixers={
                "sliding": Attention(
                    kind=AttentionKind.SLIDING_WINDOW,
                    heads=_other_heads("swa"),
                    reach=("sliding_window", "sliding_window_size"),
                    qkv_bias=_ATTENTION_BIAS,
                    sinks=Flag(default=True, key="add_swa_attention_sink_bias"),
                )
            },
            experts=Experts(count=("n_routed_experts",)),
            # It repeats the window; no layer attends to chunks.
            ignored=("attention_chunk_size",),
            drafts=drafts_like("num_nextn_predict_layers", SLIDING),
        ),
        "ministral": Family(
            defaults=defaults(32, 32, 4096, 14336, 32000, 131072, num_key_value_heads=8, sliding_window=4096),
            kinds=listed("layer_types", if_windowed(lambda _, n: [SLIDING] * n)),
        ),
        "olmo3": Family(
            defaults=defaults(32, 32, 4096, 11008, 50304, 2048, num_key_value_heads=32, sliding_window=4096),
            kinds=_interleaved_windows(4),
            attention=replace(_LLAMA_ATTENTION, qk_norm=QKNorm.FULL),
        ),
        "step3p5": _STEP,
        "step3p7": _STEP,
        "vaultgemma": replace(_GEMMA2, layer_norms=2),
    }
)
"""By `model_type`."""
