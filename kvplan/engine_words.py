"""The words that engines have for element types."""

from collections.abc import Mapping

from kvengine.spec import KVDtype
from kvplan.kv_packing import KVPacking

DTYPES: Mapping[str, KVDtype | None] = {
    "auto": None,
    "bfloat16": KVDtype.BFLOAT16,
    "float16": KVDtype.FLOAT16,
    "half": KVDtype.FLOAT16,
    "float32": KVDtype.FLOAT32,
    "float": KVDtype.FLOAT32,
}
"""Of weights and activations."""
_PACKED = ("fp8_ds_mla", "nvfp4_ds_mla", "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head", "nvfp4")
KV_DTYPES: Mapping[str, KVDtype | None] = {
    **DTYPES,
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla"), KVDtype.FP8),
    **dict.fromkeys(name for name in _PACKED if name != "fp8_ds_mla"),
}
"""Of the KV cache."""


def packing_named(name: str) -> KVPacking:
    """Return how rows of a KV type are packed."""
    return KVPacking(name) if name in _PACKED else KVPacking.PLAIN
