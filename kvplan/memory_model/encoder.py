"""An image encoder: its weights, and what it works on when vLLM's profiling run fills a step with images."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvengine.units import cdiv
from kvplan.config_reader import ConfigReader
from kvplan.estimate import Amount, estimated

_MERGED_IMAGE_TOKENS = 16_384
"""Largest image of encoders that take any size and merge patches (Qwen2-VL: 12,845,056 pixels, 28 x 28 a token)."""
_UNKNOWN_IMAGE_TOKENS = 1024
_WIDTH_PER_HIDDEN = 4
_USUAL_LAYERS = 27
_MLP_MATRICES = 2
"""A gated MLP has 3, and a width that is smaller for it."""
_WEIGHT_BYTES = 2
"""Encoders are left out of quantisation."""
_WEIGHT_DOUBT = 0.4
"""Projectors, gates and embeddings are not counted one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderShape:
    """Sizes of an image encoder."""

    hidden_size: int
    mlp_width: int
    num_layers: int = _USUAL_LAYERS
    patches_per_token: int = 1
    """Patches that become one token of the language model."""
    tokens_per_image: int = _UNKNOWN_IMAGE_TOKENS
    """Tokens of the largest image."""

    def patches(self, num_tokens: int) -> int:
        """Return the patches of as many of the largest images as a step of that many tokens holds, at least one."""
        return max(1, num_tokens // self.tokens_per_image) * self.tokens_per_image * self.patches_per_token

    def weights(self, ranks: int) -> Amount:
        """Return its weights on one of so many GPUs; some engines give every one of them the whole encoder.

        Worked value: 27 layers of 1,152 with an MLP of 4,304 (Gemma 3, Qwen3-VL): 0.77 GiB.
        """
        layer = 4 * self.hidden_size**2 + _MLP_MATRICES * self.hidden_size * self.mlp_width
        whole = _WEIGHT_BYTES * self.num_layers * layer
        share = cdiv(whole, ranks)
        return estimated(int(share * (1 - _WEIGHT_DOUBT)), share, int(whole * (1 + _WEIGHT_DOUBT)))


def read_encoder_shape(config: ConfigReader) -> EncoderShape | None:
    """Read the encoder from a whole configuration; None where there is none, or its sizes are not stated.

    Args:
        config: The top level of a `config.json`.
    """
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return None
    hidden = _count(vision, "vt_hidden_size", "embed_dim", "hidden_size")
    if not hidden:
        return None
    ratio = _count(vision, "mlp_ratio") or _WIDTH_PER_HIDDEN
    patches_per_token = _patches_per_token(config, vision)
    return EncoderShape(
        hidden_size=hidden,
        mlp_width=_count(vision, "vt_intermediate_size", "intermediate_size") or ratio * hidden,
        num_layers=_count(vision, "vt_num_hidden_layers", "depth", "num_hidden_layers") or _USUAL_LAYERS,
        patches_per_token=patches_per_token,
        tokens_per_image=_tokens_per_image(config, vision, patches_per_token),
    )


def _patches_per_token(config: ConfigReader, vision: Mapping[str, object]) -> int:
    side = _count(vision, "pooling_kernel_size", "spatial_merge_size", "merge_kernel_size")
    side = side or _count(config, "spatial_merge_size")
    if side:
        return side * side
    tokens = _count(config, "mm_tokens_per_image")
    return max(1, _patches_per_image(vision) // tokens) if tokens else 1


def _tokens_per_image(config: ConfigReader, vision: Mapping[str, object], patches_per_token: int) -> int:
    stated = _count(config, "mm_tokens_per_image", "vision_soft_tokens_per_image")
    if stated:
        return stated
    patches = _patches_per_image(vision)
    if patches:
        return max(1, patches // patches_per_token)
    return _MERGED_IMAGE_TOKENS if patches_per_token > 1 else _UNKNOWN_IMAGE_TOKENS


def _patches_per_image(vision: Mapping[str, object]) -> int:
    image, patch = _count(vision, "image_size"), _count(vision, "patch_size")
    return (image // patch) ** 2 if image and patch else 0


def _count(config: Mapping[str, object] | ConfigReader, *keys: str) -> int:
    """Return the first key that holds a count from 1 to a million, or a list that starts with one; 0 without one."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1_000_000:
            return value
    return 0
