"""What an engine takes besides weights and KV, by hand."""

import pytest

from kvplan.config_reader import ConfigReader
from kvplan.estimate import Amount
from kvplan.memory_model.activation import Moment, Sampling, activation_moments, activation_peak, sampling_of
from kvplan.memory_model.constants import Constant, VllmConstants
from kvplan.memory_model.encoder import EncoderShape, read_encoder_shape
from kvplan.memory_model.loading import absorbed_projections, expert_padding
from kvplan.memory_model.shape import LatentShape, StepShape, read_step_shape
from kvplan.memory_model.start import Card, EngineStart, Generation, default_utilization, step_limits
from kvplan.memory_model.vllm import vllm_parts
from kvplan.parameters import Geometry

GIB = 2**30
LLAMA_8B = StepShape(hidden_size=4096, vocab_size=128_256, mlp_width=14_336)
DEEPSEEK_R1 = LatentShape(num_layers=61, num_heads=128, query_width=1536, kv_rank=512, rope_size=64)


def a_constant(low: float, likely: float, high: float) -> Constant:
    return Constant(low=low, likely=likely, high=high, records=3, spread=0, source="a test")


def some_constants(**changes: object) -> VllmConstants:
    fields: dict[str, object] = {
        "fitted_records": "",
        "sorting_bytes_per_entry": a_constant(38, 38, 38),
        "masking_bytes_per_entry": a_constant(14, 14, 14),
        "deferred_bytes_per_entry": a_constant(2, 6, 14),
        "hidden_copies": a_constant(3, 3, 4),
        "workspace_bytes": a_constant(0, 40, 80),
        "non_torch_v0_bytes": a_constant(1, 2, 30),
        "non_torch_v1_bytes": a_constant(10, 13, 14),
        "context_bytes": a_constant(100, 200, 300),
        "communication_bytes": {
            "V0-8": a_constant(400, 700, 900),
            "V1-2": a_constant(20, 40, 60),
            "V1-4": a_constant(30, 60, 90),
        },
        "cuda_graphs_bytes": a_constant(100, 500, 1600),
        "unaccounted_of_card": a_constant(0, 0, 0.02),
    }
    return VllmConstants(**(fields | changes))  # type: ignore[arg-type]


def a_start(version: tuple[int, int, int] = (0, 11, 0), *, gib: float = 79, **fields: object) -> EngineStart:
    card = Card(name=str(fields.pop("name", "")), process_bytes=int(gib * GIB), **fields.pop("card", {}))  # type: ignore[arg-type]
    return EngineStart(**{"card": card, "max_model_len": 8192, "version": version, **fields})  # type: ignore[arg-type]


def limits_of(start: EngineStart, shape: StepShape = LLAMA_8B) -> tuple[int, int]:
    limits = step_limits(start, shape)
    return limits.num_seqs, limits.num_tokens


# ------------------------------------------------------------------------------------------- start and limits


def test_large_cards_start_with_larger_steps_unless_they_are_an_a100_or_share_the_hosts_memory() -> None:
    assert limits_of(a_start(gib=79)) == (1024, 8192)
    assert limits_of(a_start(gib=69)) == (256, 2048)
    assert limits_of(a_start(name="NVIDIA A100 SXM4 80GB")) == (256, 2048)
    # The exception came with 0.9.
    assert limits_of(a_start((0, 8, 5), name="NVIDIA A100 SXM4 80GB")) == (1024, 8192)
    assert limits_of(a_start(gib=119, card={"is_unified": True})) == (256, 2048)
    assert limits_of(a_start((0, 32, 0), gib=178)) == (1024, 16_384)
    assert limits_of(a_start((0, 27, 0), gib=178)) == (1024, 8192)


def test_v0_profiles_whole_prompts_and_splits_only_plain_models_of_long_context() -> None:
    v0 = a_start((0, 7, 3), gib=23, max_model_len=29_000)
    assert v0.runs_v0
    assert limits_of(v0) == (256, 29_000)
    assert limits_of(a_start((0, 7, 3), max_model_len=35_000)) == (256, 2048)
    latent = StepShape(hidden_size=7168, vocab_size=129_280, latent=DEEPSEEK_R1)
    assert limits_of(a_start((0, 7, 3), max_model_len=128_000), latent) == (256, 128_000)
    assert limits_of(a_start((0, 7, 3), max_model_len=512)) == (256, 2048)


