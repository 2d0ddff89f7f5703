"""Layers with a state of fixed size: state-space models, linear attention, short convolutions."""

from dataclasses import dataclass

from kvengine.spec import KVDtype
from kvplan.config_reader import ConfigReader, shown
from kvplan.models.layer_parts import KeptState, StateKind
from kvplan.models.shape import Built, LayerKind, ModelShape
from kvplan.models.traits import NO, YES, Flag
from kvplan.parameters import Piece, Role


def state_dtype(reader: ConfigReader, *keys: str, default: KVDtype | None = None) -> KVDtype | None:
    """Read the element type of states; None for the model's own."""
    for key in keys:
        text = reader.text(key)
        if text is not None and text != "auto":
            name = text.removeprefix("torch.")
            if name not in ("float32", "float16", "bfloat16"):
                raise reader.refuse(f"{key}: expected one of float32, float16, bfloat16, got {shown(text)}")
            return KVDtype(name)
    return default


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba1:
    """Builds a Mamba layer: a convolution over its channels, and `state_size` numbers for each of them."""

    state: str = "state_size"
    kernel: str = "conv_kernel"
    expand: str = "expand"
    rank: str = "time_step_rank"
    width: str = "intermediate_size"
    """Key of the channels; empty where they are `expand` times hidden size."""
    bias: Flag = NO
    conv_bias: Flag = YES
    norms: bool = False
    """Whether the time step and both state inputs have norms (Jamba)."""

    def __call__(self, shape: ModelShape, kind: LayerKind) -> Built:  # noqa: ARG002 - all layers are alike
        """Build one layer."""
        reader, hidden = shape.reader, shape.geometry.hidden_size
        states, kernel = reader.count(self.state), reader.count(self.kernel)
        width = (reader.optional_count(self.width) if self.width else None) or reader.count(self.expand) * hidden
        rank = _time_rank(reader, self.rank, hidden)
        part = KeptState(
            kind=StateKind.MAMBA1,
            conv_columns=kernel - 1,
            conv_channels=width,
            heads=width,
            head_elements=states,
            dtype=state_dtype(reader, "mamba_ssm_cache_dtype"),
            drafts_add_columns=False,
        )
        small = width * (states + 1 + kernel + 1) + (width if self.conv_bias.read(reader) else 0)
        pieces = [
            Piece(hidden * 2 * width + width * hidden, Role.STATE, width),
            Piece(width * (rank + 2 * states) + rank * width, Role.STATE, width),
            Piece(small, shards=width),
        ]
        if self.norms:
            pieces.append(Piece(rank + 2 * states))
        if self.bias.read(reader):
            pieces.append(Piece(2 * width + hidden))
        return Built((part,), tuple(pieces))


