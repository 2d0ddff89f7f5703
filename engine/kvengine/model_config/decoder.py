"""A decoder as data: what its layers are made of, in which order, and how wide.

The parts that differ between families (norms, attention, feed-forward, rotary positions) are values here; the one
skeleton in `kvengine.models.decoder` builds what they say.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvengine.spec import KVCacheSpec, KVDtype


class RopeKind(StrEnum):
    """How rotary frequencies are scaled for long contexts."""

    DEFAULT = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary positions over a whole head: `theta ** (-2i / head_dim)`, scaled as `kind` says."""

    theta: float
    kind: RopeKind = RopeKind.DEFAULT
    factor: float = 1.0
    original_max_model_len: int = 0
    """Context of the unscaled model in tokens; of `llama3` and `yarn`."""
    low_freq_factor: float = 1.0
    """Of `llama3`: what turns fewer times within the original context is scaled."""
    high_freq_factor: float = 4.0
    """Of `llama3`: what turns more often is kept."""
    beta_fast: float = 32.0
    """Of `yarn`: what turns more often within the original context is kept."""
    beta_slow: float = 1.0
    """Of `yarn`: what turns fewer times is scaled."""
    truncate: bool = True
    """Of `yarn`: whether the blend begins and ends at whole dimensions."""
    amplitude: float = 1.0
    """Of `yarn`: what cosines and sines are multiplied by."""


class Activation(StrEnum):
    """The nonlinearity of a gated feed-forward layer."""

    SILU = "silu"
    GELU_TANH = "gelu_pytorch_tanh"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedAttention:
    """Heads in groups that share keys and values (MHA, GQA, MQA)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeConfig
    scale: float
    """What the products of queries and keys are multiplied by."""
    window: int | None = None
    """Tokens that are attended to, the current one included; None for all."""
    softcap: float | None = None
    """Scores are squeezed into (-softcap, softcap) by tanh."""
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    """Whether each head of queries and keys is normed before it is rotated."""

    @property
    def kv_row(self) -> tuple[int, int, int]:
        """Heads, key size and value size of what the cache keeps of a token."""
        return self.num_kv_heads, self.head_dim, self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: the cache keeps one latent vector and one rotated key of a token for all heads.

    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1.
    """

    num_heads: int
    q_lora_rank: int | None
    """Size of the compressed queries; None where they are not compressed."""
    kv_lora_rank: int
    """Size of the latent vector."""
    nope_head_dim: int
    """Part of a head without positions."""
    rope_head_dim: int
    value_head_dim: int
    rope: RopeConfig
    scale: float

    window: None = None
    softcap: None = None

    @property
    def kv_row(self) -> tuple[int, int, int]:
        """One row, as long as latent vector and rotated key together, without a value beside it."""
        return 1, self.kv_lora_rank + self.rope_head_dim, 0


Attention = GroupedAttention | LatentAttention


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseFeed:
    """A gated feed-forward layer that every token goes through."""

    intermediate_size: int
    activation: Activation = Activation.SILU


class Scoring(StrEnum):
    """How a router's logits become scores."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertNames:
    """What a family calls the tensors of its experts, below a layer's name."""

    block: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertFeed:
    """Gated feed-forward layers of which a router chooses some for each token."""

    num_experts: int
    top_k: int
    """Experts of a token."""
    intermediate_size: int
    """Of one expert."""
    normalize: bool
    """Whether the weights of a token's experts are made to add up to 1."""
    scoring: Scoring = Scoring.SOFTMAX
    num_groups: int = 1
    """Experts are chosen from the best groups only."""
    top_groups: int = 1
    """Groups that a token may choose from."""
    selection_bias: bool = False
    """Whether a bias is added to the scores for the choice alone (DeepSeek-V3)."""
    routed_scale: float = 1.0
    """What the experts' sum is multiplied by."""
    shared_size: int = 0
    """Width of the feed-forward layer that every token goes through besides; 0 for none."""
    activation: Activation = Activation.SILU
    names: ExpertNames = ExpertNames()


Feed = DenseFeed | ExpertFeed


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """One layer: attention, then feed-forward."""

    attention: Attention
    feed: Feed


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A decoder-only model: embedding, layers, final norm, head."""

    layers: tuple[LayerConfig, ...]
    hidden_size: int
    vocab_size: int
    max_model_len: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    eos_token_ids: frozenset[int] = frozenset()
    norm_offset: float = 0.0
    """What is added to the stored weight of a norm; not 0 also means that norms are computed in float32."""
    sandwich_norms: bool = False
    """Whether the results of attention and feed-forward are normed too, before they are added."""
    embedding_scale: float = 1.0
    final_softcap: float | None = None
    """Logits are squeezed into (-softcap, softcap) by tanh."""
    is_text_part: bool = False
    """Whether its weights lie among those of a model that also sees."""
    fp8_block: tuple[int, int] | None = None
    """Rows and columns that share a scale, where matrices are stored in 8 bits."""

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self.layers)

    @property
    def num_heads(self) -> int:
        """Query heads; the same in all layers."""
        return self.layers[0].attention.num_heads

    def kv_cache_spec(self, dtype: KVDtype, block_size: int, *, layers_per_block: int | None = None) -> KVCacheSpec:
        """Geometry of this model's KV cache on one device.

        Args:
            dtype: Element type.
            block_size: Tokens per block.
            layers_per_block: Layers that share a block: those of the longest group; all if not given.
        """
        num_kv_heads, head_dim, head_dim_v = self.layers[0].attention.kv_row
        return KVCacheSpec(
            num_layers=layers_per_block or self.num_layers,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            head_dim_v=head_dim_v,
            dtype=dtype,
            block_size=block_size,
        )


def uniform_layers(attention: Attention, feed: Feed, count: int) -> tuple[LayerConfig, ...]:
    """Layers that are all alike."""
    return (LayerConfig(attention=attention, feed=feed),) * count


def zip_layers(attention: Sequence[Attention], feed: Sequence[Feed]) -> tuple[LayerConfig, ...]:
    """Layers from the attention and the feed-forward part of each."""
    return tuple(LayerConfig(attention=a, feed=f) for a, f in zip(attention, feed, strict=True))
