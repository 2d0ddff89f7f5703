"""Groups, blocks and printed figures; the numbers are vLLM's own worked answers or small enough to do by hand."""

import json

import pytest

from kvengine.errors import ConfigError
from kvplan.kv_layout.alignment import align_to_states, apply_alignment
from kvplan.kv_layout.capacity import KVLayout
from kvplan.kv_layout.groups import (
    group_layers,
    hash_block_size,
    padding_layers,
    scheduler_block_size,
    without_hybrid_manager,
)
from kvplan.kv_layout.layers import (
    AttentionKind,
    Layer,
    RequestBound,
    StateLayer,
    attention_layer,
    gated_delta_state_bytes,
    kv_heads_per_rank,
    state_blocks_per_request,
)
from kvplan.kv_layout.rules import parse_version, vllm_rules
from tests.oracle import sizing, startup_exact
from tests.oracle.outcome import OracleInputError
from tests.support import shared_path

GIB = 2**30


def full(*, heads: int = 8, head_size: int = 128, block_size: int = 16) -> Layer:
    return attention_layer(
        AttentionKind.FULL, num_kv_heads=heads, head_size=head_size, element_bytes=2, block_size=block_size
    )


def sliding(*, heads: int = 16, head_size: int = 128, window: int = 1024) -> Layer:
    return attention_layer(
        AttentionKind.SLIDING_WINDOW,
        num_kv_heads=heads,
        head_size=head_size,
        element_bytes=2,
        block_size=16,
        reach=window,
    )


def layout(layers: list[Layer], version: tuple[int, int, int] = (0, 32, 0)) -> KVLayout:
    return KVLayout(groups=tuple(group_layers(layers)), rules=vllm_rules(version))


def bound(length: int, *, in_flight: int = 16_384) -> RequestBound:
    return RequestBound(max_model_len=length, tokens_in_flight=in_flight)


GEMMA_27B = [layer for _ in range(10) for layer in (*[sliding()] * 5, full(heads=16))] + [sliding()] * 2


def test_a_plain_model_is_one_group_and_prints_blocks_times_block_size():
    llama = layout([full()] * 32)

    assert llama.bytes_per_block == 2_097_152
    assert llama.num_blocks([56_173_450_887]) == 26_785
    assert llama.printed_tokens(26_785, bound(8192)) == 428_560  # 26,785 * 16
    # In floating point, as the engine divides: 15,657 / 11 * 176 is 250,512 less a rounding error.
    assert llama.printed_tokens(15_657, bound(176)) == 250_511
    assert float(llama.max_concurrency(26_785, bound(8192))) == 52.314453125  # / 512 blocks


def test_the_smallest_rank_decides_the_number_of_blocks():
    # 5 GiB hold 2,560 blocks of 2 MiB, 6 GiB 3,072
    assert layout([full()] * 32).num_blocks([6 * GIB, 5 * GIB]) == 2_560


def test_sliding_and_full_layers_form_groups_of_ten_with_eight_layers_of_padding():
    gemma = layout(GEMMA_27B)

    assert [len(group.layers) for group in gemma.groups] == [9, 9, 9, 9, 8, 8, 10]
    assert gemma.groups[1].layer_indices[:4] == (1, 8, 15, 22)
    assert padding_layers(gemma.groups) == 8
    assert gemma.blocks_per_request(bound(32_768)) == 8_582  # 2,048 + 6 * 1,089


def test_a_version_before_0_20_1_prints_blocks_over_groups_times_the_block():
    num_blocks = 14_745
    assert layout(GEMMA_27B, (0, 20, 0)).printed_tokens(num_blocks, bound(32_768)) == 33_696  # 14,745 // 7 * 16
    assert layout(GEMMA_27B, (0, 20, 1)).printed_tokens(num_blocks, bound(32_768)) == 56_299


def test_only_the_newest_start_up_check_takes_off_the_null_block():
    # 8 GiB are 4,096 blocks of 2 MiB, and 65,536 tokens; the null block is one of them
    wanted = bound(131_072)
    assert layout([full()] * 32, (0, 27, 1)).estimated_max_model_len(wanted, 8 * GIB) == 65_536
    assert layout([full()] * 32, (0, 32, 0)).estimated_max_model_len(wanted, 8 * GIB) == 65_520