def _time_rank(reader: ConfigReader, key: str, hidden: int) -> int:
    if reader.get(key) == "auto" or not (reader.has(key) or reader.has_default(key)):
        return -(-hidden // 16)
    return reader.count(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """Builds a Mamba-2 layer: heads of `head_size` channels with `state` numbers each, in groups."""

    state: tuple[str, ...]
    kernel: tuple[str, ...]
    groups: tuple[str, ...]
    heads: tuple[str, ...]
    head_size: str = ""
    """Key of the channels of a head; empty where they follow from the width."""
    expand: tuple[str, ...] = ()
    """Keys of width over hidden size; empty where the width is heads times head size."""
    width: str = ""
    """Key of the width itself, which goes before."""
    bias: Flag = NO
    conv_bias: Flag = YES
    norm: Flag = YES
    dtype: KVDtype | None = None
    """Type of the state where the configuration says none; None for the model's own."""

    def __call__(self, shape: ModelShape, kind: LayerKind) -> Built:  # noqa: ARG002 - all layers are alike
        """Build one layer."""
        reader, hidden = shape.reader, shape.geometry.hidden_size
        states, kernel = reader.first_count(self.state), reader.first_count(self.kernel)
        groups, heads = reader.first_count(self.groups), reader.first_count(self.heads)
        width = self._width(reader, heads, hidden)
        if width % heads:
            raise reader.refuse(f"{self.heads[0]} {heads} does not divide the width {width} of the state-space layers")
        part = KeptState(
            kind=StateKind.MAMBA2,
            conv_columns=kernel - 1,
            conv_channels=width,
            groups=groups,
            group_channels=2 * states,
            heads=heads,
            head_elements=width // heads * states,
            dtype=state_dtype(reader, "mamba_ssm_cache_dtype", "mamba_ssm_dtype", default=self.dtype),
        )
        channels = width + 2 * groups * states
        small = channels * kernel + (channels if self.conv_bias.read(reader) else 0)
        pieces = [
            Piece(hidden * (2 * width + heads) + width * hidden, Role.STATE, heads),
            Piece(hidden * 2 * groups * states, Role.STATE, groups),
            Piece(small + (width if self.norm.read(reader) else 0) + 3 * heads, shards=heads),
        ]
        if self.bias.read(reader):
            pieces.append(Piece(width + channels + heads + hidden))
        return Built((part,), tuple(pieces))

    def _width(self, reader: ConfigReader, heads: int, hidden: int) -> int:
        stated = reader.optional_count(self.width) if self.width else None
        if stated is not None:
            return stated
        size = reader.get(self.head_size) if self.head_size else None
        if self.head_size and (size not in (None, "auto") or reader.has_default(self.head_size)):
            return heads * reader.count(self.head_size)
        return reader.first_count(self.expand) * hidden


def gated_delta_net(shape: ModelShape, kind: LayerKind) -> Built:  # noqa: ARG001 - all layers are alike
    """Build a gated delta net (Qwen3-Next, Qwen3.5): a matrix per value head."""
    reader, hidden = shape.reader, shape.geometry.hidden_size
    key_heads, value_heads = reader.count("linear_num_key_heads"), reader.count("linear_num_value_heads")
    key_size, value_size = reader.count("linear_key_head_dim"), reader.count("linear_value_head_dim")
    kernel = reader.count("linear_conv_kernel_dim")
    keys, values = key_heads * key_size, value_heads * value_size
    part = KeptState(
        kind=StateKind.GATED_DELTA_NET,
        conv_columns=kernel - 1,
        conv_channels=2 * keys + values,
        heads=value_heads,
        head_elements=key_size * value_size,
        dtype=state_dtype(reader, "mamba_ssm_dtype", "mamba_ssm_cache_dtype"),
    )
    pieces = (
        Piece(hidden * (2 * keys + 2 * values + 2 * value_heads), Role.STATE, key_heads),
        Piece(values * hidden, Role.STATE, value_heads),
        Piece((2 * keys + values) * kernel, shards=key_heads),
        Piece(2 * value_heads, shards=value_heads),
        Piece(value_size),
    )
    return Built((part,), pieces)


def delta_attention(shape: ModelShape, kind: LayerKind) -> Built:  # noqa: ARG001 - all layers are alike
    """Build Kimi delta attention: a matrix per head in float32, gates of low rank."""
    hidden = shape.geometry.hidden_size
    is_nested = shape.reader.has("linear_attn_config")
    reader = shape.reader.nested("linear_attn_config") if is_nested else shape.reader
    heads, size = (reader.count(key if is_nested else f"linear_{key}") for key in ("num_heads", "head_dim"))
    kernel = reader.optional_first_count(("short_conv_kernel_size", "linear_conv_kernel_dim")) or 4
    width = heads * size
    part = KeptState(
        kind=StateKind.KDA,
        conv_columns=kernel - 1,
        conv_channels=3 * width,
        heads=heads,
        head_elements=size * size,
        dtype=KVDtype.FLOAT32,
    )
    output_gate = hidden * width if reader.flag("use_full_rank_gate", default=False) else (hidden + width) * size
    pieces = (
        Piece(hidden * 3 * width + width * hidden, Role.STATE, heads),
        Piece((hidden + width) * size + output_gate, Role.STATE),
        Piece(hidden * heads, Role.STATE, heads),
        Piece(3 * width * kernel + width, shards=heads),
        Piece(heads, shards=heads),
        Piece(size),
    )
    return Built((part,), pieces)


def lightning(shape: ModelShape, kind: LayerKind) -> Built:  # noqa: ARG001 - all layers are alike
    """Build lightning attention (MiniMax): a matrix per head, a gate as wide as the output."""
    sizes = shape.geometry
    heads, width = sizes.num_attention_heads, sizes.num_attention_heads * sizes.head_dim
    part = KeptState(
        kind=StateKind.LIGHTNING, heads=heads, head_elements=sizes.head_dim * sizes.head_dim, drafts_add_columns=False
    )
    pieces = (Piece(sizes.hidden_size * 5 * width, Role.STATE, heads), Piece(width, shards=heads))
    return Built((part,), pieces)


def short_conv(shape: ModelShape, kind: LayerKind) -> Built:  # noqa: ARG001 - all layers are alike
    """Build a gated short convolution (LFM2)."""
    reader, hidden = shape.reader, shape.geometry.hidden_size
    kernel = reader.count("conv_L_cache")
    width = reader.optional_count("conv_dim") or hidden
    part = KeptState(kind=StateKind.SHORT_CONV, conv_columns=kernel - 1, conv_channels=width)
    bias = 4 * hidden + hidden if reader.flag("conv_bias", default=False) else 0
    pieces = (
        Piece(hidden * 3 * hidden + hidden * hidden, Role.STATE, hidden),
        Piece(hidden * kernel, shards=hidden),
        Piece(bias),
    )
    return Built((part,), pieces)


def recurrent_unit(shape: ModelShape, kind: LayerKind) -> Built:  # noqa: ARG001 - all layers are alike
    """Build a real-gated linear recurrent unit (RecurrentGemma): one number per channel."""
    reader, sizes = shape.reader, shape.geometry
    hidden, heads = sizes.hidden_size, sizes.num_attention_heads
    width = reader.optional_count("lru_width") or hidden
    kernel = reader.optional_count("conv1d_width") or 4
    part = KeptState(kind=StateKind.RG_LRU, conv_columns=kernel - 1, conv_channels=width, heads=width, head_elements=1)
    block = width // heads
    pieces = (
        Piece(3 * hidden * width, Role.STATE, heads),
        Piece(2 * heads * block * block, Role.STATE, heads),
        Piece(2 * width + hidden + width * kernel + width + width + 2 * heads * block),
    )
    return Built((part,), pieces)


def rwkv4(shape: ModelShape, kind: LayerKind) -> Built:  # noqa: ARG001 - all layers are alike
    """Build a layer of RWKV-4: five vectors of state; time mixing and channel mixing."""
    reader, hidden = shape.reader, shape.geometry.hidden_size
    width = reader.optional_count("attention_hidden_size") or hidden
    inner = reader.optional_count("intermediate_size") or 4 * hidden
    part = KeptState(
        kind=StateKind.RWKV4, heads=1, head_elements=5 * hidden, dtype=KVDtype.FLOAT32, drafts_add_columns=False
    )
    pieces = (
        Piece(4 * hidden * width, Role.STATE),
        Piece(2 * hidden * inner + hidden * hidden, Role.MLP),
        Piece(2 * width + 5 * hidden),
    )
    return Built((part,), pieces)
