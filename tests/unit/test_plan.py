"""Verdicts, and what a plan is made of."""

from dataclasses import replace
from typing import Any

import pytest

from kvengine.errors import ConfigError
from kvengine.spec import KVDtype
from kvplan.budget import MemoryFraction
from kvplan.capacity import EngineKind
from kvplan.checkpoint import StoredWeights
from kvplan.demand import full_length_demand, lengths_demand, uniform_demand
from kvplan.estimate import Evidence
from kvplan.gpu_spec import GpuSpec, gpu_of_size, load_gpu
from kvplan.hints import find_hints
from kvplan.model_config import model_from_config
from kvplan.model_spec import ModelSpec, load_model
from kvplan.needs import Decider, needs_of
from kvplan.plan import EngineInputs, MemoryInputs, Outcome, Plan, PlanInputs, make_plan

GIB = 2**30


def a_model(**keys: Any) -> ModelSpec:
    """64 bytes a token: 1 layer, 1 KV head of 16, 16 bits; longest context 64."""
    config = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "hidden_size": 16,
        "intermediate_size": 32,
        "vocab_size": 64,
        "max_position_embeddings": 64,
        **keys,
    }
    return model_from_config(config, name="small", source="config.json")


def a_plan(blocks: int, *, demand: Any = None, model: ModelSpec | None = None, **engine: Any) -> Plan:
    """A pool of blocks of 16 tokens, 1,024 bytes each."""
    return make_plan(
        PlanInputs(
            model=model or a_model(),
            memory=MemoryInputs(available_kv_bytes=blocks * 1024),
            engine=EngineInputs(**engine),
            demand=demand,
        )
    )


def test_vllm_needs_a_block_more_than_the_textbook() -> None:
    # A request of 64 tokens takes 4 blocks.
    assert a_plan(4, engine=EngineKind.PAGED).verdict.outcome is Outcome.FITS
    assert a_plan(4).verdict.outcome is Outcome.DOES_NOT_FIT
    assert a_plan(5).verdict.outcome is Outcome.FITS
    assert a_plan(4).verdict.reason == (
        "one request of 64 tokens needs 4.00 KiB of KV cache, and 3.00 KiB are there beside the null block; "
        "the longest that fits has 48 tokens"
    )


def test_the_textbook_judges_the_requests_and_the_engine_the_longest_length() -> None:
    few = lengths_demand((16, 17))

    assert a_plan(3, demand=few, engine=EngineKind.PAGED).verdict.outcome is Outcome.FITS
    assert a_plan(2, demand=few, engine=EngineKind.PAGED).verdict.outcome is Outcome.DOES_NOT_FIT
    # A length that was typed must fit as well.
    typed = a_plan(3, demand=few, engine=EngineKind.PAGED, max_model_len=64)
    assert typed.verdict.outcome is Outcome.DOES_NOT_FIT
    assert a_plan(3, demand=few).verdict.outcome is Outcome.DOES_NOT_FIT
    # The engine lets requests wait, so what they take together does not count.
    waiting = a_plan(5, demand=lengths_demand((64, 64, 64))).verdict
    assert waiting.outcome is Outcome.FITS
    assert waiting.reason.endswith("; of the 3 requests 1 fit at the same time, the others wait")


def test_a_number_of_requests_counts_for_the_engine_too() -> None:
    ten = uniform_demand(prompt_tokens=15, output_tokens=1, requests=10)

    assert a_plan(11, demand=ten).verdict.outcome is Outcome.FITS
    verdict = a_plan(10, demand=ten).verdict
    assert verdict.reason == "10 requests need 10 blocks of 16, and 9 are there: 9 of them fit"
    assert a_plan(11, demand=ten, max_num_seqs=9).verdict.outcome is Outcome.DOES_NOT_FIT


