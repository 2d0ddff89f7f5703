"""A `config.json` to a `ModelSpec`: which model type it is, its sizes, its layers and its weights."""

from collections.abc import Callable, Mapping

from kvengine.spec import KVDtype
from kvplan.config_reader import ConfigReader, shown
from kvplan.loading import did_you_mean
from kvplan.memory_model.shape import read_step_shape
from kvplan.model_spec import ModelSpec, has_states
from kvplan.models.family import Family
from kvplan.models.latent import unfolded_rows
from kvplan.models.lengths import length_notes, max_model_len, short_length
from kvplan.models.registry import ALIASES, NESTED, find_family, known_types
from kvplan.models.shape import Built, LayerKind, ModelShape
from kvplan.parameters import Geometry, Piece, WeightShape
from kvplan.quantization import read_quantization

_INNER_KEYS = ("text_config", "language_config", "llm_config")
_MAX_NESTING = 4
_MAX_LAYERS = 2_000
"""The deepest published model has 1,000; a plan works through each layer, many times for hints."""
_MAX_HEADS = 65_536


def model_from_config(
    config: Mapping[str, object],
    *,
    name: str,
    source: str,
    refuse_unread_keys: bool = False,
    assume_standard: bool = False,
) -> ModelSpec:
    """Read a model from the contents of a `config.json`.

    Args:
        config: The top level of the file.
        name: What to call the model.
        source: The file, for messages.
        refuse_unread_keys: Whether a key that planning does not read is an error, as in a profile.
        assume_standard: Whether a configuration that is not understood is taken as Llama-type attention in every layer.

    Raises:
        ConfigError: A key is damaged or missing, or the configuration is not understood.
    """
    outer = ConfigReader(config, source)
    plain, inner_type = _language_part(outer)
    model_type, family, assumption = _family(plain, inner_type, assume_standard=assume_standard)
    reader = plain.with_defaults(family.defaults, family.nested_defaults)
    geometry = _geometry(reader, family)
    shape = ModelShape(reader=reader, geometry=geometry)
    layers = _build_layers(family, shape)
    dtype = _dtype(reader) or _dtype(outer)
    quantization = read_quantization(reader) or read_quantization(outer)
    is_text = plain is outer and model_type.endswith("_text") and "Conditional" not in (_architecture(outer) or "")
    has_towers = (
        plain is not outer
        or (family.towers and not is_text)
        or outer.has("vision_config")
        or outer.has("mm_vision_tower")
    )
    draft_layers = () if assumption else family.drafts(shape, family)
    encoder_tokens = family.encoder_tokens(reader)
    weights = _weights(reader, outer, family, shape, layers)
    _read_the_rest(reader, family, assume_standard=assume_standard)
    if assume_standard and not assumption:
        assumption = _unread_caches(reader, family)
    kept = tuple(built.parts for built in layers)
    absent = tuple(f"{key} is absent: the class default {value:,} is used" for key, value in reader.defaulted.items())
    model = ModelSpec(
        name=name,
        architecture=_architecture(outer) or _architecture(plain) or model_type,
        geometry=geometry,
        layers=kept,
        draft_layers=draft_layers,
        encoder_tokens=encoder_tokens,
        vllm_rows=None if family.latent_in_vllm else unfolded_rows(shape),
        step=read_step_shape(reader, outer, geometry, is_hybrid=has_states(kept)),
        dtype=KVDtype.BFLOAT16 if dtype in (None, KVDtype.FLOAT32) else dtype,
        checkpoint_float32=dtype is KVDtype.FLOAT32,
        kv_scheme=quantization.kv_scheme if quantization else "",
        quantization=quantization,
        weights=weights,
        weights_unknown="its vision or audio part is not counted yet" if has_towers else "",
        assumption=f"standard attention is assumed in every layer: {assumption}" if assumption else "",
        short_length=short_length(reader, geometry),
        notes=(*_wrapper_notes(outer, plain, model_type), *length_notes(reader, geometry), *absent),
    )
    unread = next((key for key in config if key not in outer.asked), None)
    if refuse_unread_keys and unread is not None:
        raise outer.refuse(f"unknown key {unread!r}{did_you_mean(unread, outer.asked)}")
    return model


def _language_part(outer: ConfigReader) -> tuple[ConfigReader, str]:
    """Return the object that describes the language model, and its type where it does not say one.

    An object may hold another in its turn: `thinker_config` and in it `text_config`.
    """
    reader, inner_type = outer, ""
    for _ in range(_MAX_NESTING):
        model_type = reader.text("model_type") or inner_type
        key, default = NESTED.get(model_type) or _unknown_wrapper(reader, model_type)
        if not key or not isinstance(reader.get(key), Mapping):
            break
        reader, inner_type = reader.nested(key), default
    return reader, inner_type


def _unknown_wrapper(reader: ConfigReader, model_type: str) -> tuple[str, str]:
    """Return the key of a language model of a known type inside a type that is not known: the caches are its own.

    A type with layers of its own, or with needs, is something else and not a wrapper.
    """
    is_other = find_family(model_type) is not None or reader.peek("num_hidden_layers") is not None
    if not model_type or is_other or _unread_needs(reader, frozenset()):
        return "", ""
    return next((key for key in _INNER_KEYS if _states_known_type(reader.peek(key))), ""), ""


