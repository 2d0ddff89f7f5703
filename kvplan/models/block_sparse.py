"""Block-sparse attention: keys and values of every token, and beside them one index key by which blocks are chosen.

Source: MiniMax-M3's configuration and weights, and its class in vLLM 0.32, whose own sizes these are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from kvplan.config_reader import ConfigReader
from kvplan.kv_layout.layers import AttentionKind
from kvplan.models.attention import Attention
from kvplan.models.family import Family, defaults, drafts_like
from kvplan.models.feeds import Experts, Mlp
from kvplan.models.layer_parts import KeptRows, RowUse
from kvplan.models.shape import FULL, Built, LayerKind, ModelShape
from kvplan.models.traits import QKNorm
from kvplan.parameters import Piece, Role

INDEXED = LayerKind("indexed")
_CONFIG = "sparse_attention_config"
_INDEX_BYTES = 2
"""Index keys are kept in 16 bits, whatever the cache's type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedAttention:
    """Builds attention with an index of keys: a key of one head for every token, queries of as many heads as KV has."""

    attention: Attention

    def __call__(self, shape: ModelShape, kind: LayerKind) -> Built:
        """Build one layer's attention."""
        heads, size = _index_shape(shape.reader)
        hidden = shape.geometry.hidden_size
        keys = KeptRows(
            kind=AttentionKind.FULL,
            num_heads=1,
            key_size=size,
            value_size=0,
            use=RowUse.INDEX,
            element_bytes=_INDEX_BYTES,
        )
        pieces = (
            Piece(hidden * heads * size, Role.ATTENTION, heads),
            Piece(hidden * size, Role.ATTENTION),
            Piece(2 * size),
        )
        return self.attention(shape, kind) + Built((keys,), pieces)


def _index_shape(reader: ConfigReader) -> tuple[int, int]:
    """Return heads and size of the index: as the release spells them, or as transformers does."""
    if reader.has(_CONFIG):
        sparse = reader.nested(_CONFIG)
        return sparse.count("sparse_num_index_heads"), sparse.count("sparse_index_dim")
    return reader.count("index_n_heads"), reader.count("index_head_dim")


def _kinds(reader: ConfigReader, num_layers: int) -> list[LayerKind]:
    """Return which layers have an index: all but those that are marked, or but the first three."""
    if reader.has(_CONFIG):
        sparse = reader.nested(_CONFIG)
        if not sparse.flag("use_sparse_attention", default=True) or not sparse.has("sparse_attention_freq"):
            return [FULL] * num_layers
        return [INDEXED if mark else FULL for mark in sparse.items("sparse_attention_freq", length=num_layers)]
    if reader.has("layer_types"):
        words = reader.items("layer_types", length=num_layers)
        return [FULL if word == "full_attention" else INDEXED for word in words]
    return [FULL if layer < _FIRST_INDEXED else INDEXED for layer in range(num_layers)]


_FIRST_INDEXED = 3
_ATTENTION = Attention(qk_norm=QKNorm.PER_HEAD)
_MINIMAX_M3 = Family(
    defaults=defaults(
        60,
        64,
        6144,
        3072,
        200064,
        524288,
        num_key_value_heads=4,
        head_dim=128,
        num_local_experts=128,
        n_shared_experts=1,
        dense_intermediate_size=12288,
        shared_intermediate_size=3072,
        index_n_heads=4,
        index_head_dim=128,
    ),
    kinds=_kinds,
    attention=_ATTENTION,
    mixers={INDEXED.name: IndexedAttention(attention=_ATTENTION)},
    feed=Mlp(width=("dense_intermediate_size",)),
    experts=Experts(
        count=("num_local_experts",),
        width=("intermediate_size",),
        shared_width_default=("shared_intermediate_size",),
        router_bias=True,
    ),
    drafts=drafts_like("num_mtp_modules", INDEXED),
    ignored=("index_topk_blocks",),
)

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {"minimax_m3": _MINIMAX_M3, "minimax_m3_vl_text": replace(_MINIMAX_M3, towers=True)}
)
