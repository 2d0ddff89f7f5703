"""Which layers share a block table.

one kind of layer          one group
one kind, unequal sizes    one group; a block stands for one page in every layer
full and sliding           pages made equal, then groups of equal size:

    layer   0 1 2 3 4 5 6 7 8 9 10 11      s = sliding, f = full, group size 2
            s s s s s f s s s s s  f       s0: 0 6   s1: 1 7   s2: 2 8   s3: 3 9   s4: 4 10   f0: 5 11
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, lcm

from kvengine.errors import ConfigError
from kvengine.units import cdiv
from kvplan.kv_layout.layers import AttentionKind, AttentionLayer, Layer, RequestBound, StateLayer

_ONE_SIZE_RATIO = 1.5
"""Below this ratio of the largest to the smallest bucket the largest decides the group size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroup:
    """Layers that share one block table."""

    layer_indices: tuple[int, ...]
    layers: tuple[Layer, ...]

    @property
    def is_uniform(self) -> bool:
        """Whether all layers have the same page; if not, one block stands for one page in every layer."""
        distinct = distinct_layers(self.layers)
        return (
            len({layer.page_bytes for layer, _ in distinct}) == 1 and len({_shape(layer) for layer, _ in distinct}) == 1
        )

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.layers[0].block_size

    @property
    def page_bytes(self) -> int:
        """Bytes of one layer's page, or of one page of every layer where they differ."""
        return self.layers[0].page_bytes if self.is_uniform else self.block_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: a page in every layer of the group."""
        return sum(layer.page_bytes * count for layer, count in distinct_layers(self.layers))

    def blocks_for(self, bound: RequestBound) -> int:
        """Blocks that one request of the largest length can hold at a time."""
        return max(layer.blocks_for(bound) for layer, _ in distinct_layers(self.layers))


def distinct_layers(layers: Sequence[Layer]) -> list[tuple[Layer, int]]:
    """Return each object among some layers once, with how often it is there: models repeat a few kinds many times."""
    counts = Counter(map(id, layers))
    return [(layer, counts[key]) for key, layer in {id(layer): layer for layer in layers}.items()]


def without_hybrid_manager(layers: Sequence[Layer]) -> list[Layer]:
    """Keep every token in sliding and chunked layers, as the engine does without its hybrid manager.

    Only models that also have full-attention layers change.
    """
    if not any(isinstance(layer, AttentionLayer) and layer.kind is AttentionKind.FULL for layer in layers):
        return list(layers)
    limited = {AttentionKind.SLIDING_WINDOW, AttentionKind.CHUNKED_LOCAL}
    kept = {
        id(layer): layer.kept_in_full() if isinstance(layer, AttentionLayer) and layer.kind in limited else layer
        for layer, _ in distinct_layers(layers)
    }
    return [kept[id(layer)] for layer in layers]


def group_layers(layers: Sequence[Layer]) -> list[KVGroup]:
    """Form the groups of one rank's layers.

    Raises:
        ConfigError: Pages of latent attention cannot be made equal to the others.

    Source: vLLM 0.32, `v1/core/kv_cache_utils.py`; checked against its own answers.
    """
    if not layers:
        return []
    if _share_one_table(layers):
        return [KVGroup(layer_indices=tuple(range(len(layers))), layers=tuple(layers))]
    if any(isinstance(layer, AttentionLayer) and layer.tokens_per_row > 1 for layer in layers):
        return _packed_groups(layers)
    equal = equalize_pages(layers)
    buckets = _buckets(equal)
    size = _group_size([len(bucket) for bucket in buckets])
    return [group for bucket in buckets for group in _split(bucket, equal, size)]


def _packed_groups(layers: Sequence[Layer]) -> list[KVGroup]:
    """Form the groups of compressed attention, whose pages differ and are packed side by side in a block.

    The layers that keep all tokens are one group; windows fill groups of as many pages as that one's block holds.
    An approximation of vLLM 0.32, which also keeps small buffers of compressors and pads rows.
    """
    growing = [i for i, layer in enumerate(layers) if not _is_window(layer)]
    windows = [i for i, layer in enumerate(layers) if _is_window(layer)]
    anchor = sum(layers[index].page_bytes for index in growing)
    fitting = max(1, anchor // max((layers[index].page_bytes for index in windows), default=1))
    return [
        KVGroup(layer_indices=tuple(indices), layers=tuple(layers[index] for index in indices))
        for indices in (growing, *(windows[first : first + fitting] for first in range(0, len(windows), fitting)))
        if indices
    ]


def _is_window(layer: Layer) -> bool:
    return isinstance(layer, AttentionLayer) and layer.kind is AttentionKind.SLIDING_WINDOW


def equalize_pages(layers: Sequence[Layer]) -> list[Layer]:
    """Bring every page to the largest: by a larger block where that is exact, else by padding."""
    distinct = distinct_layers(layers)
    largest = max(layer.page_bytes for layer, _ in distinct)
    equal = {id(layer): _with_page(layer, largest) for layer, _ in distinct}
    return [equal[id(layer)] for layer in layers]


def padding_layers(groups: Sequence[KVGroup]) -> int:
    """Places in short groups that hold no layer: memory that is allocated and not used.

    Pages that differ are packed side by side and have no such places.
    """
    if len({layer.page_bytes for group in groups for layer, _ in distinct_layers(group.layers)}) > 1:
        return 0
    longest = max((len(group.layers) for group in groups), default=0)
    return sum(longest - len(group.layers) for group in groups)


def scheduler_block_size(groups: Sequence[KVGroup], *, context_parallel_size: int = 1) -> int:
    """Tokens that the scheduler hands out at a time: the least common multiple of the groups' blocks."""
    return lcm(*(group.block_size for group in groups)) * (context_parallel_size if len(groups) == 1 else 1)


