"""Steps with longer chunks, replayed in pieces: what lies between the attention of two layers is recorded.

Attention over chunks has a shape of its own in every step, so it is computed as it comes. Everything else works on
tokens alone: a piece ends with the queries, keys and values of a layer, and the next one begins with what was attended
to. A recording is made for tokens in powers of two; a step takes the smallest that holds it. Rows left over hold what
an earlier step left there: no token's result depends on another's row, and nobody reads theirs.

    embedding, norm, qkv | attention | output, norm, feed-forward, norm, qkv | attention | ... | norm, head
    recorded               computed    recorded                                computed          computed
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kvengine.attention.base import AttentionBackend
from kvengine.batch import ForwardBatch
from kvengine.decode_graphs import Recorder, Replay, powers
from kvengine.model_config.decoder import DecoderConfig, DenseFeed
from kvengine.models.attention import Heads, Step
from kvengine.models.decoder import Decoder

MAX_TOKENS = 512
"""Of a step that is replayed; memory for its tensors is taken once, whatever the number of recordings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What the pieces of a step hand to each other, in tensors that stay where they are; a line for each token."""

    token_ids: Tensor
    step: Step
    """The positions' rotation is kept; its backend stores and attends."""
    positions: Tensor
    hidden: Tensor
    delta: Tensor
    """What the last feed-forward layer computed, not yet added to `hidden`."""
    heads: Heads
    attended: Tensor

    def first(self, num_tokens: int, *, num_decodes: int = 0) -> "_Kept":
        """See the first tokens as a step of their own."""
        step, (q, k, v) = self.step, self.heads
        return _Kept(
            token_ids=self.token_ids[:num_tokens],
            step=Step(
                backend=step.backend,
                rotation=[(cos[:num_tokens], sin[:num_tokens]) for cos, sin in step.rotation],
                num_decodes=num_decodes,
                rotating=step.rotating,
            ),
            positions=self.positions[:num_tokens],
            hidden=self.hidden[:num_tokens],
            delta=self.delta[:num_tokens],
            heads=Heads(q[:num_tokens], k[:num_tokens], None if v is None else v[:num_tokens]),
            attended=self.attended[:num_tokens],
        )


class PiecewiseGraphs:
    """The recorded pieces of one model on one backend, for each number of tokens.

    Args:
        model: Computes; `is_recordable`.
        backend: Stores and attends between the pieces.
        max_tokens: Of the largest recording.
        recorder: Records on the device.
    """

    def __init__(self, model: Decoder, backend: AttentionBackend, *, max_tokens: int, recorder: Recorder) -> None:
        self._model = model
        self._kept = _keep(model, backend, max_tokens)
        self.sizes: Sequence[int] = (*powers(2, max_tokens), max_tokens)
        """Tokens that there are recordings for, the smallest first."""
        # The largest first: what it takes for a while serves the others too.
        self._pieces = {size: self._record(size, recorder) for size in reversed(self.sizes)}

    def run(self, batch: ForwardBatch) -> Tensor | None:
        """Compute a planned step; None where none of the recordings holds it.

        Returns:
            [num_sampled, vocab_size]
        """
        size = next((size for size in self.sizes if size >= batch.num_tokens), None)
        if size is None:
            return None
        kept = self._kept.first(batch.num_tokens, num_decodes=batch.num_decodes)
        kept.token_ids.copy_(batch.token_ids)
        kept.positions.copy_(batch.positions)
        first, *others = self._pieces[size]
        first()
        for layer, piece in zip(self._model.layers, others, strict=True):
            kept.attended.copy_(layer.attention.attend(kept.heads, kept.step))
            piece()
        return self._model.logits(kept.hidden, kept.delta, batch.sampled_tokens)

    def _record(self, size: int, recorder: Recorder) -> list[Replay]:
        kept = self._kept.first(size)
        return [recorder(partial(self._piece, index, kept)) for index in range(len(self._model.layers) + 1)]

    def _piece(self, index: int, kept: _Kept) -> Tensor:
        """Compute what lies before the attention of a layer and behind that of the one before."""
        layers, delta = self._model.layers, None
        if index == 0:
            kept.hidden.copy_(self._model.embed(kept.token_ids))
            _copy_rotation(kept.step, self._model.step(kept.positions, num_decodes=0, attention=kept.step.backend))
        else:
            delta = kept.delta.copy_(layers[index - 1].after_attention(kept.hidden, kept.attended))
        if index < len(layers):
            _copy_heads(kept.heads, layers[index].before_attention(kept.hidden, delta, kept.step))
        return kept.hidden


def is_recordable(config: DecoderConfig) -> bool:
    """Whether the sizes of all products between attention follow from the number of tokens; not so with experts."""
    return all(isinstance(layer.feed, DenseFeed) for layer in config.layers)


def _keep(model: Decoder, backend: AttentionBackend, num_tokens: int) -> _Kept:
    """Allocate for a step's tokens; one layer is tried to see its heads, which are of one shape in a cache."""
    token_ids = torch.zeros(num_tokens, dtype=torch.int64, device=model.device)
    positions = torch.zeros_like(token_ids)
    step = model.step(positions, num_decodes=0, attention=backend)
    hidden = model.embed(token_ids)
    q, k, v = model.layers[0].before_attention(hidden, None, step)
    return _Kept(
        token_ids=token_ids,
        step=step,
        positions=positions,
        hidden=hidden,
        delta=torch.zeros_like(hidden),
        heads=Heads(_packed(q), _packed(k), None if v is None else _packed(v)),
        attended=hidden.new_zeros(num_tokens, q.shape[1], backend.value_size),
    )


def _packed(heads: Tensor) -> Tensor:
    return torch.empty(heads.shape, dtype=heads.dtype, device=heads.device)


def _copy_rotation(kept: Step, new: Step) -> None:
    for (cos, sin), (new_cos, new_sin) in zip(kept.rotation, new.rotation, strict=True):
        cos.copy_(new_cos)
        sin.copy_(new_sin)


def _copy_heads(kept: Heads, new: Heads) -> None:
    for ours, given in zip(kept, new, strict=True):
        if ours is not None and given is not None:
            ours.copy_(given)
