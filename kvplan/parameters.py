"""Weights as pieces: how many parameters, what they are for, and how ranks share them."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from kvengine.units import cdiv, round_up

VOCAB_PADDING = 64
"""vLLM pads the vocabulary to a multiple of this, then to a multiple of the ranks, before it splits the rows."""


class Role(StrEnum):
    """What parameters are for: quantised checkpoints treat roles differently."""

    TABLE = "table"
    """Embeddings and the head."""
    ATTENTION = "attention"
    STATE = "state"
    """Projections of state-space and linear-attention layers."""
    MLP = "mlp"
    SHARED_EXPERT = "shared_expert"
    EXPERT = "expert"
    UNLOADED = "unloaded"
    """Allocated by the model's class and loaded by no engine."""
    OTHER = "other"
    """Norms, routers, biases, convolutions: never quantised."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Parameters that are shared out in one way."""

    params: int
    role: Role = Role.OTHER
    shards: int = 1
    """Equal parts that ranks can take; a rank holds at least one. 1: every rank holds the whole piece."""
    experts: int = 0
    """Experts in this piece, which expert parallelism shares out whole."""

    def rank_params(self, ranks: int) -> int:
        """Parameters of one of so many ranks."""
        return self.params * cdiv(self.shards, ranks) // self.shards

    def whole_expert_params(self, ranks: int) -> int:
        """Parameters of one of so many ranks that share out whole experts."""
        return self.params * cdiv(self.experts, ranks) // self.experts


Pieces = tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """The sizes of a decoder that most arithmetic starts from."""

    num_layers: int
    num_attention_heads: int
    """0 in models without attention."""
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How a model is shared out over GPUs."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    """Copies of the attention layers; experts are shared out over all of them."""
    experts: bool = False
    """Expert parallelism: experts are shared out whole instead of in slices."""
    decode_context: int = 1
    """Ranks that share one request's tokens; they are among the tensor-parallel ones."""

    @property
    def gpus(self) -> int:
        """GPUs altogether."""
        return self.tensor * self.pipeline * self.data

    @property
    def expert_ranks(self) -> int:
        """Ranks of one stage that share out its experts."""
        return self.tensor * self.data


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightShape:
    """The weights of a language model: tables, layers, and what comes before and after them.

    Worked value: Llama-3.1-8B (vocabulary 128,256, hidden 4,096, 32 layers, 32 heads of 128, 8 KV heads, MLP 14,336,
    untied head) has 8,030,261,248 parameters, 14.96 GiB in 16 bits.
    """

    vocab_size: int
    table_width: int
    """Width of an embedding row."""
    tied: bool
    """The head shares the embedding, or there is none."""
    layers: tuple[Pieces, ...] = field(repr=False)
    before: Pieces = ()
    """Beside the embedding: learned positions, an encoder, blocks that layers share."""
    after: Pieces = ()
    """Beside the head: the last norm."""
    exact: bool = True
    """Whether the count is the model's own to the last parameter; otherwise it is within a few per cent."""

    @property
    def parameters(self) -> int:
        """Parameters of the whole model; a tied embedding counts once."""
        pieces = self._stage_pieces(Parallelism(), 0, vocab_padding=1)
        return sum(piece.params * count for piece, count in pieces)

    def rank_parameters(self, tensor_parallel: int, *, vocab_padding: int = VOCAB_PADDING) -> int:
        """Parameters of one tensor-parallel rank: KV heads are repeated, never split; the vocabulary is padded."""
        parallel = Parallelism(tensor=tensor_parallel)
        return self.stage_amount(parallel, 0, lambda _, params: params, vocab_padding=vocab_padding)

    def stage_amount(
        self,
        parallel: Parallelism,
        stage: int,
        measure: Callable[[Role, int], int],
        *,
        vocab_padding: int = VOCAB_PADDING,
    ) -> int:
        """Add up a measure of the parameters, such as their bytes, over what one rank of a stage holds."""
        return sum(
            measure(piece.role, _held(piece, parallel)) * count
            for piece, count in self._stage_pieces(parallel, stage, vocab_padding=vocab_padding)
            if piece.role is not Role.UNLOADED
        )

    def _stage_pieces(self, parallel: Parallelism, stage: int, *, vocab_padding: int) -> Iterator[tuple[Piece, int]]:
        """Yield the pieces of one pipeline stage, not yet shared out within it, and how often each is there."""
        first, after = stage_layers(len(self.layers), parallel.pipeline, stage)
        rows = round_up(round_up(self.vocab_size, vocab_padding), parallel.tensor)
        is_first, is_last = stage == 0, stage == parallel.pipeline - 1
        tables = int(is_first) + int(is_last and not (self.tied and is_first))
        yield Piece(rows * self.table_width, Role.TABLE, rows), tables
        for piece in (*(self.before if is_first else ()), *(self.after if is_last else ())):
            yield piece, 1
        layers = self.layers[first:after]
        counts = Counter(map(id, layers))
        for pieces in {id(layer): layer for layer in layers}.values():
            for piece in pieces:
                yield piece, counts[id(pieces)]


def stage_layers(num_layers: int, num_stages: int, stage: int) -> tuple[int, int]:
    """Return the first layer of a pipeline stage and the one after its last.

    Layers that are left over go to the stages before the last, from the back: 10 layers in 4 stages are 2, 3, 3, 2.

    Source: vLLM 0.32, distributed/utils.py.
    """
    each, left = divmod(num_layers, num_stages)
    counts = [each] * num_stages
    for index in range(2, left + 2):
        counts[-index] += 1
    first = sum(counts[:stage])
    return first, first + counts[stage]


def _held(piece: Piece, parallel: Parallelism) -> int:
    if not piece.experts:
        return piece.rank_params(parallel.tensor)
    if parallel.experts:
        return piece.whole_expert_params(parallel.expert_ranks)
    return piece.rank_params(parallel.expert_ranks)