def hash_block_size(groups: Sequence[KVGroup], *, prefix_caching: bool, context_parallel_size: int = 1) -> int:
    """Tokens per prefix-cache hash: the greatest common divisor of the groups' blocks where states allow it."""
    if len(groups) == 1 or not prefix_caching:
        return scheduler_block_size(groups, context_parallel_size=context_parallel_size)
    return gcd(*(group.block_size for group in groups))


def _shape(layer: Layer) -> object:
    """What must be equal for two layers to be one kind; a full layer's window does not count."""
    if isinstance(layer, StateLayer):
        return layer
    return replace(layer, reach=0) if layer.kind is AttentionKind.FULL else layer


def _share_one_table(layers: Sequence[Layer]) -> bool:
    first, distinct = layers[0], [layer for layer, _ in distinct_layers(layers)]
    if isinstance(first, StateLayer):
        return all(isinstance(layer, StateLayer) and layer.page_bytes == first.page_bytes for layer in distinct)
    family = _table_family(first)
    return all(isinstance(layer, AttentionLayer) and _table_family(layer) == family for layer in distinct)


def _table_family(layer: AttentionLayer) -> tuple[AttentionKind, int, int, int]:
    """What layers must have in common to share a block table, whatever their pages."""
    reach = layer.reach if layer.kind is not AttentionKind.FULL else 0
    return layer.kind, layer.block_size, reach, layer.extra_blocks


def _with_page(layer: Layer, page_bytes: int) -> Layer:
    if layer.page_bytes == page_bytes:
        return layer
    if isinstance(layer, StateLayer):
        return replace(layer, padded_page_bytes=page_bytes)
    if layer.padded_page_bytes is None and page_bytes % layer.page_bytes == 0:
        return replace(layer, block_size=layer.block_size * (page_bytes // layer.page_bytes))
    if layer.kind is AttentionKind.MLA:
        raise ConfigError(
            f"a latent-attention page of {layer.page_bytes} bytes does not divide the largest page of {page_bytes}"
        )
    return replace(layer, padded_page_bytes=page_bytes)


def _buckets(layers: Sequence[Layer]) -> list[list[int]]:
    shapes = {id(layer): _shape(layer) for layer, _ in distinct_layers(layers)}
    buckets: dict[object, list[int]] = {}
    for index, layer in enumerate(layers):
        buckets.setdefault(shapes[id(layer)], []).append(index)
    return list(buckets.values())


def _group_size(bucket_sizes: Sequence[int]) -> int:
    smallest, largest = min(bucket_sizes), max(bucket_sizes)
    return largest if largest < _ONE_SIZE_RATIO * smallest else smallest


def _split(bucket: Sequence[int], layers: Sequence[Layer], size: int) -> list[KVGroup]:
    """Deal a bucket's layers out to its groups in turn, so that pipeline stages stay balanced."""
    num_groups = cdiv(len(bucket), size)
    dealt = [tuple(bucket[group::num_groups]) for group in range(num_groups)]
    return [KVGroup(layer_indices=indices, layers=tuple(layers[index] for index in indices)) for indices in dealt]
