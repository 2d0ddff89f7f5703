from collections.abc import Sequence
from fractions import Fraction

import pytest

from kvengine.spec import KVDtype
from kvplan.kv_layout.layers import AttentionKind, AttentionLayer, Layer, StateLayer
from kvplan.kv_layout.sglang import SglangPool, sglang_layers
from kvplan.models.layer_parts import KeptRows, KeptState, LayerParts, RowUse, StateKind
from kvplan.rank_layers import (
    CacheForm,
    default_block_size,
    default_page_size,
    natural_layers,
    rank_layers,
    rank_state_bytes,
)

FULL = KeptRows(kind=AttentionKind.FULL, num_heads=8, key_size=128, value_size=128)
WINDOW = KeptRows(kind=AttentionKind.SLIDING_WINDOW, num_heads=8, key_size=128, value_size=128, reach=1024)
CHUNK = KeptRows(kind=AttentionKind.CHUNKED_LOCAL, num_heads=8, key_size=128, value_size=128, reach=8192)
CROSS = KeptRows(kind=AttentionKind.CROSS, num_heads=8, key_size=128, value_size=128)
LATENT = KeptRows(kind=AttentionKind.MLA, num_heads=1, key_size=576, value_size=0)
INDEX = KeptRows(kind=AttentionKind.MLA, num_heads=1, key_size=128, value_size=0, use=RowUse.INDEX)
COMPRESSED = KeptRows(kind=AttentionKind.MLA, num_heads=1, key_size=512, value_size=0, tokens_per_row=4)
# Mamba2: 3 columns of 1,024 channels and of 8 groups of 256; 32 heads of 64 x 128.
MAMBA = KeptState(
    kind=StateKind.MAMBA2, conv_columns=3, conv_channels=1024, groups=8, group_channels=256, heads=32,
    head_elements=64 * 128,
)  # fmt: skip
MAMBA_BYTES = 2 * (3 * (1024 + 8 * 256) + 32 * 64 * 128)


def form(**chosen: object) -> CacheForm:
    base = {"kv_dtype": KVDtype.BFLOAT16, "model_dtype": KVDtype.BFLOAT16, "max_model_len": 4096}
    return CacheForm(**{**base, **chosen})  # type: ignore[arg-type]  # by name


def row_bytes(layers: Sequence[Layer]) -> list[int]:
    return [layer.token_bytes for layer in layers if isinstance(layer, AttentionLayer)]


@pytest.mark.parametrize(("ranks", "size_bytes"), [(1, 4096), (2, 2048), (8, 512), (16, 512)])
def test_kv_heads_are_split_and_repeated_where_ranks_are_more(ranks: int, size_bytes: int) -> None:
    assert row_bytes(natural_layers([(FULL,)], form(tensor_parallel=ranks))) == [size_bytes]


def test_latent_rows_and_index_keys_are_whole_on_every_rank() -> None:
    assert row_bytes(natural_layers([(LATENT, INDEX)], form(tensor_parallel=8))) == [1152, 132]


@pytest.mark.parametrize(
    ("layers", "block", "page"),
    [
        ([(FULL,)], 16, 1),
        ([(FULL,), (LATENT,)], 64, 1),
        ([(LATENT, INDEX)], 64, 64),
        ([(COMPRESSED,), (WINDOW,)], 256, 1),
    ],
)
def test_engines_choose_blocks_and_pages_by_what_is_kept(layers: list[LayerParts], block: int, page: int) -> None:
    assert (default_block_size(layers), default_page_size(layers)) == (block, page)


def test_chunks_keep_everything_unless_the_hybrid_manager_is_asked_for() -> None:
    by_default, asked = (rank_layers([(FULL,), (CHUNK,)], form(hybrid_manager=manager)) for manager in (None, True))

    assert [layer.kind for layer in by_default if isinstance(layer, AttentionLayer)] == [AttentionKind.FULL] * 2
    assert [layer.kind for layer in asked if isinstance(layer, AttentionLayer)][1] is AttentionKind.CHUNKED_LOCAL


