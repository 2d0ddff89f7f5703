"""The one decoder: embedding, layers of attention and feed-forward, final norm, head; packed tokens, a paged cache."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvengine.attention.base import AttentionBackend, RotatingBackend
from kvengine.batch import ForwardBatch
from kvengine.model_config.decoder import Attention, DecoderConfig, GroupedAttention, RopeConfig
from kvengine.models.attention import AttentionPart, Heads, Step, read_attention
from kvengine.models.feed_forward import FeedPart, read_feed
from kvengine.models.linear import Linear
from kvengine.models.norm import RMSNorm, identity, wide_type
from kvengine.models.rope import Rotations
from kvengine.models.tensor_reader import TensorReader
from kvengine.models.weights import ROPE_FREQS, WeightSource

Norm = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer: what comes out of each part is added to what went in, where the next norm reads it."""

    attention_norm: RMSNorm
    attention: AttentionPart
    attention_end_norm: Norm
    feed_norm: RMSNorm
    feed: FeedPart
    feed_end_norm: Norm

    def before_attention(self, hidden: Tensor, delta: Tensor | None, step: Step) -> Heads:
        """Add what the layer before computed to `hidden` in place, and make this one's queries, keys and values."""
        return self.attention.project(self.attention_norm.add_and_norm(hidden, delta), step)

    def after_attention(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Add the attention to `hidden` in place; what is still to be added to it is given back, of its shape."""
        delta = self.attention_end_norm(self.attention.output(attended))
        return self.feed_end_norm(self.feed(self.feed_norm.add_and_norm(hidden, delta)))


class Decoder:
    """Weights on a device, and the forward pass of one step.

    Args:
        config: What the model is made of.
        source: Where the tensors come from; each is read once, checked against the configuration and converted.
        dtype: Type to compute in.
        device: Where the weights go.

    Raises:
        ConfigError: A tensor is missing, has another shape than the configuration says, or has no place in it.
    """

    def __init__(
        self, config: DecoderConfig, source: WeightSource, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        reader = TensorReader(source, dtype=dtype, device=device)
        ropes = list(dict.fromkeys(_rope_of(layer.attention) for layer in config.layers))
        self._embedding = reader.matrix("model.embed_tokens", config.vocab_size, config.hidden_size)
        # Rounded to the model's type, as in training.
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=dtype).item()
        self.layers = [self._read_layer(reader, index, ropes) for index in range(config.num_layers)]
        self._final_norm = self._read_norm(reader, "model.norm", config.hidden_size)
        head = self._embedding
        if not config.tie_word_embeddings:
            head = reader.matrix("lm_head", config.vocab_size, config.hidden_size)
        self._head = Linear(head)
        divisors = None
        if reader.has(ROPE_FREQS):
            divisors = reader.tensor(ROPE_FREQS, (ropes[0][1] // 2,), dtype=torch.float64)
        self._rotations = Rotations(ropes, dtype=dtype, device=device, divisors=divisors)
        if config.tie_word_embeddings and reader.has("lm_head.weight"):
            reader.tensor("lm_head.weight", (config.vocab_size, config.hidden_size))  # a copy, stored all the same
        reader.refuse_unread(config.num_layers)

    def forward(self, batch: ForwardBatch, attention: AttentionBackend) -> Tensor:
        """Compute a planned step; K/V go to the cache through the backend.

        Returns:
            [num_sampled, vocab_size], logits of the tokens in `batch.sampled_tokens`, in the model's type.
        """
        step = self.step(batch.positions, num_decodes=batch.num_decodes, attention=attention)
        hidden, delta = self.embed(batch.token_ids), None
        for layer in self.layers:
            attended = layer.attention.attend(layer.before_attention(hidden, delta, step), step)
            delta = layer.after_attention(hidden, attended)
        return self.logits(hidden, delta, batch.sampled_tokens)

    def step(self, positions: Tensor, *, num_decodes: int, attention: AttentionBackend) -> Step:
        """Make what the layers share while tokens at these positions, [num_tokens], are computed."""
        return Step(
            backend=attention,
            rotation=self._rotations.at(positions),
            num_decodes=num_decodes,
            rotating=attention if isinstance(attention, RotatingBackend) else None,
        )

    def embed(self, token_ids: Tensor) -> Tensor:
        """Look tokens up; [num_tokens] to [num_tokens, hidden_size]."""
        hidden = self._embedding[token_ids]
        return hidden if self._embedding_scale == 1.0 else hidden * self._embedding_scale

    def logits(self, hidden: Tensor, delta: Tensor | None, sampled: Tensor) -> Tensor:
        """Add what the last layer computed, norm, and apply the head, for the `sampled` tokens alone.

        Returns:
            [num_sampled, vocab_size]
        """
        normed = self._final_norm.add_and_norm(hidden[sampled], None if delta is None else delta[sampled])
        logits = self._head(normed)
        cap = self.config.final_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _read_layer(self, reader: TensorReader, index: int, ropes: list[tuple[RopeConfig, int]]) -> Layer:
        config, hidden_size, name = self.config.layers[index], self.config.hidden_size, f"model.layers.{index}"

        def norm(place: str, size: int, /) -> RMSNorm:
            return self._read_norm(reader, place, size)

        sandwich = self.config.sandwich_norms
        return Layer(
            attention_norm=norm(f"{name}.input_layernorm", hidden_size),
            attention=read_attention(
                config.attention,
                reader,
                norm,
                layer=index,
                hidden_size=hidden_size,
                rotation=ropes.index(_rope_of(config.attention)),
            ),
            attention_end_norm=norm(f"{name}.post_attention_layernorm", hidden_size) if sandwich else identity,
            # The name says where the norm stands; with norms behind attention too, it stands there.
            feed_norm=norm(
                f"{name}.{'pre_feedforward_layernorm' if sandwich else 'post_attention_layernorm'}", hidden_size
            ),
            feed=read_feed(config.feed, reader, layer=index, hidden_size=hidden_size),
            feed_end_norm=norm(f"{name}.post_feedforward_layernorm", hidden_size) if sandwich else identity,
        )

    def _read_norm(self, reader: TensorReader, name: str, size: int) -> RMSNorm:
        offset = self.config.norm_offset
        weight = reader.tensor(f"{name}.weight", (size,), dtype=wide_type(self.dtype) if offset else None)
        return RMSNorm(weight + offset if offset else weight, eps=self.config.rms_norm_eps)


def _rope_of(attention: Attention) -> tuple[RopeConfig, int]:
    """Rotary positions of a layer, and the size of the heads that they turn."""
    size = attention.head_dim if isinstance(attention, GroupedAttention) else attention.rope_head_dim
    return attention.rope, size
