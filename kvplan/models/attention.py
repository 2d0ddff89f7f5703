"""Attention over keys and values per head: what it keeps, and its weights."""

from collections.abc import Callable
from dataclasses import dataclass

from kvplan.kv_layout.layers import AttentionKind
from kvplan.models.layer_parts import KeptRows
from kvplan.models.shape import Built, LayerKind, ModelShape
from kvplan.models.traits import NO, Flag, QKNorm
from kvplan.parameters import Piece, Pieces, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Heads of one layer of the whole model."""

    query: int
    kv: int
    key_size: int
    value_size: int


HeadsRule = Callable[[ModelShape, LayerKind], Heads]


def plain_heads(shape: ModelShape, kind: LayerKind) -> Heads:  # noqa: ARG001 - a rule like the others
    """Return the heads that all layers of a model have."""
    sizes = shape.geometry
    return Heads(
        query=sizes.num_attention_heads, kv=sizes.num_kv_heads, key_size=sizes.head_dim, value_size=sizes.head_dim
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Builds attention of one kind. The defaults are Llama's."""

    kind: AttentionKind = AttentionKind.FULL
    heads: HeadsRule = plain_heads
    reach: tuple[str, ...] = ("sliding_window",)
    """Keys of the window or chunk; the first that is there counts."""
    qkv_bias: Flag = NO
    key_bias: bool = True
    """Whether keys have a bias where queries and values have one."""
    output_bias: Flag = NO
    qk_norm: QKNorm = QKNorm.NONE
    qk_norm_key: str = ""
    """Key of a flag that turns the norms on; empty where they are always there."""
    gated: Flag = NO
    """Whether queries are projected twice, once for a gate on the output."""
    sinks: Flag = NO
    """Whether every query head has a weight of its own in the softmax."""
    own_kv: bool = True
    """Whether the layer has keys and values of its own; if not, it reads another layer's."""
    value_projection: bool = True
    """Whether values are projected; if not, they are made from keys, and kept all the same."""
    input_widths: int = 1
    """Width of the input over hidden size."""

    def __call__(self, shape: ModelShape, kind: LayerKind) -> Built:
        """Build one layer's attention."""
        heads = self.heads(shape, kind)
        return Built(self._parts(shape, heads), self._pieces(shape, heads))

    def _parts(self, shape: ModelShape, heads: Heads) -> tuple[KeptRows, ...]:
        if not self.own_kv:
            return ()
        kind, reach = self._limit(shape)
        rows = KeptRows(
            kind=kind,
            num_heads=heads.kv,
            key_size=heads.key_size,
            value_size=heads.value_size,
            reach=reach,
            has_open_window=self.kind is AttentionKind.SLIDING_WINDOW and kind is AttentionKind.FULL,
        )
        return (rows,)

    def _limit(self, shape: ModelShape) -> tuple[AttentionKind, int]:
        """Return the kind and its reach: a window that is as long as the longest context never drops a token."""
        if self.kind not in (AttentionKind.SLIDING_WINDOW, AttentionKind.CHUNKED_LOCAL):
            return self.kind, 0
        reader = shape.reader
        key = next((key for key in self.reach if reader.has(key) or reader.has_default(key)), self.reach[0])
        reach = reader.count(key)
        return (AttentionKind.FULL, 0) if reach >= shape.geometry.max_model_len else (self.kind, reach)

    def _pieces(self, shape: ModelShape, heads: Heads) -> Pieces:
        reader, hidden = shape.reader, shape.geometry.hidden_size
        width = hidden * self.input_widths
        queries = heads.query * heads.key_size * (2 if self.gated.read(reader) else 1)
        keys, values = heads.kv * heads.key_size, heads.kv * heads.value_size if self.value_projection else 0
        pieces = [
            Piece(width * queries, Role.ATTENTION, heads.query),
            Piece(heads.query * heads.value_size * hidden, Role.ATTENTION, heads.query),
        ]
        if self.own_kv:
            pieces.append(Piece(width * (keys + values), Role.ATTENTION, heads.kv))
        if self.qkv_bias.read(reader):
            pieces.append(Piece(queries, shards=heads.query))
            if self.own_kv:
                pieces.append(Piece((keys if self.key_bias else 0) + values, shards=heads.kv))
        if self.output_bias.read(reader):
            pieces.append(Piece(hidden))
        if self.sinks.read(reader):
            pieces.append(Piece(heads.query, shards=heads.query))
        if not self.qk_norm_key or reader.flag(self.qk_norm_key, default=False):
            pieces.append(Piece(self._norms(heads)))
        return tuple(piece for piece in pieces if piece.params)

    def _norms(self, heads: Heads) -> int:
        per_head, all_keys = heads.key_size, heads.kv * heads.key_size
        match self.qk_norm:
            case QKNorm.PER_HEAD:
                return per_head * (2 if self.own_kv else 1)
            case QKNorm.FULL:
                return heads.query * heads.key_size + (all_keys if self.own_kv else 0)
            case _:
                return 0