def test_a_request_longer_than_the_limit_does_not_fit_whatever_there_is() -> None:
    verdict = a_plan(100, demand=lengths_demand((65,))).verdict

    assert verdict.outcome is Outcome.DOES_NOT_FIT
    assert verdict.reason == "a request of 65 tokens is longer than the 64 allowed"


def test_an_override_that_is_more_than_there_is_does_not_fit() -> None:
    verdict = a_plan(10, num_blocks=11).verdict

    assert verdict.outcome is Outcome.DOES_NOT_FIT
    assert verdict.reason == "11 blocks take 11.00 KiB, and 10.00 KiB are there"


def on_a_card(card_bytes: int, **memory: Any) -> Plan:
    inputs = MemoryInputs(gpu=gpu_of_size(card_bytes), **memory)
    return make_plan(PlanInputs(model=a_model(), memory=inputs))


def test_a_plan_is_marginal_where_the_range_straddles_the_need() -> None:
    # Beside this model's weights 0.14 to 1.8 GiB and 2.5 % of the card are taken, 0.7 GiB likely; 5 KiB are needed.
    assert on_a_card(3 * GIB).verdict.outcome is Outcome.FITS
    assert on_a_card(GIB).verdict.outcome is Outcome.MARGINAL
    assert on_a_card(GIB // 2).verdict.outcome is Outcome.MARGINAL
    assert on_a_card(GIB // 8).verdict.outcome is Outcome.DOES_NOT_FIT
    assert "may be there" in on_a_card(GIB).verdict.reason


def test_weights_come_from_the_user_then_the_files_then_the_shape() -> None:
    model = a_model()
    stored = StoredWeights(source="1 safetensors header", stored_bytes=12_345, float_width=2)
    memory = MemoryInputs(gpu=gpu_of_size(80 * GIB))

    def weights(model: ModelSpec, memory: MemoryInputs, **engine: Any) -> tuple[int, Evidence]:
        plan = make_plan(PlanInputs(model=model, memory=memory, engine=EngineInputs(**engine)))
        (part,) = (part for part in plan.budget.parts if part.name == "weights")
        return part.size_bytes, part.amount.evidence

    assert weights(model, replace(memory, weights_bytes=7)) == (7, Evidence.GIVEN)
    assert weights(replace(model, stored_weights=stored), memory) == (12_345, Evidence.EXACT)
    widened = weights(replace(model, stored_weights=stored), memory, dtype=KVDtype.FLOAT32)
    assert widened == (24_690, Evidence.EXACT)
    assert model.weights is not None
    assert weights(model, memory) == (model.weights.parameters * 2, Evidence.ESTIMATED)
    assert weights(model, memory, dtype=KVDtype.FLOAT32) == (model.weights.parameters * 4, Evidence.ESTIMATED)
    with pytest.raises(ConfigError, match="the size of its weights is not known: its weights are quantised"):
        make_plan(PlanInputs(model=a_model(quantization_config={"quant_method": "exotic"}), memory=memory))


def test_without_any_memory_there_is_no_plan() -> None:
    with pytest.raises(ConfigError, match="the memory is not known"):
        make_plan(PlanInputs(model=a_model()))


def test_the_limits_of_a_step_are_those_of_the_engine_on_that_card() -> None:
    # vLLM's server: 1,024 requests of a step on cards from 70 GiB on, 256 below; tokens as many as these requests
    # have at most: 64 each, 8,192 and 2,048 in all.
    def limits(card_bytes: int, **engine: Any) -> tuple[int, int]:
        memory = MemoryInputs(gpu=gpu_of_size(card_bytes))
        found = make_plan(PlanInputs(model=a_model(), memory=memory, engine=EngineInputs(**engine))).limits
        return found.num_seqs, found.num_tokens

    assert limits(80 * GIB) == (1024, 8192)
    assert limits(24 * GIB) == (256, 2048)
    assert limits(80 * GIB, max_num_seqs=7) == (7, 448)
    assert limits(80 * GIB, max_num_seqs=7, max_num_batched_tokens=33) == (7, 33)
    # SGLang: 512 for every request of full length that the pool holds, 4,096 at most; 8,192 tokens on 60 to 160 GiB.
    assert limits(80 * GIB, engine=EngineKind.SGLANG) == (4096, 8192)


def test_a_number_of_requests_is_checked_against_the_limit_of_the_engine_on_that_card() -> None:
    many = uniform_demand(prompt_tokens=1, output_tokens=0, requests=300)

    def on(card_bytes: int) -> Plan:
        return make_plan(PlanInputs(model=a_model(), memory=MemoryInputs(gpu=gpu_of_size(card_bytes)), demand=many))

    assert on(80 * GIB).verdict.outcome is Outcome.FITS
    small = on(24 * GIB)
    assert small.verdict.outcome is Outcome.DOES_NOT_FIT
    assert small.verdict.reason == "300 requests at once are more than the 256 allowed (--max-num-seqs)"
    assert "--max-num-seqs 300" in [hint.option for hint in find_hints(small)]


def test_a_fitted_length_is_the_length_of_the_requests_that_are_counted() -> None:
    # 3 of 4 blocks hold a request, of 48 tokens; two of that length need 6 blocks.
    plan = a_plan(4, demand=full_length_demand(64, requests=2), fit_max_model_len=True)

    assert plan.demand.lengths == (48,)
    assert plan.verdict.reason == "2 requests need 6 blocks of 16, and 3 are there: 1 of them fit"
    one = a_plan(4, demand=full_length_demand(64, requests=1), fit_max_model_len=True)
    assert one.verdict.outcome is Outcome.FITS


def test_memory_that_others_hold_keeps_vllm_from_starting() -> None:
    def on(used_bytes: int, **engine: Any) -> Plan:
        gpu = replace(gpu_of_size(80 * GIB), used_bytes=used_bytes)
        return make_plan(PlanInputs(model=a_model(), memory=MemoryInputs(gpu=gpu), engine=EngineInputs(**engine)))

    # 0.92 of 80 GiB leaves 6.4 GiB to others.
    assert on(6 * GIB).verdict.outcome is Outcome.FITS
    full = on(7 * GIB).verdict
    assert full.outcome is Outcome.DOES_NOT_FIT
    assert full.reason == (
        "7.00 GiB of the card are in use, 73.00 GiB are free, and the engine takes 73.60 GiB (0.92 of it): "
        "it does not start"
    )
    assert on(7 * GIB, engine=EngineKind.PAGED).verdict.outcome is Outcome.FITS


def test_needs_are_what_just_fits() -> None:
    plan = a_plan(3, demand=full_length_demand(64, requests=3))

    # 3 requests of 4 blocks and the null block.
    needs = needs_of(plan)
    assert needs is not None
    assert (needs.available_kv_bytes, needs.decider) == (13 * 1024, Decider.REQUESTS)
    assert a_plan(13, demand=plan.demand).verdict.outcome is Outcome.FITS
    assert a_plan(12, demand=plan.demand).verdict.outcome is Outcome.DOES_NOT_FIT


def test_needs_name_the_limits_that_must_be_lifted_and_what_decides() -> None:
    short = a_plan(3, demand=uniform_demand(prompt_tokens=16, output_tokens=0, requests=3), max_num_seqs=2)
    needs = needs_of(short)

    # 3 requests of a block; one of the longest length takes 4, and there is the null block.
    assert needs is not None
    assert (needs.blocks, needs.decider, needs.max_num_seqs) == (5, Decider.LONGEST_REQUEST, 3)
    assert needs_of(a_plan(3, demand=uniform_demand(prompt_tokens=65, output_tokens=0, requests=3))) is None


def test_needs_of_a_card_hold_where_the_estimates_turn_out_worst() -> None:
    plan = on_a_card(GIB)
    needs = needs_of(plan)
    assert needs is not None
    assert needs.gpu_memory_bytes is not None

    assert on_a_card(needs.gpu_memory_bytes).verdict.outcome is Outcome.FITS
    # Sizes are given in hundredths of a GiB.
    assert on_a_card(needs.gpu_memory_bytes - GIB // 100).verdict.outcome is Outcome.MARGINAL


def test_a_needed_share_is_enough_for_whichever_pipeline_stage_decides_with_it() -> None:
    many = uniform_demand(prompt_tokens=100, output_tokens=28, requests=400)
    engine = EngineInputs(tensor_parallel=2, pipeline_parallel=2)
    model, gpu = load_model("deepseek-v4-flash"), load_gpu("h100-sxm")
    inputs = PlanInputs(model=model, memory=MemoryInputs(gpu=gpu), engine=engine, demand=many)
    needs = needs_of(make_plan(inputs))

    assert needs is not None
    assert needs.utilization is not None
    share = MemoryFraction(of_total=needs.utilization)
    enough = replace(inputs, memory=MemoryInputs(gpu=gpu, fraction=share))
    assert make_plan(enough).verdict.outcome is Outcome.FITS


def test_needs_count_the_most_that_the_driver_may_keep() -> None:
    from kvplan.estimate import estimated

    gpu = GpuSpec(name="", total_bytes=101 * GIB, driver_reserve=estimated(0, GIB // 2, GIB))
    memory = MemoryInputs(gpu=gpu, fraction=MemoryFraction(of_total=0.5), weights_bytes=60 * GIB, overhead_bytes=GIB)
    needs = needs_of(make_plan(PlanInputs(model=a_model(), memory=memory)))

    # 61 GiB and 5 blocks of 1 KiB out of 100 GiB; twice as much and 1 GiB for the driver, to a hundredth of a GiB.
    assert needs is not None
    assert needs.utilization == (61 * GIB + 5 * 1024) / (100 * GIB)
    assert needs.gpu_memory_bytes == 12_301 * GIB // 100


def test_a_reserve_of_the_driver_is_not_for_the_engine() -> None:
    from kvplan.estimate import sure

    gpu = GpuSpec(name="", total_bytes=4 * GIB, driver_reserve=sure(GIB, Evidence.TABLE))
    plan = make_plan(PlanInputs(model=a_model(), memory=MemoryInputs(gpu=gpu, weights_bytes=GIB, overhead_bytes=GIB)))
    # ceil(3 GiB * 0.92) - 2 GiB
    assert plan.budget.available_kv.size_bytes == 2_963_527_435 - 2 * GIB


def test_a_plan_that_fits_hints_at_more_room_and_one_that_does_not_at_what_fits() -> None:
    assert [(hint.option, hint.effect) for hint in find_hints(a_plan(5))] == [
        ("--kv-cache-dtype fp8", "10 blocks instead of 5")
    ]
    options = [hint.option for hint in find_hints(a_plan(4))]
    assert options == ["--max-model-len 48", "--kv-cache-dtype fp8", "--available-kv 5120B"]


def test_smaller_steps_are_hinted_at_where_they_make_room() -> None:
    # 0.11 samples for 1,024 requests over 128,256 entries of 38 bytes: 4.6 GiB on this card, 1.2 GiB for 256.
    model = load_model("llama-3.1-8b")
    engine = EngineInputs(version=(0, 11, 0), max_model_len=410_000)
    memory = MemoryInputs(gpu=gpu_of_size(79 * GIB), fraction=MemoryFraction(of_total=0.9))
    plan = make_plan(PlanInputs(model=model, memory=memory, engine=engine))
    assert plan.verdict.outcome is not Outcome.FITS

    options = [hint.option for hint in find_hints(plan)]
    assert "--max-num-seqs 256" in options
    small = replace(engine, max_num_seqs=256)
    assert make_plan(PlanInputs(model=model, memory=memory, engine=small)).verdict.outcome is Outcome.FITS
