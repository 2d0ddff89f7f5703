"""How many numbers the weights of a decoder are."""

from kvengine.model_config.decoder import Attention, DecoderConfig, DenseFeed, Feed, GroupedAttention


def num_parameters(config: DecoderConfig) -> int:
    """Count the weights that the engine holds; a tied head counts once.

    Worked value: Llama-3.1-8B, 8,030,261,248, of which 525,336,576 are its embedding.
    """
    hidden = config.hidden_size
    tables = config.vocab_size * hidden * (1 if config.tie_word_embeddings else 2)
    norms = hidden * (4 if config.sandwich_norms else 2)
    layers = sum(
        norms + _attention_parameters(layer.attention, hidden) + _feed_parameters(layer.feed, hidden)
        for layer in config.layers
    )
    return tables + hidden + layers


def _attention_parameters(attention: Attention, hidden: int) -> int:
    if isinstance(attention, GroupedAttention):
        q_size, kv_size = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
        biases = (q_size + 2 * kv_size) * attention.qkv_bias + hidden * attention.out_bias
        return 2 * hidden * (q_size + kv_size) + biases + 2 * attention.head_dim * attention.qk_norm
    heads, rank, q_rank = attention.num_heads, attention.kv_lora_rank, attention.q_lora_rank
    q_size = heads * (attention.nope_head_dim + attention.rope_head_dim)
    queries = hidden * q_size if q_rank is None else q_rank * (hidden + 1 + q_size)
    latent = hidden * (rank + attention.rope_head_dim) + rank
    up = heads * (attention.nope_head_dim + attention.value_head_dim) * rank
    return queries + latent + up + heads * attention.value_head_dim * hidden


def _feed_parameters(feed: Feed, hidden: int) -> int:
    if isinstance(feed, DenseFeed):
        return 3 * hidden * feed.intermediate_size
    router = feed.num_experts * (hidden + feed.selection_bias)
    return router + 3 * hidden * (feed.num_experts * feed.intermediate_size + feed.shared_size)
