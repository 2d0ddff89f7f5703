"""The sizes of a model that decide how much memory one step takes."""

from dataclasses import dataclass

from kvplan.config_reader import ConfigReader
from kvplan.memory_model.encoder import EncoderShape, read_encoder_shape
from kvplan.parameters import Geometry

_MLP_KEYS = ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner")
_EXPERT_WIDTH_KEYS = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
_EXPERTS_PER_TOKEN_KEYS = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "experts_per_token", "moe_k")
_WIDTH_PER_HIDDEN = 4
"""Width of an MLP over hidden size where a configuration does not state it, as in GPT-2."""
_MAX_SIZE = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape:
    """Sizes of multi-head latent attention, of the whole model."""

    num_layers: int
    num_heads: int
    query_width: int
    """What queries are projected from: their own latent, or the hidden state."""
    kv_rank: int
    rope_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """What the activations of one step are made of, in elements per token of the whole model."""

    hidden_size: int
    vocab_size: int
    mlp_width: int = 0
    """Of a dense MLP; 0 where every layer has experts."""
    expert_width: int = 0
    """Of one expert; 0 for dense models."""
    experts_per_token: int = 0
    latent: LatentShape | None = None
    """Of multi-head latent attention; None for other kinds."""
    is_hybrid: bool = False
    """Whether some layers keep a state instead of tokens."""
    encoder: EncoderShape | None = None
    """What images go through first; None for text alone, and where its sizes are not known."""

    @property
    def is_sparse(self) -> bool:
        """Whether tokens go through experts."""
        return bool(self.expert_width and self.experts_per_token)


def read_step_shape(
    text: ConfigReader, config: ConfigReader, geometry: Geometry, *, is_hybrid: bool = False
) -> StepShape:
    """Read the shape from a configuration.

    Keys that are absent, or that say something senseless, count as absent: whoever reads the geometry complains.

    Args:
        text: The language model's own part of the configuration.
        config: The whole configuration, which may describe an encoder beside it.
        geometry: The language model's geometry.
        is_hybrid: Whether some layers keep a state instead of tokens.
    """
    experts_per_token = _first_count(text, _EXPERTS_PER_TOKEN_KEYS)
    expert_width = _first_count(text, _EXPERT_WIDTH_KEYS) if experts_per_token else 0
    stated_width = _first_count(text, _MLP_KEYS)
    return StepShape(
        hidden_size=geometry.hidden_size,
        vocab_size=geometry.vocab_size,
        mlp_width=stated_width or (0 if expert_width else _WIDTH_PER_HIDDEN * geometry.hidden_size),
        expert_width=expert_width,
        experts_per_token=experts_per_token,
        latent=_latent(text, geometry),
        is_hybrid=is_hybrid,
        encoder=read_encoder_shape(config),
    )


def _latent(text: ConfigReader, geometry: Geometry) -> LatentShape | None:
    rank = _first_count(text, ("kv_lora_rank",))
    if not rank:
        return None
    return LatentShape(
        num_layers=geometry.num_layers,
        num_heads=geometry.num_attention_heads,
        query_width=_first_count(text, ("q_lora_rank",)) or geometry.hidden_size,
        kv_rank=rank,
        rope_size=_first_count(text, ("qk_rope_head_dim",)),
    )


def _first_count(reader: ConfigReader, keys: tuple[str, ...]) -> int:
    """Return the first of the keys that holds a count, or the largest of a list of counts; 0 without one."""
    for key in keys:
        value = reader.count(key) if reader.has_default(key) else reader.get(key)
        entries = value if isinstance(value, list) else [value]
        counts = [
            entry
            for entry in entries
            if isinstance(entry, int) and not isinstance(entry, bool) and 1 <= entry <= _MAX_SIZE
        ]
        if counts:
            return max(counts)
    return 0
