"""Geometry of a Llama-type decoder, read from a `config.json` or from the metadata of a GGUF file. No torch.

What is not understood is refused: a wrong guess here would run and print nonsense.
"""

import json
import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from kvengine.errors import ConfigError
from kvengine.gguf_file import GGUFFile, read_gguf
from kvengine.model_files import ModelFormat, model_format
from kvengine.spec import KVCacheSpec, KVDtype

SUPPORTED_MODEL_TYPES = ("llama", "mistral")
SUPPORTED_GGUF_ARCHITECTURES = ("llama",)

_MAX_WHOLE = 2**40
"""Above any real size, and far below what overflows a tensor's shape or a float."""
_MAX_NUMBER = 1e30


class RopeKind(StrEnum):
    """How rotary frequencies are scaled for long contexts."""

    DEFAULT = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding over the whole head: `theta ** (-2i / head_dim)`, scaled as `kind` says."""

    theta: float
    kind: RopeKind = RopeKind.DEFAULT
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_model_len: int = 0
    """Context of the unscaled model in tokens; used by `llama3` only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """A decoder with RMSNorm, rotary positions, grouped-query attention, SwiGLU and no biases."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    eos_token_ids: frozenset[int] = frozenset()

    @classmethod
    def from_path(cls, path: Path) -> "LlamaConfig":
        """Read the geometry of a model folder, a `config.json` or a GGUF file; weights are not read.

        Raises:
            ConfigError: The file is missing or broken, a field is missing or impossible, or the model needs
                something that is not built here; the message names file and key.
        """
        if path.suffix == ".json" and path.is_file():
            return _from_json(path)
        if model_format(path) is ModelFormat.FOLDER:
            return _from_json(path / "config.json")
        return config_from_gguf(read_gguf(path))

    def kv_cache_spec(self, dtype: KVDtype, block_size: int) -> KVCacheSpec:
        """Geometry of this model's KV cache on one device."""
        return KVCacheSpec(
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            head_dim_v=self.head_dim,
            dtype=dtype,
            block_size=block_size,
        )


