"""What the layers of a model keep on one rank of an engine: rows and states divided over GPUs, in the cache's types."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvengine.spec import KVDtype
from kvplan.kv_layout.alignment import Alignment, align_to_states, apply_alignment
from kvplan.kv_layout.groups import without_hybrid_manager
from kvplan.kv_layout.layers import (
    AttentionKind,
    AttentionLayer,
    Layer,
    StateLayer,
    kv_heads_per_rank,
    state_blocks_per_request,
    state_bytes,
)
from kvplan.kv_packing import KVPacking, packed_row_bytes
from kvplan.models.layer_parts import KeptRows, KeptState, LayerParts, RowUse, StateKind

_KERNEL_BLOCK = 16
_LATENT_BLOCK, _COMPRESSED_BLOCK = 64, 256
"""Tokens per block where none are asked for: latent attention kernels, and DeepSeek-V4's."""
_SPARSE_PAGE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheForm:
    """In which form an engine keeps KV and states on one rank."""

    tensor_parallel: int = 1
    kv_dtype: KVDtype
    packing: KVPacking = KVPacking.PLAIN
    model_dtype: KVDtype
    block_size: int | None = None
    """None for the engine's own choice."""
    prefix_caching: bool = True
    hybrid_manager: bool | None = None
    """None for the engine's own choice: off for chunked attention."""
    speculative_tokens: int = 0
    mamba2_checkpoint: bool = False
    """Whether cached Mamba-2 states have a block for a checkpoint within a prefill."""
    windows_take_a_block: bool = False
    """Whether a window that drops nothing is given a block more, as vLLM does."""
    max_model_len: int = 1


def default_block_size(layers: Sequence[LayerParts]) -> int:
    """Return the tokens per block that vLLM takes where none are asked for."""
    rows = [part for layer in layers for part in layer if isinstance(part, KeptRows)]
    if any(row.tokens_per_row > 1 for row in rows):
        return _COMPRESSED_BLOCK
    return _LATENT_BLOCK if any(row.kind is AttentionKind.MLA for row in rows) else _KERNEL_BLOCK


def default_page_size(layers: Sequence[LayerParts]) -> int:
    """Return the tokens per page that SGLang takes where none are asked for: kernels of sparse attention want 64."""
    rows = (part for layer in layers for part in layer if isinstance(part, KeptRows))
    return _SPARSE_PAGE if any(_is_sparse(row) for row in rows) else 1


def rank_layers(layers: Sequence[LayerParts], form: CacheForm) -> list[Layer]:
    """Return the layers of one rank as an engine allocates them: blocks aligned, limits kept or not.

    Raises:
        ConfigError: The cache's type is not for this model.
    """
    built = natural_layers(layers, form)
    state_block = None if form.prefix_caching else form.max_model_len
    aligned = apply_alignment(built, state_alignment(built), state_block_size=state_block)
    has_chunks = any(isinstance(layer, AttentionLayer) and layer.kind is AttentionKind.CHUNKED_LOCAL for layer in built)
    manages = not has_chunks if form.hybrid_manager is None else form.hybrid_manager
    return aligned if manages else without_hybrid_manager(aligned)


def state_alignment(layers: Sequence[Layer]) -> Alignment | None:
    """Return what states do to the attention blocks beside them; None where there is nothing to align."""
    return align_to_states(layers, kernel_block=_KERNEL_BLOCK)


def natural_layers(layers: Sequence[LayerParts], form: CacheForm) -> list[Layer]:
    """Return the layers of one rank before blocks are aligned."""
    block_size = form.block_size or default_block_size(layers)
    is_sparse = any(isinstance(part, KeptRows) and _is_sparse(part) for layer in layers for part in layer)
    built: dict[KeptRows | KeptState, Layer] = {}
    result = []
    for part in (part for layer in layers for part in layer):
        if part not in built:
            built[part] = (
                _attention(part, form, block_size, is_sparse=is_sparse)
                if isinstance(part, KeptRows)
                else _state(part, form, block_size)
            )
        result.append(built[part])
    return result


def rank_state_bytes(state: KeptState, form: CacheForm) -> int:
    """Return the bytes of one state on one rank.

    Groups that cannot be split are repeated: a rank holds at least one.
    """
    ranks = form.tensor_parallel
    groups = max(1, state.groups // ranks) if state.groups else 0
    return state_bytes(
        columns=state.conv_columns + (form.speculative_tokens if state.drafts_add_columns else 0),
        channels=state.conv_channels // ranks + groups * state.group_channels,
        column_element_bytes=form.model_dtype.num_bytes,
        heads=max(1, state.heads // ranks) if state.heads else 0,
        head_elements=state.head_elements,
        head_element_bytes=(state.dtype or form.model_dtype).num_bytes,
    )


def _is_sparse(rows: KeptRows) -> bool:
    return rows.use is RowUse.INDEX


def _attention(rows: KeptRows, form: CacheForm, block_size: int, *, is_sparse: bool) -> AttentionLayer:
    heads = 1 if rows.is_latent else kv_heads_per_rank(rows.num_heads, form.tensor_parallel)
    row_bytes = packed_row_bytes(rows, heads, form.kv_dtype, form.packing, is_sparse=is_sparse)
    return AttentionLayer(
        kind=rows.kind,
        token_bytes=row_bytes,
        block_size=block_size,
        reach=rows.reach,
        shape=(heads, rows.key_size, rows.value_size, form.kv_dtype.num_bytes),
        tokens_per_row=rows.tokens_per_row,
        extra_blocks=int(form.windows_take_a_block and rows.has_open_window),
    )


def _state(state: KeptState, form: CacheForm, block_size: int) -> StateLayer:
    return StateLayer(
        state_bytes=rank_state_bytes(state, form),
        block_size=block_size if form.prefix_caching else form.max_model_len,
        blocks_per_request=state_blocks_per_request(
            prefix_caching=form.prefix_caching,
            speculative_tokens=form.speculative_tokens,
            checkpoint_blocks=int(form.mamba2_checkpoint and state.kind is StateKind.MAMBA2),
        ),
    )