def test_the_engine_follows_from_version_and_card_unless_it_was_chosen() -> None:
    volta = {"compute_capability": 7.0}
    assert a_start((0, 8, 5), card=volta).runs_v0
    assert not a_start((0, 11, 0), card=volta).runs_v0
    assert not a_start((0, 8, 5)).runs_v0
    assert not a_start((0, 7, 0), generation=Generation.V1).runs_v0


def test_limits_that_were_given_count_and_bound_each_other_as_in_the_engine() -> None:
    assert limits_of(a_start(max_num_seqs=16)) == (16, 8192)
    assert limits_of(a_start(max_num_batched_tokens=512)) == (512, 512)
    # 2 requests of 100 tokens never fill 8,192.
    assert limits_of(a_start(max_num_seqs=2, max_model_len=100)) == (2, 200)


def test_the_default_share_of_the_card_grew_in_0_20() -> None:
    assert [default_utilization(version) for version in ((0, 19, 0), (0, 20, 0))] == [0.9, 0.92]


# --------------------------------------------------------------------------------------------- activation


def test_the_sampler_decides_on_a_large_card_as_a_public_log_says() -> None:
    # 38 * 1,024 * 128,256 + 2 * 4,096 * (8,192 + 2 * 1,024) + 40; the log of 0.11 on an H100 prints 4.76 GiB.
    peak = activation_peak(a_start(), LLAMA_8B, some_constants())

    assert peak.size_bytes == 4_990_697_472 + 83_886_080 + 40
    assert peak.size_bytes / GIB == pytest.approx(4.76, abs=0.04)


def test_one_step_decides_where_v0_runs_a_whole_long_prompt_as_a_public_log_says() -> None:
    # 2 * 29,000 * (3 * 14,336 + 3 * 4,096) + 40 bytes; the log on an RTX 3090 prints 17.98 - 14.99 = 2.99 GiB.
    start = a_start((0, 6, 0), gib=23.55, max_model_len=29_000)
    peak = activation_peak(start, LLAMA_8B, some_constants())

    assert peak.size_bytes == 3_207_168_000 + 40
    assert peak.size_bytes / GIB == pytest.approx(2.99, abs=0.01)
    assert (peak.low_bytes, peak.high_bytes) == (3_207_168_000, 3_207_168_000 + 2 * 29_000 * 4096 + 80)


def test_ranks_share_the_width_of_an_mlp_and_each_samples_the_whole_vocabulary() -> None:
    alone, four = (activation_moments(a_start(tensor_parallel=ranks), LLAMA_8B, some_constants()) for ranks in (1, 4))

    assert four[Moment.SAMPLER] == alone[Moment.SAMPLER]
    # 2 * 8,192 * 3 * (14,336 - 3,584) bytes less.
    assert alone[Moment.FORWARD].size_bytes - four[Moment.FORWARD].size_bytes == 528_482_304


def test_experts_take_tokens_in_chunks() -> None:
    # Two ranks hold 32 of an expert's 64 each. A token takes max(2 * 32, 16) + 32 elements in each of 3 experts.
    sparse = StepShape(hidden_size=16, vocab_size=1, expert_width=64, experts_per_token=3)
    small, large = (
        activation_moments(
            a_start(max_num_batched_tokens=tokens, max_num_seqs=1, max_model_len=10**6, tensor_parallel=2),
            sparse,
            some_constants(),
        )[Moment.FORWARD].size_bytes
        for tokens in (1000, 40_000)
    )

    assert small == 2 * (2 * 1000 * 16 + 1000 * 3 * 96)
    assert large == 2 * (2 * 40_000 * 16 + 32_768 * 3 * 96)


def test_versions_sample_in_three_ways() -> None:
    sparse = StepShape(hidden_size=1, vocab_size=1, expert_width=1, experts_per_token=1)
    hybrid = StepShape(hidden_size=1, vocab_size=1, is_hybrid=True)

    def ways(shape: StepShape) -> list[Sampling]:
        return [sampling_of(a_start(version), shape) for version in ((0, 16, 0), (0, 17, 1), (0, 26, 0), (0, 29, 0))]

    assert ways(LLAMA_8B) == [Sampling.SORTING, Sampling.MASKING, Sampling.DEFERRED, Sampling.DEFERRED]
    assert ways(sparse) == ways(hybrid) == [Sampling.SORTING, Sampling.MASKING, Sampling.MASKING, Sampling.DEFERRED]