def config_from_gguf(file: GGUFFile) -> LlamaConfig:
    """Read the geometry from the metadata of a GGUF file.

    Raises:
        ConfigError: As for `LlamaConfig.from_path`.
    """
    fields = _Fields(file.metadata, where=str(file.path))
    architecture = file.metadata.get("general.architecture")
    if architecture not in SUPPORTED_GGUF_ARCHITECTURES:
        raise _unsupported("general.architecture", architecture, SUPPORTED_GGUF_ARCHITECTURES, fields)
    key = f"{architecture}."
    if fields.whole_or_none(key + "expert_count", minimum=0):
        raise fields.error(key + "expert_count", "mixture-of-experts models are not supported")
    hidden_size = fields.whole(key + "embedding_length")
    num_heads = fields.whole(key + "attention.head_count")
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    num_tokens = len(tokens) if isinstance(tokens, list) else None
    config = LlamaConfig(
        num_layers=fields.whole(key + "block_count"),
        hidden_size=hidden_size,
        intermediate_size=fields.whole(key + "feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=fields.whole_or_none(key + "attention.head_count_kv") or num_heads,
        head_dim=fields.whole_or_none(key + "attention.key_length") or hidden_size // num_heads,
        vocab_size=fields.whole_or_none(key + "vocab_size") or num_tokens or fields.whole(key + "vocab_size"),
        max_model_len=fields.whole(key + "context_length"),
        rms_norm_eps=fields.number(key + "attention.layer_norm_rms_epsilon"),
        rope=_gguf_rope(fields, key + "rope."),
        tie_word_embeddings="output.weight" not in file.tensors,
        eos_token_ids=frozenset(fields.ids("tokenizer.ggml.eos_token_id") | fields.ids("tokenizer.ggml.eot_token_id")),
    )
    for name, expected in (("rope.dimension_count", config.head_dim), ("attention.value_length", config.head_dim)):
        given = fields.whole_or_none(key + name)
        if given not in (None, expected):
            raise fields.error(key + name, f"expected the head size {expected}, got {given}")
    return _checked(config, fields)


class _Fields:
    """Typed access to a mapping of fields; every refusal names the file and the key."""

    def __init__(self, values: Mapping[str, Any], *, where: str, prefix: str = "") -> None:
        self._values = values
        self._where = where
        self._prefix = prefix

    def error(self, key: str, message: str) -> ConfigError:
        return ConfigError(message, where=f"{self._where}: {self._prefix}{key}")

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def whole(self, key: str, *, minimum: int = 1) -> int:
        value = int(self._required(key, int, "a whole number"))
        if value < minimum:
            raise self.error(key, f"expected a whole number >= {minimum}, got {reprlib.repr(value)}")
        if value > _MAX_WHOLE:
            raise self.error(key, f"expected a whole number <= {_MAX_WHOLE}, got {reprlib.repr(value)}")
        return value

    def whole_or_none(self, key: str, *, minimum: int = 1) -> int | None:
        return None if self.get(key) is None else self.whole(key, minimum=minimum)

    def number(self, key: str) -> float:
        value = self._required(key, (int, float), "a number")
        if not 0 < value < math.inf or value > _MAX_NUMBER:
            raise self.error(key, f"expected a finite number > 0, got {reprlib.repr(value)}")
        return float(value)

    def number_or(self, key: str, default: float) -> float:
        return default if self.get(key) is None else self.number(key)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"expected true or false, got {reprlib.repr(value)}")
        return value

    def ids(self, key: str) -> set[int]:
        """A token id, a list of them, or nothing."""
        value = self.get(key)
        values = [] if value is None else value if isinstance(value, list) else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in values):
            raise self.error(key, f"expected a token id or a list of them, got {reprlib.repr(value)}")
        return set(values)

    def nested(self, key: str) -> "_Fields | None":
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"expected an object, got {reprlib.repr(value)}")
        return _Fields(value, where=self._where, prefix=f"{self._prefix}{key}.")

    def refuse(self, key: str, *allowed: object) -> None:
        """Refuse any value but the allowed ones; a missing key is allowed."""
        value = self.get(key)
        if value is not None and value not in allowed:
            raise self.error(
                key, f"{reprlib.repr(value)} is not supported; {' or '.join(map(repr, allowed)) or 'null'} is"
            )

    def _required(self, key: str, types: type | tuple[type, ...], kind: str) -> Any:
        value = self.get(key)
        if value is None:
            raise self.error(key, f"missing; expected {kind}")
        if isinstance(value, bool) or not isinstance(value, types):
            raise self.error(key, f"expected {kind}, got {reprlib.repr(value)}")
        return value


