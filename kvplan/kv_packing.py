"""Bytes of one row of KV cache in the element types and packed forms that engines store.

    plain                 every element in the cache's type
    fp8 of sparse MLA     512 bytes, 4 scales of 4 bytes, 64 rotary elements in 16 bits: 656 (vLLM, fp8_ds_mla)
    fp8 of DeepSeek-V4    448 bytes, 64 rotary elements in 16 bits, 8 bytes of scales: 584
    index keys            one byte an element and a 4-byte scale for every 128 of them: 132
    per token and head    one byte (or half of one) an element and two 4-byte scales
    nvfp4                 half a byte an element and a byte of scale for every 16 of them

Source: vLLM 0.32, v1/kv_cache_interface.py and the attention layers' specs.
"""

from enum import StrEnum

from kvengine.errors import ConfigError
from kvengine.spec import KVDtype, kv_row_bytes
from kvplan.models.layer_parts import KeptRows, RowUse

_SCALE_BYTES = 4
_ROTARY_ELEMENTS = 64
"""Rotary elements at the end of a packed latent row, which stay in 16 bits."""
_SCALE_GROUP = 128


class KVPacking(StrEnum):
    """How rows are stored beyond their element type."""

    PLAIN = "plain"
    FP8_DS_MLA = "fp8_ds_mla"
    NVFP4_DS_MLA = "nvfp4_ds_mla"
    INT8_PER_TOKEN_HEAD = "int8_per_token_head"
    FP8_PER_TOKEN_HEAD = "fp8_per_token_head"
    INT4_PER_TOKEN_HEAD = "int4_per_token_head"
    NVFP4 = "nvfp4"


def packed_row_bytes(rows: KeptRows, num_heads: int, dtype: KVDtype, packing: KVPacking, *, is_sparse: bool) -> int:
    """Return the bytes of one row on one rank.

    Args:
        rows: What the layer keeps.
        num_heads: KV heads of this rank.
        dtype: Element type of the cache.
        packing: How rows are stored.
        is_sparse: Whether the model's attention is sparse, whose engines have an fp8 form of their own.

    Raises:
        ConfigError: The form is for other models.
    """
    if rows.use is RowUse.INDEX:
        return packed_index_bytes(rows)
    if rows.is_latent:
        return _latent_bytes(rows, dtype, packing, is_sparse=is_sparse)
    elements = rows.key_size + rows.value_size
    match packing:
        case KVPacking.PLAIN:
            return kv_row_bytes(num_heads, rows.key_size, rows.value_size, dtype.num_bytes)
        case KVPacking.INT8_PER_TOKEN_HEAD | KVPacking.FP8_PER_TOKEN_HEAD:
            return num_heads * (elements + 2 * _SCALE_BYTES)
        case KVPacking.INT4_PER_TOKEN_HEAD:
            return num_heads * (elements // 2 + 2 * _SCALE_BYTES)
        case KVPacking.NVFP4:
            return num_heads * (elements // 2 + elements // 16)
        case _:
            raise ConfigError(f"{packing.value} is for latent attention alone", where="--kv-cache-dtype")


def packed_index_bytes(rows: KeptRows) -> int:
    """Return the bytes of one index key: one an element, and a scale for every 128, where it is not kept as it is."""
    if rows.element_bytes:
        return rows.key_size * rows.element_bytes
    return rows.key_size + _SCALE_BYTES * -(-rows.key_size // _SCALE_GROUP)


def _latent_bytes(rows: KeptRows, dtype: KVDtype, packing: KVPacking, *, is_sparse: bool) -> int:
    if packing is KVPacking.NVFP4_DS_MLA:
        return 352 * rows.key_size // 576
    if packing is KVPacking.FP8_DS_MLA or (packing is KVPacking.PLAIN and is_sparse and dtype is KVDtype.FP8):
        content = rows.key_size - _ROTARY_ELEMENTS
        if rows.kind.value != "mla" or rows.tokens_per_row > 1 or content % _SCALE_GROUP:
            return content + 2 * _ROTARY_ELEMENTS + 8
        return content + 2 * _ROTARY_ELEMENTS + _SCALE_BYTES * content // _SCALE_GROUP
    if packing is not KVPacking.PLAIN:
        raise ConfigError(f"{packing.value} is not for latent attention", where="--kv-cache-dtype")
    return kv_row_bytes(1, rows.key_size, 0, dtype.num_bytes)
