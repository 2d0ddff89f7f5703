"""A decoder's configuration from the metadata of a GGUF file."""

from kvengine.gguf_file import GGUFFile
from kvengine.model_config.checks import checked, rotated_size
from kvengine.model_config.decoder import DecoderConfig, DenseFeed, GroupedAttention, uniform_layers
from kvengine.model_config.fields import Fields
from kvengine.model_config.rope import gguf_rope

SUPPORTED_ARCHITECTURES = ("llama", "qwen2", "qwen3")


def config_from_gguf(file: GGUFFile) -> DecoderConfig:
    """Read the metadata of a GGUF file.

    Raises:
        ConfigError: A field is missing or impossible, or the model needs something that is not built here; the
            message names file and key.
    """
    fields = Fields(file.metadata, where=str(file.path))
    architecture = file.metadata.get("general.architecture")
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise fields.unsupported("general.architecture", SUPPORTED_ARCHITECTURES)
    key = f"{architecture}."
    if fields.whole_or_none(key + "expert_count", minimum=0):
        raise fields.error(key + "expert_count", "mixture-of-experts models are not supported")
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    num_tokens = len(tokens) if isinstance(tokens, list) else None
    attention = _attention(fields, key, qkv_bias=architecture == "qwen2", qk_norm=architecture == "qwen3")
    feed = DenseFeed(intermediate_size=fields.whole(key + "feed_forward_length"))
    config = DecoderConfig(
        layers=uniform_layers(attention, feed, fields.num_layers(key + "block_count")),
        hidden_size=fields.whole(key + "embedding_length"),
        vocab_size=fields.whole_or_none(key + "vocab_size") or num_tokens or fields.whole(key + "vocab_size"),
        max_model_len=fields.whole(key + "context_length"),
        rms_norm_eps=fields.number(key + "attention.layer_norm_rms_epsilon"),
        tie_word_embeddings="output.weight" not in file.tensors,
        eos_token_ids=frozenset(fields.ids("tokenizer.ggml.eos_token_id") | fields.ids("tokenizer.ggml.eot_token_id")),
    )
    return checked(config, fields)


def _attention(fields: Fields, key: str, *, qkv_bias: bool, qk_norm: bool) -> GroupedAttention:
    num_heads = fields.whole(key + "attention.head_count")
    head_dim = fields.whole_or_none(key + "attention.key_length") or fields.whole(key + "embedding_length") // num_heads
    rotated_size(fields, key + "attention.key_length", head_dim)
    for name in ("rope.dimension_count", "attention.value_length"):
        given = fields.whole_or_none(key + name)
        if given not in (None, head_dim):
            raise fields.error(key + name, f"expected the head size {head_dim}, got {given}")
    return GroupedAttention(
        num_heads=num_heads,
        num_kv_heads=fields.whole_or_none(key + "attention.head_count_kv") or num_heads,
        head_dim=head_dim,
        rope=gguf_rope(fields, key + "rope."),
        scale=head_dim**-0.5,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
    )
