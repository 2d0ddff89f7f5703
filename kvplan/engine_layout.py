"""A model's layers as our own engine keeps them: the planner's groups and pages, in the engine's words."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvengine.errors import ConfigError
from kvengine.kv_groups.kinds import FullAttention, GroupKind, LatentAttention, SlidingWindow
from kvengine.model_config.decoder import DecoderConfig
from kvengine.spec import KVCacheSpec, KVDtype
from kvplan.capacity import LATEST_RULES
from kvplan.kv_layout.capacity import KVLayout
from kvplan.kv_layout.groups import KVGroup, group_layers
from kvplan.kv_layout.layers import AttentionKind, AttentionLayer, Layer, attention_layer
from kvplan.model_spec import ModelSpec
from kvplan.rank_layers import CacheForm, natural_layers

_KINDS = (AttentionKind.FULL, AttentionKind.MLA, AttentionKind.SLIDING_WINDOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLayout:
    """Groups of layers, and what a block holds."""

    layout: KVLayout
    """As the planner counts it."""
    spec: KVCacheSpec
    """Geometry of a block; its bytes are the planner's."""

    @property
    def groups(self) -> tuple[GroupKind, ...]:
        """As an engine's configuration takes them; empty for one group that keeps every token."""
        kinds = tuple(_kind(group) for group in self.layout.groups)
        return () if self._is_plain else kinds

    @property
    def group_layers(self) -> tuple[tuple[int, ...], ...]:
        """The layers of each group, where there are several."""
        return tuple(group.layer_indices for group in self.layout.groups) if len(self.layout.groups) > 1 else ()

    @property
    def _is_plain(self) -> bool:
        (first, *others) = self.layout.groups
        return not others and type(_kind(first)) is FullAttention


def engine_layout(layers: Sequence[Layer], dtype: KVDtype, *, where: str, keeps_all: bool = False) -> EngineLayout:
    """Group layers as vLLM does.

    Args:
        layers: Every layer of the model, in order.
        dtype: Element type of the cache.
        where: The model, for messages.
        keeps_all: Whether tokens behind a window are kept too, as by allocators that know no groups.

    Raises:
        ConfigError: Some layers keep something else than tokens, or rows of unequal size.
    """
    kept = [layer for layer in layers if isinstance(layer, AttentionLayer) and _is_kept_live(layer)]
    if not kept or len(kept) != len(layers) or len({layer.shape for layer in kept}) > 1:
        raise ConfigError(
            "its layers do not all keep tokens, in rows of one size, as a live pool needs: full attention, latent"
            " attention and sliding windows are supported",
            where=where,
        )
    if keeps_all:
        kept = [layer.kept_in_full() if layer.kind is AttentionKind.SLIDING_WINDOW else layer for layer in kept]
    layout = KVLayout(groups=tuple(group_layers(kept)), rules=LATEST_RULES)
    num_kv_heads, head_dim, head_dim_v, _ = kept[0].shape
    spec = KVCacheSpec(
        num_layers=max(len(group.layers) for group in layout.groups),
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        dtype=dtype,
        block_size=kept[0].block_size,
    )
    assert spec.block_bytes == layout.bytes_per_block, f"{spec} against {layout.bytes_per_block} planned bytes"
    return EngineLayout(layout=layout, spec=spec)


def decoder_layers(model: DecoderConfig, dtype: KVDtype, block_size: int) -> list[Layer]:
    """What the layers of a model that the engine runs keep, on one device."""
    layers: list[Layer] = []
    for layer in model.layers:
        heads, key_size, value_size = layer.attention.kv_row
        window = layer.attention.window
        latent = AttentionKind.FULL if value_size else AttentionKind.MLA
        layers.append(
            attention_layer(
                latent if window is None else AttentionKind.SLIDING_WINDOW,
                num_kv_heads=heads,
                head_size=key_size,
                head_size_v=value_size,
                element_bytes=dtype.num_bytes,
                block_size=block_size,
                reach=window or 0,
            )
        )
    return layers


def spec_layers(model: ModelSpec, dtype: KVDtype, block_size: int, *, tensor_parallel: int) -> list[Layer]:
    """What the layers of a model that is planned only keep, on one of several devices.

    Raises:
        ConfigError: Its heads cannot be divided over that many.
    """
    model.check_divides_over(tensor_parallel)
    form = CacheForm(tensor_parallel=tensor_parallel, kv_dtype=dtype, model_dtype=model.dtype, block_size=block_size)
    layers = natural_layers(model.layers, form)
    # A layer with several parts, or none, cannot be told apart any more once it is flattened.
    return layers if all(len(parts) == 1 for parts in model.layers) else []


def _is_kept_live(layer: AttentionLayer) -> bool:
    return layer.kind in _KINDS and layer.tokens_per_row == 1 and layer.padded_page_bytes is None


def _kind(group: KVGroup) -> GroupKind:
    first = group.layers[0]
    assert isinstance(first, AttentionLayer), "only attention layers are grouped here"
    if first.kind is AttentionKind.SLIDING_WINDOW:
        return SlidingWindow(block_size=first.block_size, window=first.reach)
    if first.kind is AttentionKind.MLA:
        return LatentAttention(block_size=first.block_size)
    return FullAttention(block_size=first.block_size)