def _states_known_type(inner: object) -> bool:
    inner_type = inner.get("model_type") if isinstance(inner, Mapping) else None
    return isinstance(inner_type, str) and (inner_type in NESTED or find_family(inner_type) is not None)


def _wrapper_notes(outer: ConfigReader, plain: ConfigReader, model_type: str) -> tuple[str, ...]:
    """Say that a type which is not known was planned by the language model inside it."""
    stated = outer.text("model_type")
    if plain is outer or not stated or stated in NESTED:
        return ()
    return (f"model type {shown(stated)} is not known; planned by the {shown(model_type)} model inside it",)


def _family(reader: ConfigReader, inner_type: str, *, assume_standard: bool) -> tuple[str, Family, str]:
    """Return the model type, what is known of it, and why standard attention is assumed where it is not known."""
    model_type = reader.text("model_type") or inner_type
    model_type = ALIASES.get(model_type, {}).get(_architecture(reader) or "", model_type)
    family = find_family(model_type) if model_type else None
    if family is not None:
        return model_type, family, ""
    if assume_standard:
        named = f"model type {shown(model_type)} is not known" if model_type else "it states no model type"
        return model_type or "unknown", Family(exact=False), named
    if not model_type:
        raise reader.refuse("key 'model_type' is missing")
    parts = [reader, *(reader.nested(key) for key in _INNER_KEYS if isinstance(reader.get(key), Mapping))]
    found = [need for part in parts for need in _unread_needs(part, frozenset())]
    reason = f"it needs {', '.join(found)}" if found else "its layers are not known here"
    raise reader.refuse(
        f"model type {shown(model_type)} is not supported yet: {reason}",
        hint="--assume-standard plans it with Llama-type attention in every layer; "
        f"supported: {', '.join(known_types())}",
    )


def _architecture(outer: ConfigReader) -> str | None:
    listed = outer.get("architectures")
    return listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], str) else None


# What a configuration may say of layers that do not keep every token, by key: a test of its value, and its name. A
# family that understands a key has looked at it by the time its layers are built.
_Test = Callable[[object], bool]


def _is_set(value: object) -> bool:
    return value not in (None, False, 0, [], {})


def _has_other_layers(value: object) -> bool:
    return (
        value is not None
        and value != []
        and not (isinstance(value, list) and all(kind in ("full_attention", "attention") for kind in value))
    )


def _has_other_codes(value: object) -> bool:
    return value is not None and not (isinstance(value, list) and all(code == 1 for code in value))


_NEEDS: tuple[tuple[str, tuple[str, ...], _Test], ...] = (
    ("multi-head latent attention", ("kv_lora_rank",), _is_set),
    ("chunked attention", ("attention_chunk_size",), _is_set),
    ("layers of other kinds", ("layer_types",), _has_other_layers),
    ("layers of other kinds", ("attn_type_list",), _has_other_codes),
    ("layers that differ", ("block_configs", "hybrid_layer_pattern"), _is_set),
    (
        "interleaved sliding windows",
        ("sliding_window_pattern", "_sliding_window_pattern", "interleaved_sliding_window", "window_layers"),
        _is_set,
    ),
    ("local attention", ("attention_types", "dense_attention_every_n_layers", "attention_window_size"), _is_set),
    ("layers that share KV", ("num_kv_shared_layers", "use_cla"), _is_set),
    ("compressed KV", ("compress_ratios",), _is_set),
    (
        "a sparse-attention index",
        ("index_topk", "indexer_types", "index_topk_blocks", "sparse_attention_config"),
        _is_set,
    ),
    (
        "state-space or linear-attention layers",
        (
            "attn_layer_period",
            "attn_layer_indices",
            "hybrid_override_pattern",
            "layers_block_type",
            "full_attention_interval",
            "linear_attn_config",
            "linear_num_key_heads",
            "mamba_d_state",
            "mamba_expand",
            "ssm_state_size",
            "state_size",
            "lru_width",
            "conv_L_cache",
            "rescale_every",
        ),
        _is_set,
    ),
    ("cross-attention", ("cross_attention_layers", "add_cross_attention"), _is_set),
    ("an encoder", ("is_encoder_decoder",), _is_set),
)


_PATTERN_KEYS = {"sliding_window_pattern", "_sliding_window_pattern", "full_attention_interval"}


def _unread_needs(reader: ConfigReader, understood: frozenset[str] | set[str]) -> list[str]:
    """Return what a configuration needs beyond what was looked at, with the fields that say so."""
    found: dict[str, list[str]] = {}
    for what, keys, test in _NEEDS:
        fields = [
            f"{key} = {shown(reader.peek(key))}" for key in keys if key not in understood and test(reader.peek(key))
        ]
        if fields:
            found.setdefault(what, []).extend(fields)
    return [f"{what} ({', '.join(fields)})" for what, fields in found.items()]


