"""The one decoder: embedding, layers of attention and feed-forward, final norm, head; packed tokens, a paged cache."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvengine.attention.base import AttentionBackend, RotatingBackend
from kvengine.batch import ForwardBatch
from kvengine.model_config.decoder import Attention, DecoderConfig, GroupedAttention, RopeConfig
from kvengine.models.attention import AttentionPart, Step, read_attention
from kvengine.models.feed_forward import FeedPart, read_feed
from kvengine.models.linear import Linear
from kvengine.models.norm import RMSNorm, identity, wide_type
from kvengine.models.rope import Rotations
from kvengine.models.tensor_reader import TensorReader
from kvengine.models.weights import ROPE_FREQS, WeightSource

Norm = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One layer: what comes out of each part is added to what went in."""

    attention_norm: RMSNorm
    attention: AttentionPart
    attention_end_norm: Norm
    feed_norm: RMSNorm
    feed: FeedPart
    feed_end_norm: Norm


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
        self._layers = [self._read_layer(reader, index, ropes) for index in range(config.num_layers)]
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
        hidden = self._embedding[batch.token_ids]
        if self._embedding_scale != 1.0:
            hidden = hidden * self._embedding_scale
        step = Step(
            backend=attention,
            rotation=self._rotations.at(batch.positions),
            num_decodes=batch.num_decodes,
            rotating=attention if isinstance(attention, RotatingBackend) else None,
        )
        # What a part computed is added where the next norm reads it.
        delta: Tensor | None = None
        for layer in self._layers:
            normed = layer.attention_norm.add_and_norm(hidden, delta)
            delta = layer.attention_end_norm(layer.attention(normed, step))
            delta = layer.feed_end_norm(layer.feed(layer.feed_norm.add_and_norm(hidden, delta)))
        sampled = batch.sampled_tokens
        return self._logits(self._final_norm.add_and_norm(hidden[sampled], None if delta is None else delta[sampled]))

    def _logits(self, normed: Tensor) -> Tensor:
        logits = self._head(normed)
        cap = self.config.final_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _read_layer(self, reader: TensorReader, index: int, ropes: list[tuple[RopeConfig, int]]) -> _Layer:
        config, hidden_size, name = self.config.layers[index], self.config.hidden_size, f"model.layers.{index}"

        def norm(place: str, size: int, /) -> RMSNorm:
            return self._read_norm(reader, place, size)

        sandwich = self.config.sandwich_norms
        return _Layer(
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
