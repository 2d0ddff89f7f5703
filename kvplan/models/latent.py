"""Multi-head latent attention: one row per token for all heads, with or without an index of keys.

row      kv_lora_rank + qk_rope_head_dim elements, no values; no rank splits it
index    index_head_dim elements more, by which sparse attention chooses tokens
"""

from dataclasses import dataclass

from kvplan.kv_layout.layers import AttentionKind
from kvplan.models.attention import Attention
from kvplan.models.layer_parts import KeptRows, RowUse
from kvplan.models.shape import Built, LayerKind, ModelShape
from kvplan.models.traits import NO, Flag
from kvplan.parameters import Piece, Pieces, Role

WITH_INDEX, WITHOUT_INDEX = LayerKind("latent", 1), LayerKind("latent")
"""Layers with an index of their own, and those without one or with another layer's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Builds latent attention (DeepSeek-V2 and later); plain attention where the configuration turns it off."""

    bias: Flag = NO
    plain: Attention | None = None
    """What the class does without `kv_lora_rank`."""
    output_gate: Flag = NO

    def __call__(self, shape: ModelShape, kind: LayerKind) -> Built:
        """Build one layer's attention."""
        reader = shape.reader
        rank = reader.optional_count("kv_lora_rank", minimum=0) or 0
        if self.plain is not None and (not rank or not reader.flag("use_mla", default=True)):
            return self.plain(shape, kind)
        if not rank and not reader.has_default("kv_lora_rank"):
            raise reader.refuse("key 'kv_lora_rank' is missing")
        rank = rank or reader.count("kv_lora_rank")
        row = KeptRows(
            kind=AttentionKind.MLA, num_heads=1, key_size=rank + reader.count("qk_rope_head_dim"), value_size=0
        )
        built = Built((row,), self._pieces(shape, rank))
        return built + _index(shape) if kind.size else built

    def _pieces(self, shape: ModelShape, rank: int) -> Pieces:
        reader, sizes = shape.reader, shape.geometry
        hidden, heads = sizes.hidden_size, sizes.num_attention_heads
        nope, rope = reader.count("qk_nope_head_dim"), reader.count("qk_rope_head_dim")
        values = reader.count("v_head_dim")
        query_rank = reader.optional_count("q_lora_rank", minimum=0)
        if query_rank is None and reader.has_default("q_lora_rank"):
            query_rank = reader.count("q_lora_rank")
        pieces = [
            Piece((query_rank or hidden) * heads * (nope + rope), Role.ATTENTION, heads),
            Piece(hidden * (rank + rope), Role.ATTENTION),
            Piece(rank),
            Piece(rank * heads * (nope + values), Role.ATTENTION, heads),
            Piece(heads * values * hidden, Role.ATTENTION, heads),
        ]
        if query_rank:
            pieces += [Piece(hidden * query_rank, Role.ATTENTION), Piece(query_rank)]
        if self.output_gate.read(reader):
            pieces.append(Piece(hidden * heads * values, Role.ATTENTION, heads))
        if self.bias.read(reader):
            pieces.append(Piece((query_rank or 0) + rank + rope + hidden))
        return tuple(pieces)


def unfolded_rows(shape: ModelShape) -> KeptRows:
    """Return keys and values of every head, as an engine without latent attention keeps them: values as long as keys.

    Source: vLLM 0.32's MiniCPM3, whose answer on its own configuration this is.
    """
    size = shape.reader.count("qk_nope_head_dim") + shape.reader.count("qk_rope_head_dim")
    return KeptRows(
        kind=AttentionKind.FULL, num_heads=shape.geometry.num_attention_heads, key_size=size, value_size=size
    )


def _index(shape: ModelShape) -> Built:
    reader, hidden = shape.reader, shape.geometry.hidden_size
    size, heads = reader.count("index_head_dim"), reader.count("index_n_heads")
    rows = KeptRows(kind=AttentionKind.MLA, num_heads=1, key_size=size, value_size=0, use=RowUse.INDEX)
    # Every rank holds the whole index.
    projections = reader.count("q_lora_rank") * heads * size + hidden * size
    return Built((rows,), (Piece(projections, Role.ATTENTION), Piece(hidden * heads + 2 * size)))
