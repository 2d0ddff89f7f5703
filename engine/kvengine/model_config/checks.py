"""Sizes of a decoder that do not go together."""

from kvengine.model_config.decoder import Attention, DecoderConfig, DenseFeed, Feed, GroupedAttention
from kvengine.model_config.fields import Fields


def checked(config: DecoderConfig, fields: Fields) -> DecoderConfig:
    """Refuse sizes that do not go together.

    Raises:
        ConfigError: It names the file and the key.
    """
    for attention in {layer.attention for layer in config.layers}:
        _check_attention(attention, fields)
    for feed in {layer.feed for layer in config.layers}:
        _check_feed(feed, fields)
    too_big = [token for token in config.eos_token_ids if token >= config.vocab_size]
    if too_big:
        raise fields.error("eos_token_id", f"{too_big[0]} is not below the vocabulary size {config.vocab_size}")
    return config


def rotated_size(fields: Fields, key: str, size: int) -> int:
    """Give a head's size back, unless rotary positions cannot turn it.

    Raises:
        ConfigError: It is 0 or odd; the message names file and key.
    """
    if size < 1 or size % 2:
        raise fields.error(key, f"rotary positions need an even head size >= 2, got {size}")
    return size


def _check_attention(attention: Attention, fields: Fields) -> None:
    if not isinstance(attention, GroupedAttention):
        return
    if attention.num_heads % attention.num_kv_heads:
        raise fields.error(
            "num_key_value_heads",
            f"{attention.num_heads} query heads cannot be shared out over {attention.num_kv_heads} KV heads",
        )


def _check_feed(feed: Feed, fields: Fields) -> None:
    if isinstance(feed, DenseFeed):
        return
    if feed.num_experts % feed.num_groups or feed.top_groups > feed.num_groups:
        raise fields.error(
            "n_group",
            f"{feed.num_experts} experts cannot be chosen from {feed.top_groups} of {feed.num_groups} groups",
        )
    if feed.selection_bias and feed.num_groups > 1 and feed.num_experts < 2 * feed.num_groups:
        raise fields.error("n_group", "a group is ranked by its two best experts, and these have one each")
    available = feed.num_experts // feed.num_groups * feed.top_groups
    if feed.top_k > available:
        raise fields.error(
            "num_experts_per_tok", f"expected at most the {available} experts there are, got {feed.top_k}"
        )
