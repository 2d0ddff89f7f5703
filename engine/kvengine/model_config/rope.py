"""Rotary positions, read from the fields that describe them."""

import math

from kvengine.model_config.decoder import RopeConfig, RopeKind
from kvengine.model_config.fields import Fields

_THETA = 10000.0
"""The class default, which the first Llama configs leave out."""


def json_rope(fields: Fields, *, theta: float = _THETA) -> RopeConfig:
    """Read `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (before).

    Args:
        fields: The configuration.
        theta: What counts where none is given.
    """
    parameters = fields.nested("rope_parameters")
    if parameters is not None:
        return scaled_rope(parameters, theta=parameters.number_or("rope_theta", theta), default_kind=True)
    theta = fields.number_or("rope_theta", theta)
    scaling = fields.nested("rope_scaling")
    return RopeConfig(theta=theta) if scaling is None else scaled_rope(scaling, theta=theta)


def scaled_rope(scaling: Fields, *, theta: float, default_kind: bool = False) -> RopeConfig:
    """Read the scaling of one kind of layer.

    Args:
        scaling: `rope_scaling`, or an entry of `rope_parameters`.
        theta: The base of the frequencies.
        default_kind: Whether the kind may be missing, and is then `default`.
    """
    scaling.refuse("partial_rotary_factor", 1, 1.0)
    key = "rope_type" if scaling.get("rope_type") is not None else "type"
    kind = scaling.get(key)
    if kind is None and default_kind:
        kind = RopeKind.DEFAULT
    if kind == RopeKind.DEFAULT:
        return RopeConfig(theta=theta)
    if kind == RopeKind.LINEAR:
        return RopeConfig(theta=theta, kind=RopeKind.LINEAR, factor=scaling.number("factor"))
    if kind == RopeKind.LLAMA3:
        return _llama3(scaling, theta)
    if kind == RopeKind.YARN:
        return _yarn(scaling, theta)
    raise scaling.unsupported(key, tuple(RopeKind))


def gguf_rope(fields: Fields, key: str) -> RopeConfig:
    """Read theta and scaling; `llama3` scaling is no key but the tensor `rope_freqs.weight`, read with the weights."""
    theta = fields.number_or(key + "freq_base", _THETA)
    kind = fields.get(key + "scaling.type")
    if kind in (None, "none"):
        return RopeConfig(theta=theta)
    if kind != "linear":
        raise fields.unsupported(key + "scaling.type", ("none", "linear"))
    return RopeConfig(theta=theta, kind=RopeKind.LINEAR, factor=fields.number(key + "scaling.factor"))


def yarn_gain(factor: float, weight: float) -> float:
    """How much longer contexts sharpen attention: `0.1 * weight * ln(factor) + 1`, and 1 for factors up to 1.

    Source: YaRN, arXiv:2309.00071, section 3.4.
    """
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _llama3(scaling: Fields, theta: float) -> RopeConfig:
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


def _yarn(scaling: Fields, theta: float) -> RopeConfig:
    if theta <= 1:
        raise scaling.error(
            "rope_theta", f"yarn blends over the logarithm of theta: expected more than 1, got {theta:g}"
        )
    factor = scaling.number("factor")
    fast, slow = scaling.number_or("beta_fast", 32.0), scaling.number_or("beta_slow", 1.0)
    if fast <= slow:
        raise scaling.error("beta_fast", f"expected more than beta_slow {slow}, got {fast}")
    return RopeConfig(
        theta=theta,
        kind=RopeKind.YARN,
        factor=factor,
        beta_fast=fast,
        beta_slow=slow,
        truncate=scaling.flag("truncate", default=True),
        amplitude=_yarn_amplitude(scaling, factor),
        original_max_model_len=scaling.whole("original_max_position_embeddings"),
    )


def _yarn_amplitude(scaling: Fields, factor: float) -> float:
    given = scaling.number_or_none("attention_factor")
    if given is not None:
        return given
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return yarn_gain(factor, scaling.number("mscale")) / yarn_gain(factor, scaling.number("mscale_all_dim"))
    return yarn_gain(factor, 1.0)
