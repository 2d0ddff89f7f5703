"""A `config.json` to a `ModelSpec`: which model type it is, its geometry, and whether its KV cache is a plain one."""

import math
from collections.abc import Callable, Mapping

from kvengine.spec import KVDtype
from kvplan.config_reader import ConfigReader, shown
from kvplan.loading import did_you_mean
from kvplan.model_families import FAMILIES, NESTED, Family, Window
from kvplan.model_spec import ModelSpec
from kvplan.parameters import Geometry, WeightShape, weight_shape

_MAX_LEN_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length")
"""Of those that are there, the smallest is the longest context, as vLLM reads it."""
_INNER_KEYS = ("text_config", "language_config", "llm_config")
_MAX_LAYERS = 10_000
_MAX_HEADS = 65_536


def model_from_config(
    config: Mapping[str, object], *, name: str, source: str, refuse_unread_keys: bool = False
) -> ModelSpec:
    """Read a model from the contents of a `config.json`.

    Args:
        config: The top level of the file.
        name: What to call the model.
        source: The file, for messages.
        refuse_unread_keys: Whether a key that planning does not read is an error, as in a profile.

    Raises:
        ConfigError: A key is damaged or missing, or the kind of model is not supported.
    """
    outer = ConfigReader(config, source)
    inner_key = NESTED.get(outer.text("model_type") or "", "")
    nested = isinstance(config.get(inner_key), Mapping)
    plain = outer.nested(inner_key) if nested else outer
    model_type, family = _family(plain)
    reader = plain.with_defaults(family.defaults)
    _refuse_other_caches(reader, model_type)
    geometry = _geometry(reader, family)
    _refuse_windows(reader, family, geometry, model_type)
    dtype = _dtype(reader) or _dtype(outer)
    weights = _weights(reader, outer, family, geometry)
    kv_scheme = _kv_scheme(reader) or _kv_scheme(outer)
    model = ModelSpec(
        name=name,
        architecture=_architecture(outer) or model_type,
        geometry=geometry,
        dtype=KVDtype.BFLOAT16 if dtype in (None, KVDtype.FLOAT32) else dtype,
        checkpoint_float32=dtype is KVDtype.FLOAT32,
        kv_scheme=kv_scheme,
        weights=weights,
        weights_unknown=_weights_unknown(reader, outer, weights, has_towers=nested or family.towers),
        notes=tuple(f"{key} is absent: the class default {value:,} is used" for key, value in reader.defaulted.items()),
    )
    unread = next((key for key in config if key not in outer.asked), None)
    if refuse_unread_keys and unread is not None:
        raise outer.refuse(f"unknown key {unread!r}{did_you_mean(unread, outer.asked)}")
    return model


def _family(reader: ConfigReader) -> tuple[str, Family]:
    model_type = reader.text("model_type")
    if model_type is None:
        raise reader.refuse("key 'model_type' is missing")
    if model_type not in FAMILIES:
        parts = [reader, *(reader.nested(key) for key in _INNER_KEYS if isinstance(reader.get(key), Mapping))]
        found = [need for part in parts for need in _other_caches(part)]
        reason = f"it needs {', '.join(found)}" if found else "its layers are not known here"
        raise reader.refuse(
            f"model type {shown(model_type)} is not supported yet: {reason}",
            hint=f"supported: {', '.join(sorted({*FAMILIES, *NESTED}))}",
        )
    return model_type, FAMILIES[model_type]


def _architecture(reader: ConfigReader) -> str | None:
    listed = reader.get("architectures")
    return listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], str) else None


# What a configuration says when not every layer keeps every token, by key: a test of its value, and its name.
_Test = Callable[[object], bool]


def _is_set(value: object) -> bool:
    return value not in (None, False, 0, [], {})


def _is_true(value: object) -> bool:
    return value is not None and value is not False


def _has_other_layers(value: object) -> bool:
    return (
        value is not None
        and value != []
        and not (isinstance(value, list) and all(kind == "full_attention" for kind in value))
    )


def _has_other_codes(value: object) -> bool:
    return value is not None and not (isinstance(value, list) and all(code == 1 for code in value))