def test_an_encoder_fills_a_step_with_its_largest_images() -> None:
    # 8,192 tokens are 32 images of 256; each has 64 * 64 patches, and 16 of those become a token.
    siglip = EncoderShape(hidden_size=1152, mlp_width=4304, patches_per_token=16, tokens_per_image=256)
    shape = StepShape(hidden_size=5376, vocab_size=262_208, mlp_width=21_504, encoder=siglip)
    moments = activation_moments(a_start(max_num_seqs=16), shape, some_constants())

    assert moments[Moment.ENCODER].size_bytes == 2 * 131_072 * (2 * 4304 + 4 * 1152)
    assert moments[Moment.ENCODER].low_bytes == 0
    # The images' tokens stay there while the language model runs.
    text_only = activation_moments(
        a_start(max_num_seqs=16), StepShape(hidden_size=5376, vocab_size=262_208, mlp_width=21_504), some_constants()
    )
    assert moments[Moment.FORWARD].size_bytes - text_only[Moment.FORWARD].size_bytes == 2 * 8192 * 5376
    # An image that is larger than a step is profiled all the same.
    assert siglip.patches(100) == 4096


# --------------------------------------------------------------------------------------------------- parts


def part_sizes(start: EngineStart, shape: StepShape = LLAMA_8B) -> dict[str, Amount]:
    return {part.name: part.amount for part in vllm_parts(start, shape, some_constants())}


def test_several_gpus_add_communication_and_newer_versions_graphs() -> None:
    assert list(part_sizes(a_start())) == ["activation_peak", "non_torch", "unaccounted"]
    assert list(part_sizes(a_start((0, 20, 0), tensor_parallel=2))) == [
        "activation_peak",
        "non_torch",
        "communication",
        "cuda_graphs",
        "unaccounted",
    ]
    assert "cuda_graphs" not in part_sizes(a_start((0, 20, 0), enforce_eager=True))


@pytest.mark.parametrize(
    ("version", "ranks", "likely"),
    [
        ((0, 11, 0), 2, 40),
        ((0, 11, 0), 3, 40),
        ((0, 11, 0), 16, 60),
        ((0, 7, 3), 8, 700),
        # No log of V0 has so few ranks: what V1 needs for them.
        ((0, 7, 3), 2, 40),
    ],
)
def test_communication_is_that_of_the_largest_known_group_that_is_not_larger(
    version: tuple[int, int, int], ranks: int, likely: int
) -> None:
    assert part_sizes(a_start(version, tensor_parallel=ranks))["communication"].size_bytes == likely


@pytest.mark.parametrize(
    ("version", "generation", "counted"),
    [((0, 6, 4), None, 200), ((0, 6, 5), None, 0), ((0, 8, 5), Generation.V1, 200), ((0, 9, 0), Generation.V1, 0)],
)
def test_old_versions_count_the_context_as_their_own(
    version: tuple[int, int, int], generation: Generation | None, counted: int
) -> None:
    own = 2 if generation is None else 13

    assert part_sizes(a_start(version, generation=generation))["non_torch"].size_bytes == own + counted


def test_what_logs_do_not_account_for_is_a_share_of_the_card() -> None:
    unaccounted = part_sizes(a_start(gib=100))["unaccounted"]

    assert (unaccounted.low_bytes, unaccounted.size_bytes, unaccounted.high_bytes) == (0, 0, 2 * GIB)


# --------------------------------------------------------------------------------------------------- shapes


GEOMETRY = Geometry(
    num_layers=1,
    num_attention_heads=4,
    num_kv_heads=4,
    head_dim=8,
    hidden_size=32,
    vocab_size=100,
    max_model_len=64,
)


def step_shape(config: dict[str, object]) -> StepShape:
    return read_step_shape(ConfigReader(config, "a test"), ConfigReader({}, "a test"), GEOMETRY)


def encoder_shape(config: dict[str, object]) -> EncoderShape | None:
    return read_encoder_shape(ConfigReader(config, "a test"))


