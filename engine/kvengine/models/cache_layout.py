"""Which group, which page and which window each layer of a model has in an engine's block pool."""

from kvengine.attention.base import LayerAttention, ModelAttention
from kvengine.config import EngineConfig
from kvengine.errors import ConfigError
from kvengine.kv_groups.kinds import FullAttention, GroupKind, SlidingWindow
from kvengine.model_config.decoder import DecoderConfig, LatentAttention


def model_attention(model: DecoderConfig, config: EngineConfig) -> ModelAttention:
    """Place a model's layers in the groups of an engine.

    Raises:
        ConfigError: The groups or the geometry are not those of the model.
    """
    groups = config.kv_groups
    group_layers = config.group_layers or (tuple(range(model.num_layers)),)
    if len(group_layers) != len(groups) or sorted(sum(group_layers, ())) != list(range(model.num_layers)):
        raise ConfigError(
            f"the {model.num_layers} layers of the model are not each in one of {len(groups)} groups: {group_layers}"
        )
    spec = config.kv_cache
    longest = max(map(len, group_layers))
    if spec != model.kv_cache_spec(spec.dtype, spec.block_size, layers_per_block=longest):
        raise ConfigError(f"the KV geometry {spec} is not that of the model")
    placed: dict[int, LayerAttention] = {}
    for group, (kind, layers) in enumerate(zip(groups, group_layers, strict=True)):
        for place, layer in enumerate(layers):
            window = model.layers[layer].attention.window
            _check_kept(layer, window, kind, spec.block_size)
            placed[layer] = LayerAttention(group=group, place=place, window=window)
    first = model.layers[0].attention
    return ModelAttention(
        num_heads=first.num_heads,
        value_size=first.kv_lora_rank if isinstance(first, LatentAttention) else first.head_dim,
        scale=first.scale,
        softcap=first.softcap,
        layers=tuple(placed[layer] for layer in range(model.num_layers)),
    )


def _check_kept(layer: int, window: int | None, kind: GroupKind, block_size: int) -> None:
    """A group must keep what its layers attend to; more does no harm."""
    if kind.block_size != block_size:
        raise ConfigError(f"a {kind.name} group has blocks of {kind.block_size} tokens; the pool has {block_size}")
    keeps_enough = isinstance(kind, FullAttention) or (
        isinstance(kind, SlidingWindow) and window is not None and window <= kind.window
    )
    if not keeps_enough:
        reach = "every token" if window is None else f"{window} tokens"
        raise ConfigError(f"layer {layer} attends to {reach}, which a {kind.name} group does not keep")