def test_memory_for_less_than_one_block_fits_no_length_at_all():
    assert layout([full()] * 32).estimated_max_model_len(bound(4096), 2_097_151) == 0


def test_a_window_is_never_charged_for_more_than_the_request():
    # ceil(100 / 16) + 1
    assert sliding().blocks_for(bound(100)) == 8


def test_with_the_hybrid_manager_off_sliding_layers_keep_everything():
    off = layout(without_hybrid_manager(GEMMA_27B))

    assert len(off.groups) == 1
    assert off.bytes_per_block == 62 * 131_072
    assert without_hybrid_manager([sliding()] * 3) == [sliding()] * 3  # no full layer to follow


def test_smaller_pages_get_larger_blocks_until_all_are_equal():
    # Gemma-4: full layers 4 heads of 512 (8,192 B a token), sliding 16 of 256 (16,384 B): 32-token blocks beside 16
    groups = group_layers([sliding(head_size=256)] * 5 + [full(heads=4, head_size=512)])

    assert {group.block_size for group in groups} == {16, 32}
    assert {group.page_bytes for group in groups} == {262_144}


def test_a_page_that_does_not_divide_is_padded_unless_it_is_latent():
    odd = full(heads=3)  # 1,536 B a token beside 8,192
    assert {group.page_bytes for group in group_layers([odd, sliding()])} == {131_072}

    latent = attention_layer(AttentionKind.MLA, num_kv_heads=1, head_size=576, element_bytes=2, block_size=16)
    with pytest.raises(ConfigError, match="does not divide"):
        group_layers([latent, sliding()])


def test_latent_rows_and_their_indexer_share_one_table_with_pages_summed():
    latent = attention_layer(
        AttentionKind.MLA, num_kv_heads=1, head_size=576, element_bytes=1, block_size=64, packed_token_bytes=656
    )
    indexer = attention_layer(AttentionKind.MLA, num_kv_heads=1, head_size=132, element_bytes=1, block_size=64)

    (group,) = group_layers([latent, indexer] * 61)

    assert group.block_bytes == group.page_bytes == 3_076_352  # 61 * 64 * (656 + 132)


def test_a_group_of_almost_equal_buckets_takes_the_larger_size():
    # 13 is less than 1.5 * 12, so both groups have room for 13
    assert layout([sliding(window=128)] * 12 + [full(heads=16)] * 13).bytes_per_block == 13 * 131_072


QWEN3_NEXT_STATE = gated_delta_state_bytes(
    num_key_heads=16,
    num_value_heads=32,
    key_head_size=128,
    value_head_size=128,
    conv_kernel=4,
    tensor_parallel_size=4,
    state_element_bytes=2,
)


def hybrid(*, prefix_caching: bool) -> list[Layer]:
    state = StateLayer(
        state_bytes=QWEN3_NEXT_STATE,
        block_size=16,
        blocks_per_request=state_blocks_per_request(prefix_caching=prefix_caching),
    )
    requested = [*[state] * 36, *[full(heads=1, head_size=256)] * 12]
    return apply_alignment(requested, align_to_states(requested), state_block_size=None if prefix_caching else 65_536)


def test_a_state_raises_the_attention_block_until_its_page_covers_it():
    alignment = align_to_states(hybrid(prefix_caching=True))

    assert QWEN3_NEXT_STATE == 274_432
    assert alignment is not None
    assert (alignment.block_size, alignment.page_bytes) == (272, 278_528)
    assert round(100 * alignment.padding_fraction, 2) == 1.49


def test_state_groups_take_two_blocks_a_request_with_prefix_caching_and_one_without():
    # 3 groups of 12 linear layers and one of 12 full: ceil(65,536 / 272) = 241 blocks of attention
    assert layout(hybrid(prefix_caching=True)).blocks_per_request(bound(65_536)) == 241 + 3 * 2
    assert layout(hybrid(prefix_caching=False)).blocks_per_request(bound(65_536)) == 241 + 3


def test_a_user_block_larger_than_the_state_needs_is_kept():
    requested = [
        StateLayer(state_bytes=1024, block_size=16, blocks_per_request=1),
        full(heads=1, head_size=128, block_size=64),
    ]
    alignment = align_to_states(requested)
    assert alignment is not None
    assert alignment.block_size == 64


