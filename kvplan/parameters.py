"""Parameters of a decoder from its configuration: of the whole model, and of what one tensor-parallel rank holds."""

from dataclasses import dataclass
from enum import Enum, auto

from kvengine.units import cdiv, round_up
from kvplan.config_reader import ConfigReader

VOCAB_PADDING = 64
"""vLLM pads the vocabulary to a multiple of this, then to a multiple of the ranks, before it splits the rows."""


class QKNorm(Enum):
    """Norms on queries and keys."""

    NONE = auto()
    PER_HEAD = auto()
    """One weight per head dimension, shared by the heads."""
    FULL = auto()
    """One weight per channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """Whether a projection has a bias: what its key says, else the default."""

    default: bool = False
    key: str = ""

    def read(self, reader: ConfigReader) -> bool:
        """Return what this configuration says."""
        return reader.flag(self.key, default=self.default) if self.key else self.default


NO_BIAS, BIAS = Bias(), Bias(default=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTraits:
    """What a model type's layers are made of, beyond the geometry of its KV cache. The defaults are Llama's."""

    intermediate: str = "intermediate_size"
    """Key of the MLP's width."""
    intermediate_per_hidden: int = 0
    """Width over hidden size where the key is absent; 0 where it must be there."""
    intermediate_halves: int = 1
    """2 where the key counts both halves of a gated MLP."""
    mlp_matrices: int = 3
    """3 for gated MLPs, 2 for plain ones."""
    mlp_bias: Bias = NO_BIAS
    qkv_bias: Bias = NO_BIAS
    output_bias: Bias = NO_BIAS
    head_bias: Bias = NO_BIAS
    qk_norm: QKNorm = QKNorm.NONE
    qk_norm_key: str = ""
    """Key of a flag that turns the norms on; empty where they are always there."""
    layer_norms: int = 2
    """Norms of hidden size in each layer."""
    final_norms: int = 1
    norm_bias: bool = False
    tied: bool = False
    """What the class assumes of `tie_word_embeddings`."""
    extra_positions: int | None = None
    """Rows of a learned position table beyond the longest length; None where there is no table."""
    experts: str = ""
    """Key of the number of experts; empty for dense models."""
    expert_intermediate: str = "moe_intermediate_size"
    shared_expert: str = ""
    """Key of the width of a shared expert, which has a gate of its own."""
    exact: bool = True
    """Whether the count is the model's own to the last parameter; otherwise it is within a few per mille."""