_OTHER_CACHES: tuple[tuple[str, tuple[str, ...], _Test], ...] = (
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
    ("a sparse-attention index", ("index_topk", "indexer_types"), _is_set),
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


def _other_caches(reader: ConfigReader) -> list[str]:
    """Return what a configuration needs beyond a plain KV cache, with the fields that say so."""
    found: dict[str, list[str]] = {}
    for what, keys, test in _OTHER_CACHES:
        fields = [f"{key} = {shown(reader.get(key))}" for key in keys if test(reader.get(key))]
        if fields:
            found.setdefault(what, []).extend(fields)
    return [f"{what} ({', '.join(fields)})" for what, fields in found.items()]


def _refuse_other_caches(reader: ConfigReader, model_type: str) -> None:
    found = _other_caches(reader)
    if found:
        raise reader.refuse(f"this {model_type!r} model is not supported yet: it needs {', '.join(found)}")


def _refuse_windows(reader: ConfigReader, family: Family, geometry: Geometry, model_type: str) -> None:
    """Refuse a sliding window that is shorter than the longest context; a longer one never drops a token."""
    window = reader.optional_count("sliding_window", minimum=0)
    if window is None and reader.has_default("sliding_window"):
        window = reader.count("sliding_window")
    if not reader.flag("use_sliding_window", default=family.window is Window.IF_SET) or reader.has("layer_types"):
        return
    first_windowed = reader.optional_count("max_window_layers", minimum=0) if family.window is Window.IF_FLAGGED else 0
    if window and window < geometry.max_model_len and (first_windowed or 0) < geometry.num_layers:
        raise reader.refuse(
            f"this {model_type!r} model is not supported yet: its sliding window (sliding_window = {window:,}) "
            f"is shorter than its longest context ({geometry.max_model_len:,})"
        )


def _geometry(reader: ConfigReader, family: Family) -> Geometry:
    num_layers = reader.count(family.layers, maximum=_MAX_LAYERS)
    num_heads = reader.count(family.heads, maximum=_MAX_HEADS)
    hidden_size = reader.count(family.hidden)
    num_kv_heads = family.kv_heads(reader, num_heads)
    if num_heads % num_kv_heads:
        raise reader.refuse(
            f"{num_heads} attention heads ({family.heads}) are not a multiple of {num_kv_heads} KV heads"
        )
    return Geometry(
        num_layers=num_layers,
        num_attention_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(reader, family, num_heads, hidden_size),
        hidden_size=hidden_size,
        vocab_size=reader.count(family.vocab),
        max_model_len=_max_model_len(reader),
    )


def _head_dim(reader: ConfigReader, family: Family, num_heads: int, hidden_size: int) -> int:
    if reader.has(family.head_dim) or reader.has_default(family.head_dim):
        head_dim = reader.count(family.head_dim, maximum=_MAX_HEADS)
    elif hidden_size % num_heads:
        raise reader.refuse(
            f"no {family.head_dim}, and {family.hidden} {hidden_size} is not a multiple of {family.heads} {num_heads}"
        )
    else:
        head_dim = hidden_size // num_heads
    value_dim = reader.optional_count("v_head_dim")
    if value_dim not in (None, head_dim):
        raise reader.refuse(
            f"value heads of another size (v_head_dim {value_dim}) than key heads ({head_dim}) are not supported yet"
        )
    return head_dim


def _max_model_len(reader: ConfigReader) -> int:
    lengths = [length for key in _MAX_LEN_KEYS if (length := reader.optional_count(key)) is not None]
    if not lengths:
        lengths = [reader.count(next((key for key in _MAX_LEN_KEYS if reader.has_default(key)), _MAX_LEN_KEYS[0]))]
    return _stretched(reader, min(lengths))


def _stretched(reader: ConfigReader, length: int) -> int:
    """Apply position scaling as vLLM does: a factor multiplies, yarn's the original length."""
    scaling = reader.nested("rope_parameters" if reader.has("rope_parameters") else "rope_scaling")
    kind = scaling.text("rope_type") or scaling.text("type") or "default"
    if kind in ("default", "su", "longrope", "llama3", "mrope"):
        return length
    if kind == "yarn":
        length = scaling.optional_count("original_max_position_embeddings") or length
    return max(1, math.floor(length * scaling.ratio("factor", default=1.0)))


def _dtype(reader: ConfigReader) -> KVDtype | None:
    for key in ("dtype", "torch_dtype"):
        text = reader.text(key)
        if text is not None:
            name = text.removeprefix("torch.")
            if name not in ("float32", "float16", "bfloat16"):
                raise reader.refuse(f"{key}: expected one of float32, float16, bfloat16, got {shown(text)}")
            return KVDtype(name)
    return None


def _kv_scheme(reader: ConfigReader) -> str:
    """Return the KV element type that a quantised checkpoint states: `fp8`, another description, or nothing."""
    quantization = reader.mapping("quantization_config")
    return stated_kv_scheme(quantization.get("kv_cache_scheme") or quantization.get("kv_cache_quant_algo"))


def stated_kv_scheme(stated: object) -> str:
    """Return `fp8` for the spellings of an 8-bit float KV cache, the words of any other, and nothing for none."""
    if stated is None:
        return ""
    if isinstance(stated, Mapping):
        is_fp8 = stated.get("num_bits") == 8 and stated.get("type") in (None, "float")
    else:
        is_fp8 = str(stated).lower() in ("fp8", "fp8_e4m3")
    return "fp8" if is_fp8 else shown(stated)


def _weights(reader: ConfigReader, outer: ConfigReader, family: Family, geometry: Geometry) -> WeightShape | None:
    if family.traits is None:
        return None
    said = next((config for config in (reader, outer) if config.has("tie_word_embeddings")), reader)
    tied = said.flag("tie_word_embeddings", default=family.traits.tied)
    return weight_shape(reader, family.traits, geometry, tied=tied)


def _weights_unknown(
    reader: ConfigReader, outer: ConfigReader, weights: WeightShape | None, *, has_towers: bool
) -> str:
    for config in (reader, outer):
        if config.has("quantization_config"):
            method = config.mapping("quantization_config").get("quant_method")
            return f"its weights are quantised ({shown(method)})"
    if has_towers or outer.has("vision_config") or outer.has("mm_vision_tower"):
        return "its vision or audio part is not counted yet"
    return "" if weights else "the make-up of its layers is not known here"