def _unread_caches(reader: ConfigReader, family: Family) -> str:
    understood = {*reader.asked, *family.ignored}
    if "layer_types" in understood and reader.peek("layer_types") is not None:
        # The pattern was spelled out layer by layer.
        understood |= _PATTERN_KEYS
    found = _unread_needs(reader, understood)
    value_size, key_sizes = reader.peek("v_head_dim"), [reader.peek(key) for key in family.head_dim]
    if _is_set(value_size) and "v_head_dim" not in reader.asked and value_size not in key_sizes:
        found.append(f"value heads of another size (v_head_dim {shown(value_size)})")
    return ", ".join(found)


def _read_the_rest(reader: ConfigReader, family: Family, *, assume_standard: bool) -> None:
    """Refuse what the family does not understand, by the fields that were not looked at while layers were built."""
    found = _unread_caches(reader, family)
    if found and not assume_standard:
        model_type = reader.peek("model_type")
        raise reader.refuse(
            f"this {model_type!r} model is not supported yet: it needs {found}",
            hint="--assume-standard plans it without",
        )


def _geometry(reader: ConfigReader, family: Family) -> Geometry:
    num_layers = _num_layers(reader, family)
    num_heads = reader.count(family.heads, maximum=_MAX_HEADS) if family.heads else 0
    hidden_size = reader.count(family.hidden)
    num_kv_heads = family.kv_heads(reader, num_heads) if num_heads else 0
    if num_heads and num_heads % num_kv_heads:
        raise reader.refuse(
            f"{num_heads} attention heads ({family.heads}) are not a multiple of {num_kv_heads} KV heads"
        )
    return Geometry(
        num_layers=num_layers,
        num_attention_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(reader, family, num_heads, hidden_size) if num_heads else 0,
        hidden_size=hidden_size,
        vocab_size=reader.count(family.vocab),
        max_model_len=max_model_len(reader),
    )


def _num_layers(reader: ConfigReader, family: Family) -> int:
    stated = reader.optional_first_count(family.layers, maximum=_MAX_LAYERS)
    if stated is None:
        stated = family.num_layers(reader)
    if stated is None:
        return reader.first_count(family.layers, maximum=_MAX_LAYERS)
    if not 1 <= stated <= _MAX_LAYERS:
        raise reader.refuse(f"expected 1 to {_MAX_LAYERS:,} layers, got {stated:,}")
    return stated


def _head_dim(reader: ConfigReader, family: Family, num_heads: int, hidden_size: int) -> int:
    if not family.head_dim:
        return max(1, hidden_size // num_heads)
    stated = reader.optional_first_count(family.head_dim, minimum=0, maximum=_MAX_HEADS)
    if stated is None and any(reader.has_default(key) for key in family.head_dim):
        stated = reader.first_count(family.head_dim, maximum=_MAX_HEADS)
    if stated:
        return stated
    if hidden_size % num_heads and family.heads_divide:
        raise reader.refuse(
            f"no {family.head_dim[0]}, and {family.hidden} {hidden_size} is not a multiple of "
            f"{family.heads} {num_heads}"
        )
    return max(1, hidden_size // num_heads)


def _dtype(reader: ConfigReader) -> KVDtype | None:
    for key in ("dtype", "torch_dtype"):
        text = reader.text(key)
        if text is not None:
            name = text.removeprefix("torch.")
            if name not in ("float32", "float16", "bfloat16"):
                raise reader.refuse(f"{key}: expected one of float32, float16, bfloat16, got {shown(text)}")
            return KVDtype(name)
    return None


def _build_layers(family: Family, shape: ModelShape) -> list[Built]:
    """Build every layer; layers of one kind are built once."""
    num_layers = shape.geometry.num_layers
    kinds = family.kinds(shape.reader, num_layers)
    feeds = family.feed_kinds_of(shape.reader, num_layers)
    built: dict[tuple[LayerKind, LayerKind], Built] = {}
    layers = []
    for both in zip(kinds, feeds, strict=True):
        if both not in built:
            built[both] = family.build(shape, *both)
        layers.append(built[both])
    return layers


def _weights(
    reader: ConfigReader, outer: ConfigReader, family: Family, shape: ModelShape, layers: list[Built]
) -> WeightShape | None:
    if not family.weights_known:
        return None
    said = next((config for config in (reader, outer) if config.has("tie_word_embeddings")), reader)
    geometry = shape.geometry
    hidden = geometry.hidden_size
    table_width = (reader.optional_count(family.table_width) if family.table_width else None) or hidden
    before = list(family.beside(shape))
    if table_width != hidden:
        before.append(Piece(2 * table_width * hidden))
    if family.extra_positions is not None:
        before.append(Piece((geometry.max_model_len + family.extra_positions) * hidden))
    after = [Piece(family.final_norms * family.norm_width(hidden))]
    if family.head_bias.read(reader):
        after.append(Piece(geometry.vocab_size))
    return WeightShape(
        vocab_size=geometry.vocab_size,
        table_width=table_width,
        tied=said.flag("tie_word_embeddings", default=family.tied),
        layers=tuple(layer.pieces for layer in layers),
        before=tuple(before),
        after=tuple(after),
        exact=family.exact,
    )