def test_windows_are_kept_by_default_and_not_without_the_hybrid_manager() -> None:
    by_default, refused = (rank_layers([(FULL,), (WINDOW,)], form(hybrid_manager=manager)) for manager in (None, False))

    assert [layer.kind for layer in by_default if isinstance(layer, AttentionLayer)][1] is AttentionKind.SLIDING_WINDOW
    assert [layer.kind for layer in refused if isinstance(layer, AttentionLayer)][1] is AttentionKind.FULL


@pytest.mark.parametrize(
    ("ranks", "size_bytes"),
    [
        (1, MAMBA_BYTES),
        (8, MAMBA_BYTES // 8),
        # 16 ranks: a group cannot be split in two, so each rank holds a whole one.
        (16, 2 * (3 * (64 + 256) + 2 * 64 * 128)),
    ],
)
def test_states_are_split_by_heads_and_groups(ranks: int, size_bytes: int) -> None:
    assert rank_state_bytes(MAMBA, form(tensor_parallel=ranks)) == size_bytes


def test_a_state_may_have_a_type_of_its_own_and_drafts_lengthen_it() -> None:
    assert rank_state_bytes(MAMBA, form(speculative_tokens=2)) == MAMBA_BYTES + 2 * 2 * (1024 + 8 * 256)
    wide = KeptState(kind=StateKind.MAMBA2, conv_columns=3, conv_channels=64, heads=4, head_elements=8,
                     dtype=KVDtype.FLOAT32)  # fmt: skip
    assert rank_state_bytes(wide, form()) == 3 * 64 * 2 + 4 * 8 * 4


def test_blocks_beside_states_grow_until_a_page_holds_one() -> None:
    layers = rank_layers([(FULL,), (MAMBA,)], form())

    (attention,) = (layer for layer in layers if isinstance(layer, AttentionLayer))
    (state,) = (layer for layer in layers if isinstance(layer, StateLayer))
    assert attention.block_size % 16 == 0
    assert attention.block_size * attention.token_bytes >= state.state_bytes
    assert (attention.block_size - 16) * attention.token_bytes < state.state_bytes


def pool(*layers: LayerParts, page_size: int = 1, ranks: int = 1) -> SglangPool:
    natural = natural_layers(layers, form(tensor_parallel=ranks))
    return SglangPool(layers=sglang_layers(natural), page_size=page_size)


def test_sglang_gives_windows_four_fifths_of_the_tokens_of_full_layers() -> None:
    mixed = pool((FULL,), (WINDOW,), (WINDOW,))
    available = 1000 * (4096 + 2 * 4096 * 4 // 5) + 5000

    assert mixed.cell_bytes == 4096 + Fraction(4, 5) * 2 * 4096
    assert mixed.tokens(available) == 1000
    assert mixed.window_tokens(available) == 800


def test_sglang_keeps_every_token_where_all_layers_are_windows_or_chunks() -> None:
    windows, chunks = pool((WINDOW,), (WINDOW,)), pool((FULL,), (CHUNK,))

    assert windows.tokens(8192 * 100) == 100
    assert windows.window_tokens(8192 * 100) == 0
    assert chunks.tokens(8192 * 100) == 100


def test_sglang_has_whole_pages_and_no_cross_attention_in_its_pool() -> None:
    assert pool((FULL,), page_size=64).tokens(4096 * 200) == 192
    assert pool((FULL, CROSS)).cell_bytes == 4096


def test_sglang_gives_states_nine_nineteenths_and_one_slot_to_padding() -> None:
    hybrid = pool((FULL,), (MAMBA,))
    available = 19 * 100 * MAMBA_BYTES

    assert hybrid.state_slots(available) == 899
    assert hybrid.token_memory(available) == available - 900 * MAMBA_BYTES
    assert hybrid.tokens(available) == 1000 * MAMBA_BYTES // 4096
    alone = pool((MAMBA,))
    assert (alone.state_slots(10 * MAMBA_BYTES), alone.tokens(10 * MAMBA_BYTES)) == (9, 0)
    assert hybrid.state_slots(0) == hybrid.tokens(0) == 0
