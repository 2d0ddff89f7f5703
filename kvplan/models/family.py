"""What is known of a model type: its spellings, its class defaults, its kinds of layers and their weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kvplan.config_reader import ConfigReader
from kvplan.kv_layout.layers import AttentionKind
from kvplan.models.attention import Attention
from kvplan.models.feeds import DENSE, SPARSE, Mlp
from kvplan.models.layer_kinds import all_full
from kvplan.models.layer_parts import LayerParts
from kvplan.models.shape import Built, KindRule, LayerKind, Mixer, ModelShape, nothing
from kvplan.models.sparse_layers import all_dense, usual
from kvplan.models.traits import NO, Flag
from kvplan.parameters import Piece, Pieces

KVHeadsRule = Callable[[ConfigReader, int], int]
"""KV heads from the configuration and the number of attention heads."""

DraftRule = Callable[[ModelShape, "Family"], tuple[LayerParts, ...]]
"""What draft layers (multi-token prediction) keep when they are served; one entry per layer."""


def key_value_heads(reader: ConfigReader, num_heads: int) -> int:
    """Read the count under its usual names; without one, every attention head has its own K and V."""
    for key in ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_attention_groups"):
        if reader.has(key) or reader.has_default(key):
            return reader.count(key)
    return num_heads


_ATTENTION, _MLP = Attention(), Mlp()


def no_drafts(shape: ModelShape, family: "Family") -> tuple[LayerParts, ...]:  # noqa: ARG001 - a rule like the others
    """Return no draft layers."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model type. The spellings and weights are Llama's unless it says otherwise."""

    defaults: Mapping[str, int] = field(default_factory=dict)
    """Class defaults by key; a key without one must be there."""
    nested_defaults: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Class defaults of objects inside."""
    layers: tuple[str, ...] = ("num_hidden_layers",)
    num_layers: Callable[[ConfigReader], int | None] = lambda _: None
    """Layers where no key says how many."""
    heads: str = "num_attention_heads"
    """Empty for models without attention."""
    hidden: str = "hidden_size"
    vocab: str = "vocab_size"
    head_dim: tuple[str, ...] = ("head_dim",)
    """Keys of the size of a head, else hidden size over heads; no keys where layers have sizes of their own."""
    heads_divide: bool = True
    """Whether heads must divide the hidden size where no key states their size; if not, it is rounded down."""
    kv_heads: KVHeadsRule = key_value_heads
    kinds: KindRule = all_full
    attention: Attention = _ATTENTION
    """Of full layers, and with a limit of sliding and chunked ones."""
    mixers: Mapping[str, Mixer] = field(default_factory=dict)
    """Of kinds of layers, by name; they go before what `attention` gives."""
    feed_kinds: KindRule | None = None
    """Which layers have experts; None for the usual spellings where there are experts at all."""
    feed: Mixer = _MLP
    experts: Mixer | None = None
    drafts: DraftRule = no_drafts
    ignored: tuple[str, ...] = ()
    """Keys that would mean something in another type and mean nothing in this one."""
    layer_norms: int | Mapping[str, int] = 2
    """Norms of hidden size in each layer, or in each layer of a kind."""
    final_norms: int = 1
    norm_bias: bool = False
    norm_weights: bool = True
    head_bias: Flag = NO
    tied: bool = False
    """What the class assumes of `tie_word_embeddings`."""
    extra_positions: int | None = None
    """Rows of a learned position table beyond the longest length; None where there is no table."""
    table_width: str = ""
    """Key of the width of embeddings, where they are narrower than the layers and projected."""
    beside: Callable[[ModelShape], Pieces] = lambda _: ()
    """Weights that belong to no layer."""
    per_layer: Callable[[ModelShape, LayerKind], Pieces] = lambda _, __: ()
    """Weights of each layer that are neither mixer nor feed nor norms of hidden size."""
    encoder_tokens: Callable[[ConfigReader], int] = lambda _: 0
    """Most positions of an encoder or a picture that cross-attention keeps."""
    weights_known: bool = True
    """Whether the make-up of the weights is known here."""
    exact: bool = True
    """Whether parameters are counted to the last one; otherwise they are within a few per cent."""
    latent_in_vllm: bool = True
    """Whether vLLM keeps its latent rows as they are; if not, it keeps keys and values of every head."""
    towers: bool = False
    """It comes with a vision or audio part, whose weights are not counted here."""

    def mixer(self, kind: LayerKind) -> Mixer:
        """Return what builds the mixing of tokens in layers of a kind."""
        if kind.name in self.mixers:
            return self.mixers[kind.name]
        limited: Mapping[str, Mixer] = {
            "full": self.attention,
            "sliding": replace(self.attention, kind=AttentionKind.SLIDING_WINDOW),
            "chunked": replace(self.attention, kind=AttentionKind.CHUNKED_LOCAL, reach=("attention_chunk_size",)),
            "nothing": nothing,
        }
        return limited[kind.name]

    def build(self, shape: ModelShape, kind: LayerKind, feed_kind: LayerKind) -> Built:
        """Build one layer."""
        return self.mixer(kind)(shape, kind) + self._feed(feed_kind)(shape, feed_kind) + self._norms(shape, kind)

    def feed_kinds_of(self, reader: ConfigReader, num_layers: int) -> list[LayerKind]:
        """Return the kind of what follows the mixing in each layer."""
        rule = self.feed_kinds or (usual if self.experts else all_dense)
        return rule(reader, num_layers)

    def norm_width(self, hidden: int) -> int:
        """Return the parameters of one norm of hidden size."""
        return hidden * (2 if self.norm_bias else 1) if self.norm_weights else 0

    def _feed(self, kind: LayerKind) -> Mixer:
        if kind == SPARSE:
            assert self.experts is not None, "only families with experts have sparse layers"
            return self.experts
        return self.feed if kind.name == DENSE.name else nothing

    def _norms(self, shape: ModelShape, kind: LayerKind) -> Built:
        count = self.layer_norms if isinstance(self.layer_norms, int) else self.layer_norms.get(kind.name, 0)
        norms = Piece(count * self.norm_width(shape.geometry.hidden_size))
        return Built(pieces=((norms,) if norms.params else ()) + self.per_layer(shape, kind))


def defaults(
    layers: int, heads: int, hidden: int, intermediate: int, vocab: int, max_len: int, **others: int
) -> Mapping[str, int]:
    """Name the class defaults of a type with Llama's spellings."""
    return MappingProxyType(
        {
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "vocab_size": vocab,
            "max_position_embeddings": max_len,
            **others,
        }
    )


def drafts_like(key: str, kind: LayerKind, *, each: int = 1, keys: tuple[str, ...] = ()) -> DraftRule:
    """Draft layers that keep what layers of a kind keep; the key says how many, further keys how many in each."""

    def rule(shape: ModelShape, family: Family) -> tuple[LayerParts, ...]:
        count = (shape.reader.optional_count(key, minimum=0, maximum=64) or 0) * each
        for further in keys:
            count *= shape.reader.optional_count(further, maximum=64) or 1
        return (family.mixer(kind)(shape, kind).parts,) * count

    return rule