def _from_json(path: Path) -> LlamaConfig:
    fields = _Fields(_read_object(path), where=str(path))
    model_type = fields.get("model_type")
    if model_type not in SUPPORTED_MODEL_TYPES:
        raise _unsupported("model_type", model_type, SUPPORTED_MODEL_TYPES, fields)
    _refuse_variants(fields)
    hidden_size, num_heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    config = LlamaConfig(
        num_layers=fields.whole("num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=fields.whole("intermediate_size"),
        num_heads=num_heads,
        # Absent in the first Llama configs: as many as query heads.
        num_kv_heads=fields.whole_or_none("num_key_value_heads") or num_heads,
        head_dim=fields.whole_or_none("head_dim") or hidden_size // num_heads,
        vocab_size=fields.whole("vocab_size"),
        max_model_len=fields.whole("max_position_embeddings"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope=_json_rope(fields),
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=False),
        eos_token_ids=frozenset(fields.ids("eos_token_id") | _generation_eos_ids(path.parent)),
    )
    return _checked(config, fields)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"broken JSON: {error.msg}", where=f"{path}:{error.lineno}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, a number of 5,000 digits, or 100,000 brackets
        raise ConfigError(f"not readable as JSON: {type(error).__name__}", where=str(path)) from None
    if not isinstance(value, dict):
        raise ConfigError(f"expected a JSON object, got {type(value).__name__}", where=str(path))
    return value


def _generation_eos_ids(folder: Path) -> set[int]:
    """Chat models list their end-of-turn tokens in `generation_config.json` only."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return set()
    return _Fields(_read_object(path), where=str(path)).ids("eos_token_id")


def _refuse_variants(fields: _Fields) -> None:
    fields.refuse("hidden_act", "silu")
    fields.refuse("attention_bias", False)
    fields.refuse("mlp_bias", False)
    fields.refuse("sliding_window")
    fields.refuse("partial_rotary_factor", 1, 1.0)
    quantization = fields.nested("quantization_config")
    if quantization is not None:
        raise fields.error("quantization_config", f"{quantization.get('quant_method')!r} weights are not supported")


def _json_rope(fields: _Fields) -> RopeConfig:
    """Read `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (before)."""
    parameters = fields.nested("rope_parameters")
    scaling = parameters or fields.nested("rope_scaling")
    # 10000 is the class default, which the first Llama configs leave out.
    theta = (parameters or fields).number_or("rope_theta", 10000.0)
    if scaling is None:
        return RopeConfig(theta=theta)
    key = "rope_type" if scaling.get("rope_type") is not None else "type"
    kind = scaling.get(key)
    if kind is None and parameters is not None:
        kind = "default"
    if kind not in list(RopeKind):
        raise _unsupported(key, kind, tuple(RopeKind), scaling)
    if kind == RopeKind.DEFAULT:
        return RopeConfig(theta=theta)
    if kind == RopeKind.LINEAR:
        return RopeConfig(theta=theta, kind=RopeKind.LINEAR, factor=scaling.number("factor"))
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    if high <= low:
        raise scaling.error("high_freq_factor", f"expected more than low_freq_factor {low}, got {high}")
    return RopeConfig(
        theta=theta,
        kind=RopeKind.LLAMA3,
        factor=scaling.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_model_len=scaling.whole("original_max_position_embeddings"),
    )


def _gguf_rope(fields: _Fields, key: str) -> RopeConfig:
    """Read theta and scaling; `llama3` scaling is no key but the tensor `rope_freqs.weight`, read with the weights."""
    theta = fields.number_or(key + "freq_base", 10000.0)
    kind = fields.get(key + "scaling.type")
    if kind in (None, "none"):
        return RopeConfig(theta=theta)
    if kind != "linear":
        raise _unsupported(key + "scaling.type", kind, ("none", "linear"), fields)
    return RopeConfig(theta=theta, kind=RopeKind.LINEAR, factor=fields.number(key + "scaling.factor"))


def _unsupported(key: str, value: object, supported: tuple[str, ...], fields: _Fields) -> ConfigError:
    given = "missing" if value is None else f"{reprlib.repr(value)} is not supported"
    return fields.error(key, f"{given}; supported: {', '.join(supported)}")


def _checked(config: LlamaConfig, fields: _Fields) -> LlamaConfig:
    """Refuse sizes that do not go together."""
    if config.num_heads % config.num_kv_heads:
        raise fields.error(
            "num_key_value_heads",
            f"{config.num_heads} query heads cannot be shared out over {config.num_kv_heads} KV heads",
        )
    if config.head_dim < 1 or config.head_dim % 2:
        raise fields.error("head_dim", f"rotary positions need an even head size >= 2, got {config.head_dim}")
    too_big = [token for token in config.eos_token_ids if token >= config.vocab_size]
    if too_big:
        raise fields.error("eos_token_id", f"{too_big[0]} is not below the vocabulary size {config.vocab_size}")
    return config
