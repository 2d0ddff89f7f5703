"""How long a context may be: the lengths that a configuration states, and what scaled positions make of them."""

import math

from kvplan.config_reader import ConfigReader
from kvplan.parameters import Geometry

_MAX_LEN_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
    "context_length",
)
"""Of those that are there, the smallest is the longest context, as vLLM reads it."""
_UNLIMITED_MAX_LEN = 2048
"""What vLLM assumes of a model whose configuration states no longest context."""


def max_model_len(reader: ConfigReader) -> int:
    """Return the longest context in tokens: the smallest length that is stated, stretched as positions are scaled."""
    lengths = [length for key in _MAX_LEN_KEYS if (length := reader.optional_count(key)) is not None]
    if not lengths:
        default = next((key for key in _MAX_LEN_KEYS if reader.has_default(key)), None)
        if default is None:
            reader.defaulted["longest context"] = _UNLIMITED_MAX_LEN
        lengths = [reader.count(default) if default else _UNLIMITED_MAX_LEN]
    if "gemma3" in (reader.text("model_type") or ""):
        # The class's own limit counts its scaling already, and vLLM leaves it alone by that name.
        return min(lengths)
    return _stretched(reader, min(lengths))


def _stretched(reader: ConfigReader, length: int) -> int:
    """Apply position scaling as vLLM 0.32 does: a factor multiplies; with yarn the stated length has it in it."""
    scaling, kind = _position_scaling(reader)
    if kind in ("default", "su", "longrope", "llama3", "mrope", "yarn", "deepseek_yarn", "deepseek_llama_scaling"):
        return length
    return max(1, math.floor(length * scaling.ratio("factor", default=1.0)))


def _position_scaling(reader: ConfigReader) -> tuple[ConfigReader, str]:
    scaling = reader.nested("rope_parameters" if reader.has("rope_parameters") else "rope_scaling")
    return scaling, scaling.text("rope_type") or scaling.text("type") or "default"


def short_length(reader: ConfigReader, geometry: Geometry) -> int | None:
    """Return the length up to which a LongRoPE model uses its short factors, where that is not its whole length."""
    length = reader.optional_count("original_max_position_embeddings")
    is_long = length is not None and length < geometry.max_model_len
    return length if is_long and _position_scaling(reader)[1] in ("longrope", "su") else None


def length_notes(reader: ConfigReader, geometry: Geometry) -> tuple[str, ...]:
    """Say where releases of vLLM read another length from the same configuration."""
    scaling, kind = _position_scaling(reader)
    if kind != "yarn":
        return ()
    original = scaling.optional_count("original_max_position_embeddings") or geometry.max_model_len
    reached = math.floor(original * scaling.ratio("factor", default=1.0))
    if reached <= geometry.max_model_len:
        return ()
    return (
        f"yarn reaches {reached:,} tokens, which older releases of vLLM take for the limit; "
        f"0.32 takes max_position_embeddings, {geometry.max_model_len:,}",
    )
