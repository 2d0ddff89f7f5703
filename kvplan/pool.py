"""The pool of one rank under one engine: its layers, their groups, and the blocks that memory is cut into."""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor

from kvengine.spec import KVDtype
from kvplan.capacity import Capacity, EngineKind, fill_pool
from kvplan.engine_inputs import EngineInputs
from kvplan.kv_layout.capacity import KVLayout
from kvplan.kv_layout.groups import KVGroup, distinct_layers, group_layers
from kvplan.kv_layout.layers import AttentionKind, AttentionLayer, Layer
from kvplan.kv_layout.rules import VllmRules, vllm_rules
from kvplan.kv_layout.sglang import WINDOW_TOKENS, SglangPool, sglang_layers
from kvplan.model_spec import ModelSpec
from kvplan.models.layer_parts import LayerParts
from kvplan.parameters import stage_layers
from kvplan.rank_layers import CacheForm, default_page_size, natural_layers, rank_layers

_LATEST = (0, 32, 0)
_BATCHES_IN_FLIGHT = 2
"""With asynchronous scheduling, vLLM's default on GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPool:
    """What one rank of a pipeline stage keeps, before it is known how much memory there is."""

    engine: EngineInputs
    layout: KVLayout
    max_model_len: int
    tokens_in_flight: int
    encoder_tokens: int
    sglang: SglangPool | None = None

    def fill(self, available_bytes: int) -> Capacity:
        """Cut memory into blocks."""
        capacity = fill_pool(
            self.layout,
            self.engine.engine,
            available_bytes=available_bytes if self.sglang is None else self.sglang.token_memory(available_bytes),
            max_model_len=self.max_model_len,
            override=self.engine.num_blocks,
            tokens_in_flight=self.tokens_in_flight,
            encoder_tokens=self.encoder_tokens,
            context_parallel=self.engine.decode_context_parallel,
        )
        if self.sglang is not None:
            capacity = self._with_pools(capacity, self.sglang, available_bytes)
        if self.engine.fit_max_model_len and capacity.longest_fit:
            return replace(capacity, max_model_len=capacity.longest_fit)
        return capacity

    def _with_pools(self, capacity: Capacity, pool: SglangPool, available_bytes: int) -> Capacity:
        slots = pool.state_slots(available_bytes)
        if self.engine.num_blocks is None:
            pages = pool.tokens(available_bytes) // pool.page_size if pool.cell_bytes else slots
            capacity = replace(capacity, num_blocks=pages)
        return replace(capacity, state_slots=slots if pool.state_bytes else None)


def rank_pool(
    model: ModelSpec, engine: EngineInputs, stage: int, *, max_model_len: int, step_tokens: int
) -> RankPool | None:
    """Lay out the pool of one rank of a pipeline stage. None: its layers keep nothing.

    Args:
        model: The model.
        engine: How the engine is started.
        stage: Which pipeline stage.
        max_model_len: The longest request.
        step_tokens: Most tokens of a step.

    Raises:
        ConfigError: The model cannot be cached that way.
    """
    layers = cached_layers(model, engine, stage)
    form = cache_form(model, engine, max_model_len=max_model_len)
    rules = vllm_rules(engine.version or _LATEST) if engine.engine is EngineKind.VLLM else vllm_rules(_LATEST)
    sglang: SglangPool | None = None
    groups: tuple[KVGroup, ...]
    if engine.engine is EngineKind.SGLANG:
        page = engine.block_size or default_page_size(layers)
        sglang = SglangPool(layers=sglang_layers(natural_layers(layers, form)), page_size=page)
        groups = (_sglang_group(sglang),)
    else:
        groups = tuple(group_layers(rank_layers(layers, form)))
    if not any(group.layers for group in groups):
        return None
    return RankPool(
        engine=engine,
        layout=KVLayout(groups=groups, rules=rules),
        max_model_len=max_model_len,
        tokens_in_flight=step_tokens * _batches(engine, rules),
        encoder_tokens=model.encoder_tokens,
        sglang=sglang,
    )


def cached_layers(model: ModelSpec, engine: EngineInputs, stage: int) -> tuple[LayerParts, ...]:
    """Return what the layers of a stage keep; draft layers are on the last one."""
    first, after = stage_layers(len(model.layers), engine.pipeline_parallel, stage)
    has_drafts = engine.speculative_tokens > 0 and stage == engine.pipeline_parallel - 1
    kept = model.layers[first:after] + (model.draft_layers if has_drafts else ())
    if model.vllm_rows is None or engine.engine is not EngineKind.VLLM:
        return kept
    rows = model.vllm_rows
    return tuple(tuple(rows if part.kind is AttentionKind.MLA else part for part in layer) for layer in kept)


def cache_form(model: ModelSpec, engine: EngineInputs, *, max_model_len: int) -> CacheForm:
    """Return in which form an engine keeps KV and states."""
    model_dtype = engine.dtype or model.dtype
    return CacheForm(
        tensor_parallel=engine.tensor_parallel,
        kv_dtype=model.kv_dtype(engine.kv_dtype, engine.dtype),
        packing=engine.kv_packing,
        model_dtype=KVDtype.BFLOAT16 if model_dtype is KVDtype.FP8 else model_dtype,
        block_size=engine.block_size,
        prefix_caching=caches_prefixes(model, engine),
        hybrid_manager=engine.hybrid_manager,
        speculative_tokens=engine.speculative_tokens,
        windows_take_a_block=engine.engine is EngineKind.VLLM,
        mamba2_checkpoint=engine.engine is EngineKind.VLLM
        and vllm_rules(engine.version or _LATEST).mamba2_keeps_checkpoint,
        max_model_len=max_model_len,
    )


def caches_prefixes(model: ModelSpec, engine: EngineInputs) -> bool:
    """Whether prefixes are cached: as was asked, else wherever there is attention."""
    return engine.prefix_caching if engine.prefix_caching is not None else model.geometry.num_attention_heads > 0


def _batches(engine: EngineInputs, rules: VllmRules) -> int:
    if not rules.windows_hold_all_batches:
        return 1
    return _BATCHES_IN_FLIGHT if engine.pipeline_parallel == 1 else engine.pipeline_parallel


def _sglang_group(pool: SglangPool) -> KVGroup:
    """Put all attention layers in pages of one pool; a model without any has its states instead."""
    layers = _paged_layers(pool, pool.page_size) or tuple(pool.layers)
    return KVGroup(layer_indices=tuple(range(len(layers))), layers=layers)


def _paged_layers(pool: SglangPool, page: int) -> tuple[Layer, ...]:
    """Return the attention layers with pages of the engine's size, windows at their share of the cell.

    Layers take whole bytes, those of a kind together what they take of the cell rounded down.
    """
    attention = [(layer, count) for layer, count in distinct_layers(pool.layers) if isinstance(layer, AttentionLayer)]
    has_full = any(layer.kind is not AttentionKind.SLIDING_WINDOW for layer, _ in attention)
    result: list[Layer] = []
    for layer, count in attention:
        share = _cell_share(layer, has_full=has_full)
        larger = floor(share * count) - floor(share) * count
        result += [_paged_layer(layer, page, floor(share) + 1)] * larger
        result += [_paged_layer(layer, page, floor(share))] * (count - larger)
    return tuple(result)


def _cell_share(layer: AttentionLayer, *, has_full: bool) -> Fraction:
    share = WINDOW_TOKENS if has_full and layer.kind is AttentionKind.SLIDING_WINDOW else Fraction(1)
    return layer.token_bytes * share / layer.tokens_per_row


def _paged_layer(layer: AttentionLayer, page: int, token_bytes: int) -> AttentionLayer:
    kind = AttentionKind.MLA if layer.kind is AttentionKind.MLA else AttentionKind.FULL
    return replace(layer, kind=kind, reach=0, block_size=page, token_bytes=token_bytes, tokens_per_row=1)
