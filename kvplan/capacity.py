"""Bytes for KV to blocks, and blocks to requests, as the engine counts them."""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from kvengine.spec import KVCacheSpec
from kvengine.units import cdiv
from kvplan.kv_layout.capacity import KVLayout
from kvplan.kv_layout.groups import KVGroup, distinct_layers
from kvplan.kv_layout.layers import AttentionKind, AttentionLayer, RequestBound, attention_layer
from kvplan.kv_layout.rules import vllm_rules


class EngineKind(StrEnum):
    """Whose counting is followed."""

    VLLM = "vllm"
    """vLLM: block 0 is the null block, which holds no request."""
    SGLANG = "sglang"
    """SGLang: pages of tokens; page 0 is for padding and comes on top of the pool."""
    PAGED = "paged"
    """The textbook allocator: every block holds requests."""

    @property
    def version(self) -> str:
        """The version whose rules these are where none is named; empty for the textbook."""
        return {"vllm": "0.32", "sglang": "0.5.23", "paged": ""}[self.value]

    @property
    def null_blocks(self) -> int:
        """Blocks that exist and hold no request."""
        return 1 if self is EngineKind.VLLM else 0


LATEST_RULES = vllm_rules((0, 32, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """A pool of blocks, and the longest request that it is checked against at start-up.

    Worked value (vLLM): 56,173,516,555 bytes in blocks of 2 MiB are 26,785 blocks; at 32,768 tokens a request needs
    2,048 of them, so 13.08 requests fit and the engine prints a cache of 428,560 tokens.
    """

    layout: KVLayout
    engine: EngineKind
    available_bytes: int
    num_blocks: int
    """As the engine prints it: the null block included."""
    max_model_len: int
    tokens_in_flight: int = 16_384
    """Step budget times concurrent batches, which windows are charged for."""
    encoder_tokens: int = 0
    context_parallel: int = 1
    state_slots: int | None = None
    """Sequences whose states fit in a pool of their own (SGLang); None where states are in the blocks."""

    @property
    def block_size(self) -> int:
        """Tokens per block of the group whose blocks hold fewest."""
        sizes = [group.block_size for group in self._attention_groups]
        return min(sizes, default=1) * self.context_parallel

    @property
    def block_bytes(self) -> int:
        """Bytes that one block id takes."""
        return self.layout.bytes_per_block

    @property
    def usable_blocks(self) -> int:
        """Blocks that can hold requests."""
        return max(0, self.num_blocks - self.engine.null_blocks)

    @property
    def blocks_per_request(self) -> int:
        """Blocks of one request of `max_model_len`."""
        return self.blocks_for(self.max_model_len)

    def blocks_for(self, length: int) -> int:
        """Blocks that one request of a length can need at a time, over all groups."""
        return self.layout.blocks_per_request(self._bound(length))

    @property
    def block_slots(self) -> int:
        """Tokens per block of the group whose blocks hold most: the slots that a block of any group counts as."""
        return max((group.block_size for group in self._attention_groups), default=1) * self.context_parallel

    def tail_waste(self, length: int) -> int:
        """Slots that stay empty in the last blocks of a request, over the groups that keep every token."""
        bound = self._bound(length)
        return sum(
            group.blocks_for(bound) * group.block_size * self.context_parallel - length
            for group in self._growing_groups
        )

    def shared_blocks(self, tokens: int) -> int:
        """Blocks that requests with so many tokens in common hold once between them."""
        return sum(tokens // (group.block_size * self.context_parallel) for group in self._growing_groups)

    @property
    def bound(self) -> RequestBound:
        """The longest request that the pool is checked against."""
        return self._bound(self.max_model_len)

    @property
    def needed_bytes(self) -> int:
        """Memory of one request of `max_model_len`."""
        return self.blocks_per_request * self.block_bytes

    @property
    def checked_bytes(self) -> int:
        """Memory that one request may take at start-up: vLLM 0.32 takes its null block off, older ones do not."""
        if self.engine is not EngineKind.VLLM:
            return self.available_bytes
        return max(0, self.layout.checked_bytes(self.available_bytes))

    @property
    def checked_blocks(self) -> int:
        """Blocks that one request may take at start-up."""
        return self.num_blocks if self.engine is EngineKind.SGLANG else self.checked_bytes // self.block_bytes

    @property
    def holds_one_request(self) -> bool:
        """Whether the engine starts: one request of `max_model_len` fits."""
        return self.blocks_per_request <= self.checked_blocks

    @property
    def max_concurrency(self) -> Fraction:
        """Requests of `max_model_len` that fit together, as the engine prints it: the null block counts in."""
        return Fraction(self.num_blocks, max(1, self.blocks_per_request))

    @property
    def kv_cache_tokens(self) -> int:
        """Tokens of the whole cache, as the engine prints it."""
        if self.engine is not EngineKind.VLLM:
            return self.num_blocks * self.block_size
        return self.layout.printed_tokens(self.num_blocks, self.bound)

    @property
    def longest_fit(self) -> int:
        """The longest request, up to `max_model_len`, that would fit; 0 when not even one token does."""
        fits, too_long = 0, self.max_model_len + 1
        blocks = self.checked_blocks
        while too_long - fits > 1:
            middle = (fits + too_long) // 2
            if self.blocks_for(middle) <= blocks:
                fits = middle
            else:
                too_long = middle
        return fits

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in an engine that keeps every token in every attention layer; 0 without attention."""
        return sum(
            cdiv(layer.token_bytes, layer.tokens_per_row) * count
            for group in self.layout.groups
            for layer, count in distinct_layers(group.layers)
            if isinstance(layer, AttentionLayer) and layer.kind is not AttentionKind.CROSS
        )

    @property
    def token_slots(self) -> int:
        """Tokens that the memory holds when it is not cut into blocks, states left out."""
        return self.available_bytes // self.token_bytes if self.token_bytes else 0

    @property
    def _attention_groups(self) -> list[KVGroup]:
        return [group for group in self.layout.groups if isinstance(group.layers[0], AttentionLayer)]

    @property
    def _growing_groups(self) -> list[KVGroup]:
        return [group for group in self.layout.groups if _keeps_all(group)]

    def _bound(self, length: int) -> RequestBound:
        return RequestBound(
            max_model_len=length,
            tokens_in_flight=self.tokens_in_flight,
            max_encoder_tokens=self.encoder_tokens,
            context_parallel_size=self.context_parallel,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCapacity(Capacity):
    """A pool of a model whose layers all keep every token in rows of one size."""

    spec: KVCacheSpec


def count_blocks(
    spec: KVCacheSpec, engine: EngineKind, *, available_bytes: int, max_model_len: int, override: int | None = None
) -> PlainCapacity:
    """Cut memory into blocks of one geometry; with an override the engine takes that many, and their bytes."""
    layer = attention_layer(
        AttentionKind.FULL,
        num_kv_heads=spec.num_kv_heads,
        head_size=spec.head_dim,
        head_size_v=spec.head_dim_v,
        element_bytes=spec.dtype.num_bytes,
        block_size=spec.block_size,
    )
    group = KVGroup(layer_indices=tuple(range(spec.num_layers)), layers=(layer,) * spec.num_layers)
    layout = KVLayout(groups=(group,), rules=LATEST_RULES)
    num_blocks, counted_bytes = _fill(layout, available_bytes, override)
    return PlainCapacity(
        layout=layout,
        engine=engine,
        available_bytes=counted_bytes,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        spec=spec,
    )


def fill_pool(
    layout: KVLayout,
    engine: EngineKind,
    *,
    available_bytes: int,
    max_model_len: int,
    override: int | None = None,
    tokens_in_flight: int = 16_384,
    encoder_tokens: int = 0,
    context_parallel: int = 1,
) -> Capacity:
    """Cut memory into the blocks of a layout; with an override the engine takes that many, and their bytes."""
    num_blocks, counted_bytes = _fill(layout, available_bytes, override)
    return Capacity(
        layout=layout,
        engine=engine,
        available_bytes=counted_bytes,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        tokens_in_flight=tokens_in_flight,
        encoder_tokens=encoder_tokens,
        context_parallel=context_parallel,
    )


def _fill(layout: KVLayout, available_bytes: int, override: int | None) -> tuple[int, int]:
    """Return the number of blocks, and the bytes that count as available."""
    if override is not None:
        return override, override * layout.bytes_per_block
    return available_bytes // layout.bytes_per_block, available_bytes


def _keeps_all(group: KVGroup) -> bool:
    first = group.layers[0]
    return isinstance(first, AttentionLayer) and first.kind in (AttentionKind.FULL, AttentionKind.MLA)