def test_a_dense_model_has_the_width_of_its_mlp_or_four_times_its_hidden_size() -> None:
    assert step_shape({"intermediate_size": 96}).mlp_width == 96
    assert step_shape({}).mlp_width == 128
    assert not step_shape({}).is_sparse


def test_experts_are_read_in_their_spellings() -> None:
    deepseek = step_shape(
        {"intermediate_size": 96, "moe_intermediate_size": 24, "num_experts_per_tok": 8, "kv_lora_rank": 16}
    )
    assert (deepseek.expert_width, deepseek.experts_per_token, deepseek.mlp_width) == (24, 8, 96)
    assert deepseek.latent == LatentShape(num_layers=1, num_heads=4, query_width=32, kv_rank=16)
    mixtral = step_shape({"intermediate_size": 96, "num_experts_per_tok": 2})
    assert (mixtral.expert_width, mixtral.experts_per_token) == (96, 2)
    # Hunyuan lists a count for each layer.
    assert step_shape({"moe_topk": [1, 8], "intermediate_size": 3}).experts_per_token == 8


@pytest.mark.parametrize("damage", [None, -1, 0, True, "8", [], [None], 2**40, 1.5])
def test_senseless_sizes_count_as_absent(damage: object) -> None:
    shape = step_shape({"intermediate_size": damage, "num_experts_per_tok": damage})

    assert (shape.mlp_width, shape.experts_per_token) == (128, 0)


def test_encoders_are_read_in_their_spellings() -> None:
    gemma = encoder_shape(
        {
            "vision_config": {"hidden_size": 1152, "intermediate_size": 4304, "image_size": 896, "patch_size": 14},
            "mm_tokens_per_image": 256,
        }
    )
    assert gemma == EncoderShape(hidden_size=1152, mlp_width=4304, patches_per_token=16, tokens_per_image=256)
    qwen = encoder_shape(
        {
            "vision_config": {
                "embed_dim": 1280,
                "mlp_ratio": 4,
                "hidden_size": 3584,
                "patch_size": 14,
                "spatial_merge_size": 2,
            }
        }
    )
    # 12,845,056 pixels in tokens of 28 by 28.
    assert qwen == EncoderShape(hidden_size=1280, mlp_width=5120, patches_per_token=4, tokens_per_image=16_384)
    kimi = encoder_shape(
        {"vision_config": {"vt_hidden_size": 1152, "vt_intermediate_size": 4304, "merge_kernel_size": [2, 2]}}
    )
    assert kimi is not None
    assert (kimi.hidden_size, kimi.mlp_width, kimi.patches_per_token) == (1152, 4304, 4)


@pytest.mark.parametrize("config", [{}, {"vision_config": None}, {"vision_config": []}, {"vision_config": {}}])
def test_no_encoder_is_read_where_none_is_described(config: dict[str, object]) -> None:
    assert encoder_shape(config) is None


# -------------------------------------------------------------------------------------------------- loading


def test_mxfp4_experts_are_padded_and_others_are_not() -> None:
    # gpt-oss: 2,880 becomes 3,072, and with Marlin's kernels the width 2,944: 6.67 % or 9.04 % more.
    oss = StepShape(hidden_size=2880, vocab_size=201_088, expert_width=2880, experts_per_token=4)
    padding = expert_padding(oss, 9000, method="mxfp4")

    assert (padding.low_bytes, padding.size_bytes, padding.high_bytes) == (0, 600, 813)
    assert expert_padding(oss, 9000, method="fp8").high_bytes == 0
    assert expert_padding(LLAMA_8B, 9000, method="mxfp4").high_bytes == 0


def test_0_7_kept_products_of_latent_projections_as_a_public_log_says() -> None:
    r1 = StepShape(hidden_size=7168, vocab_size=129_280, latent=DEEPSEEK_R1)

    def extra(version: tuple[int, int, int]) -> int:
        return absorbed_projections(a_start(version, tensor_parallel=8), r1, is_fp8=True).size_bytes

    # 61 layers of 16 heads; the log of 0.7.3 on 8 H200 loads 83.88 GiB, 4.6 more than the checkpoint's share.
    assert extra((0, 7, 3)) == 61 * 16 * (1536 * 512 + 512 * 7168 + 2 * 1536 * 64)
    assert extra((0, 7, 3)) / GIB == pytest.approx(4.23, abs=0.01)
    assert extra((0, 7, 0)) == extra((0, 8, 0)) == 0