def test_the_scheduler_hands_out_the_least_common_multiple_of_the_blocks():
    cached, uncached = group_layers(hybrid(prefix_caching=True)), group_layers(hybrid(prefix_caching=False))

    assert scheduler_block_size(cached) == hash_block_size(cached, prefix_caching=True) == 272
    # lcm(272, 65,536) = 65,536 * 17
    assert scheduler_block_size(uncached) == hash_block_size(uncached, prefix_caching=False) == 1_114_112


def test_context_parallel_ranks_share_one_request():
    kimi = attention_layer(AttentionKind.MLA, num_kv_heads=1, head_size=576, element_bytes=2, block_size=64)
    shared = RequestBound(max_model_len=131_072, tokens_in_flight=8192, context_parallel_size=8)

    # 46.803 GiB hold 11,174 blocks of 61 * 73,728 bytes; eight ranks make 8 * 64 tokens of each (printed by 0.11.1)
    assert layout([kimi] * 61, (0, 11, 1)).printed_tokens(11_174, shared) == 5_721_088
    assert kimi.blocks_for(shared) == 256  # 131,072 / 8 / 64


def test_speculative_tokens_lengthen_the_window_and_the_state_blocks():
    # Qwen3.5-122B with one draft token: 12,288 channels * 4 * 2 + 64 * 128 * 128 * 4
    state = gated_delta_state_bytes(
        num_key_heads=16,
        num_value_heads=64,
        key_head_size=128,
        value_head_size=128,
        conv_kernel=4,
        speculative_tokens=1,
    )
    assert state == 4_292_608
    assert state_blocks_per_request(prefix_caching=True, speculative_tokens=1) == 3


def test_heads_are_repeated_rather_than_split():
    assert kv_heads_per_rank(4, 8) == 1
    assert kv_heads_per_rank(8, 2) == 4


def test_a_model_without_attention_has_no_groups():
    assert group_layers([]) == []


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.15.2rc1.dev7+g12ab", (0, 15, 2)), ("v0.20", (0, 20, 0)), ("nightly", None), ("", None)],
)
def test_a_version_is_read_from_its_leading_numbers(text: str, version: tuple[int, int, int] | None):
    assert parse_version(text) == version


def test_every_field_of_vllms_own_answers_is_reproduced():
    outcomes = list(sizing.check(shared_path("oracle/kv_sizing.json")))

    assert len(outcomes) >= 17
    assert [outcome.case for outcome in outcomes if not outcome.passed] == []


def test_printed_figures_of_real_starts_follow_from_each_other():
    outcomes = list(startup_exact.check(shared_path("oracle/startup_logs.json")))

    assert len(outcomes) >= 31
    assert [outcome.case for outcome in outcomes if not outcome.passed] == []


def test_a_wrong_answer_fails_its_case(tmp_path):
    document = json.loads(shared_path("oracle/kv_sizing.json").read_text())
    document["cases"][0]["vllm"]["num_blocks"] += 1
    changed = tmp_path / "sizing.json"
    changed.write_text(json.dumps(document))

    failed = [outcome for outcome in sizing.check(changed) if not outcome.passed]

    assert [mismatch.what for outcome in failed for mismatch in outcome.mismatches] == ["num_blocks"]


def test_a_figure_one_step_beyond_its_rounding_fails_its_record(tmp_path):
    document = json.loads(shared_path("oracle/startup_logs.json").read_text())
    (record,) = [record for record in document["records"] if record["id"] == "v1-minimax-m2.5-4xrtxpro"]
    record["observed"]["kv_tokens"] = 399_568  # 24,973 blocks of 1,015,808 bytes are 23.6254 GiB; 23.62 is printed
    changed = tmp_path / "startup.json"
    changed.write_text(json.dumps({"records": [record]}))

    (outcome,) = startup_exact.check(changed)

    assert [mismatch.what for mismatch in outcome.mismatches] == ["blocks by available memory and by tokens"]


@pytest.mark.parametrize("check", [sizing.check, startup_exact.check])
def test_a_file_of_something_else_is_refused_in_one_line(check, tmp_path):
    other = tmp_path / "other.json"
    other.write_text('{"cases": 3}')
    with pytest.raises(OracleInputError, match="not a file of"):
        list(check(other))