GATED_MLP = WeightTraits()
"""Llama's layers: gated MLP, two norms without bias, an untied head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightShape:
    """Sizes of the weights of a decoder: attention and MLP layers between an embedding and a head.

    Worked value: Llama-3.1-8B (vocabulary 128,256, hidden 4,096, 32 layers, 32 heads of 128, 8 KV heads, MLP 14,336,
    untied head) has 8,030,261,248 parameters, 14.96 GiB in 16 bits.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    split_params: int
    """Of all layers together, split over the ranks: MLP and expert matrices and the biases that go with them."""
    whole_params: int
    """Held whole by every rank: norms, routers, biases of outputs, learned positions."""
    qkv_bias: bool
    tied: bool
    """The head shares the embedding."""
    exact: bool
    """As in `WeightTraits`."""

    @property
    def parameters(self) -> int:
        """Parameters of the whole model; a tied embedding counts once."""
        return self.rank_parameters(1, vocab_padding=1)

    def rank_parameters(self, tensor_parallel: int, *, vocab_padding: int = VOCAB_PADDING) -> int:
        """Parameters that one rank holds: KV heads are repeated, never split below one; the vocabulary is padded."""
        heads = cdiv(self.num_attention_heads, tensor_parallel)
        kv_heads = cdiv(self.num_kv_heads, tensor_parallel)
        qkv_width = (heads + 2 * kv_heads) * self.head_dim
        attention = self.hidden_size * (qkv_width + heads * self.head_dim) + (qkv_width if self.qkv_bias else 0)
        padded_vocab = round_up(round_up(self.vocab_size, vocab_padding), tensor_parallel)
        tables = (1 if self.tied else 2) * (padded_vocab // tensor_parallel) * self.hidden_size
        return tables + self.num_layers * attention + cdiv(self.split_params, tensor_parallel) + self.whole_params


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """The sizes that the KV cache needs too."""

    num_layers: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    max_model_len: int


def weight_shape(reader: ConfigReader, traits: WeightTraits, geometry: Geometry, *, tied: bool) -> WeightShape:
    """Work out the weights of a model.

    Raises:
        ConfigError: A key that they need is missing or senseless.
    """
    mlp_params, router_params = _mlp(reader, traits, geometry)
    hidden, layers = geometry.hidden_size, geometry.num_layers
    query_width, kv_width = (
        heads * geometry.head_dim for heads in (geometry.num_attention_heads, geometry.num_kv_heads)
    )
    norm_width = hidden * (2 if traits.norm_bias else 1)
    qk_norm_widths = {QKNorm.NONE: 0, QKNorm.PER_HEAD: 2 * geometry.head_dim, QKNorm.FULL: query_width + kv_width}
    has_qk_norm = not traits.qk_norm_key or reader.flag(traits.qk_norm_key, default=False)
    per_layer = traits.layer_norms * norm_width + (qk_norm_widths[traits.qk_norm] if has_qk_norm else 0)
    per_layer += hidden if traits.output_bias.read(reader) else 0
    once = traits.final_norms * norm_width + (geometry.vocab_size if traits.head_bias.read(reader) else 0)
    if traits.extra_positions is not None:
        once += (geometry.max_model_len + traits.extra_positions) * hidden
    return WeightShape(
        vocab_size=geometry.vocab_size,
        hidden_size=hidden,
        num_layers=layers,
        num_attention_heads=geometry.num_attention_heads,
        num_kv_heads=geometry.num_kv_heads,
        head_dim=geometry.head_dim,
        split_params=mlp_params,
        whole_params=layers * per_layer + once + router_params,
        qkv_bias=traits.qkv_bias.read(reader),
        tied=tied,
        exact=traits.exact,
    )


def _mlp(reader: ConfigReader, traits: WeightTraits, geometry: Geometry) -> tuple[int, int]:
    """Return the parameters of MLPs and experts, and those of routers, of all layers."""
    hidden, layers = geometry.hidden_size, geometry.num_layers
    if not traits.experts:
        width = _dense_width(reader, traits, hidden)
        bias = (width * (traits.mlp_matrices - 1) + hidden) if traits.mlp_bias.read(reader) else 0
        return layers * (traits.mlp_matrices * hidden * width + bias), 0
    num_experts = reader.count(traits.experts)
    expert_width = reader.count(traits.expert_intermediate)
    num_dense = _num_dense_layers(reader, layers)
    dense = num_dense * traits.mlp_matrices * hidden * _dense_width(reader, traits, hidden) if num_dense else 0
    experts = (layers - num_dense) * num_experts * traits.mlp_matrices * hidden * expert_width
    shared, shared_gate = _shared_expert(reader, traits, hidden, expert_width)
    routers = num_experts * hidden + shared_gate
    return dense + experts + (layers - num_dense) * shared, (layers - num_dense) * routers


def _dense_width(reader: ConfigReader, traits: WeightTraits, hidden: int) -> int:
    if traits.intermediate_per_hidden and not reader.has(traits.intermediate):
        return traits.intermediate_per_hidden * hidden
    return reader.count(traits.intermediate) // traits.intermediate_halves


def _num_dense_layers(reader: ConfigReader, num_layers: int) -> int:
    """Return how many layers of a mixture-of-experts model have a plain MLP."""
    first_dense = reader.optional_count("first_k_dense_replace", minimum=0) or 0
    sparse_step = reader.optional_count("decoder_sparse_step") or 1
    listed = reader.get("mlp_only_layers") or []
    if not isinstance(listed, list) or not all(isinstance(layer, int) for layer in listed):
        raise reader.refuse("mlp_only_layers: expected a list of layer numbers")
    return sum(layer < first_dense or layer in listed or (layer + 1) % sparse_step != 0 for layer in range(num_layers))


def _shared_expert(reader: ConfigReader, traits: WeightTraits, hidden: int, expert_width: int) -> tuple[int, int]:
    """Return the parameters of one layer's shared experts, and of their gate."""
    if traits.shared_expert:
        return traits.mlp_matrices * hidden * reader.count(traits.shared_expert), hidden
    num_shared = reader.optional_count("n_shared_experts", minimum=0) or 0
    return num_shared * traits.mlp_matrices * hidden * expert_width, 0
