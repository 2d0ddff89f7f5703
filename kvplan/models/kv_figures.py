"""How much KV and state a model keeps, whatever engine holds it: no pages, no padding, no division over GPUs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from kvengine.spec import KVDtype, kv_row_bytes
from kvplan.kv_layout.layers import AttentionKind
from kvplan.models.layer_parts import KeptRows, KeptState, LayerParts, RowUse, StateKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Limited:
    """Layers that keep a window or a chunk of one length."""

    kind: AttentionKind
    reach: int
    layers: int
    bytes_per_token: int
    """Of all of them, for each token inside the reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Layers that keep states of one kind."""

    kind: StateKind
    layers: int
    conv_elements: int
    """Of one layer."""
    head_elements: int
    """Of one layer."""
    dtype: KVDtype | None
    """Of the part per head; None for the model's own type."""

    def bytes_per_sequence(self, *, conv_bytes: int, head_bytes: int) -> int:
        """Bytes of all layers, at so many bytes an element."""
        return self.layers * (self.conv_elements * conv_bytes + self.head_elements * head_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVFigures:
    """What layers keep, at one element size."""

    rows: tuple[KeptRows, ...]
    states: tuple[States, ...]
    element_bytes: int

    @property
    def bytes_per_token(self) -> int | Fraction:
        """Growth with every further token: rows of layers that keep every token, an index of keys left out.

        A compressed stream's own index belongs to it and is counted.
        """
        return _whole(sum(self._token_bytes(row) for row in self.rows if row.grows and not _is_plain_index(row)))

    @property
    def naive_bytes_per_token(self) -> int | Fraction:
        """The same in an engine that keeps every token of sliding and chunked layers too."""
        limited = (AttentionKind.SLIDING_WINDOW, AttentionKind.CHUNKED_LOCAL)
        return _whole(self.bytes_per_token + sum(self._token_bytes(row) for row in self.rows if row.kind in limited))

    @property
    def growing_layers(self) -> int:
        """Attentions that keep every token."""
        return sum(row.grows and row.use is RowUse.ATTENTION for row in self.rows)

    @property
    def latent_rows(self) -> list[KeptRows]:
        """Rows of latent attention, one per attention."""
        return [row for row in self.rows if row.kind is AttentionKind.MLA and row.use is RowUse.ATTENTION]

    @property
    def index_rows(self) -> list[KeptRows]:
        """Rows of keys by which sparse attention chooses tokens."""
        return [row for row in self.rows if row.use is RowUse.INDEX]

    @property
    def cross_rows(self) -> list[KeptRows]:
        """Rows for the positions of an encoder."""
        return [row for row in self.rows if row.kind is AttentionKind.CROSS]

    def limited(self, kind: AttentionKind) -> list[Limited]:
        """Layers with a window or a chunk, by its length."""
        reaches = sorted({row.reach for row in self.rows if row.kind is kind})
        return [self._limited(kind, reach) for reach in reaches]

    def amount(self, rows: Iterable[KeptRows]) -> int:
        """Bytes of one token in some rows, compression left out."""
        return sum(self._row_bytes(row) for row in rows)

    def _limited(self, kind: AttentionKind, reach: int) -> Limited:
        rows = [row for row in self.rows if row.kind is kind and row.reach == reach]
        return Limited(kind=kind, reach=reach, layers=len(rows), bytes_per_token=self.amount(rows))

    def _token_bytes(self, row: KeptRows) -> Fraction:
        return Fraction(self._row_bytes(row), row.tokens_per_row)

    def _row_bytes(self, row: KeptRows) -> int:
        return kv_row_bytes(row.num_heads, row.key_size, row.value_size, self.element_bytes)


def kv_figures(layers: Sequence[LayerParts], *, element_bytes: int = 2) -> KVFigures:
    """Add up what layers keep."""
    return KVFigures(
        rows=tuple(part for layer in layers for part in layer if isinstance(part, KeptRows)),
        states=tuple(_states(layers)),
        element_bytes=element_bytes,
    )


def _states(layers: Sequence[LayerParts]) -> Iterator[States]:
    parts = [part for layer in layers for part in layer if isinstance(part, KeptState)]
    for first in dict.fromkeys(parts):
        yield States(
            kind=first.kind,
            layers=parts.count(first),
            conv_elements=first.conv_elements,
            head_elements=first.head_state_elements,
            dtype=first.dtype,
        )


def _is_plain_index(row: KeptRows) -> bool:
    return row.use is RowUse.INDEX and row.tokens_per_row == 1


def _whole(value: Fraction | int) -> int | Fraction:
    number = Fraction(value)
    return number.numerator if number.denominator == 1 else number
