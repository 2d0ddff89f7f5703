import pytest

from kvengine.errors import ConfigError
from kvengine.spec import KVDtype
from kvplan.kv_layout.layers import AttentionKind
from kvplan.kv_packing import KVPacking, packed_row_bytes
from kvplan.models.layer_parts import KeptRows, RowUse

PLAIN = KeptRows(kind=AttentionKind.FULL, num_heads=8, key_size=128, value_size=128)
LATENT = KeptRows(kind=AttentionKind.MLA, num_heads=1, key_size=576, value_size=0)
INDEX = KeptRows(kind=AttentionKind.MLA, num_heads=1, key_size=128, value_size=0, use=RowUse.INDEX)
COMPRESSED = KeptRows(kind=AttentionKind.MLA, num_heads=1, key_size=512, value_size=0, tokens_per_row=4)
WINDOW = KeptRows(kind=AttentionKind.SLIDING_WINDOW, num_heads=1, key_size=512, value_size=0, reach=128)


@pytest.mark.parametrize(
    ("rows", "heads", "dtype", "packing", "is_sparse", "size_bytes"),
    [
        (PLAIN, 8, KVDtype.BFLOAT16, KVPacking.PLAIN, False, 4096),
        (PLAIN, 2, KVDtype.FP8, KVPacking.PLAIN, False, 512),
        # Each head has a key and a value, and a 4-byte scale for either.
        (PLAIN, 8, KVDtype.FP8, KVPacking.INT8_PER_TOKEN_HEAD, False, 8 * (256 + 8)),
        (PLAIN, 8, KVDtype.FP8, KVPacking.FP8_PER_TOKEN_HEAD, False, 8 * (256 + 8)),
        (PLAIN, 8, KVDtype.FP8, KVPacking.INT4_PER_TOKEN_HEAD, False, 8 * (128 + 8)),
        (PLAIN, 8, KVDtype.FP8, KVPacking.NVFP4, False, 8 * (128 + 16)),
        (LATENT, 1, KVDtype.BFLOAT16, KVPacking.PLAIN, False, 1152),
        (LATENT, 1, KVDtype.FP8, KVPacking.PLAIN, False, 576),
        # 512 bytes, 4 scales of 4 bytes, 64 rotary elements of 2 bytes.
        (LATENT, 1, KVDtype.FP8, KVPacking.PLAIN, True, 656),
        (LATENT, 1, KVDtype.FP8, KVPacking.FP8_DS_MLA, False, 656),
        (LATENT, 1, KVDtype.BFLOAT16, KVPacking.PLAIN, True, 1152),
        (LATENT, 1, KVDtype.FP8, KVPacking.NVFP4_DS_MLA, True, 352),
        # 448 bytes, 64 rotary elements of 2 bytes, 8 bytes of scales.
        (COMPRESSED, 1, KVDtype.FP8, KVPacking.PLAIN, True, 584),
        (WINDOW, 1, KVDtype.FP8, KVPacking.PLAIN, True, 584),
        # Index keys are kept in 8 bits whatever the cache is kept in.
        (INDEX, 1, KVDtype.BFLOAT16, KVPacking.PLAIN, True, 132),
        (INDEX, 1, KVDtype.FP8, KVPacking.PLAIN, True, 132),
    ],
)
def test_a_row_takes_what_its_engine_stores(
    rows: KeptRows, heads: int, dtype: KVDtype, packing: KVPacking, is_sparse: bool, size_bytes: int
) -> None:
    assert packed_row_bytes(rows, heads, dtype, packing, is_sparse=is_sparse) == size_bytes


@pytest.mark.parametrize(("rows", "packing"), [(PLAIN, KVPacking.FP8_DS_MLA), (LATENT, KVPacking.INT8_PER_TOKEN_HEAD)])
def test_a_form_for_other_models_is_refused(rows: KeptRows, packing: KVPacking) -> None:
    with pytest.raises(ConfigError, match="--kv-cache-dtype"):
        packed_row_bytes(rows, 1, KVDtype.FP8, packing, is_sparse=False)
