"""Laws that every budget obeys, whatever the card, the model and the options."""

import csv
import io
import json
import math
import os
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvengine.spec import KVDtype
from kvengine.units import format_bytes
from kvplan.baselines import Design
from kvplan.budget import MemoryFraction
from kvplan.budget_report import budget_document
from kvplan.capacity import EngineKind
from kvplan.cli.budget_view import show_budget
from kvplan.cli.options import read_size
from kvplan.cli.output import Format, csv_cell, flat_rows
from kvplan.demand import Demand, lengths_demand, uniform_demand, workload_demand
from kvplan.gpu_spec import UNKNOWN_RESERVE, GpuSpec, gpu_of_size, load_gpu
from kvplan.hints import find_hints
from kvplan.model_config import model_from_config
from kvplan.model_spec import ModelSpec
from kvplan.needs import needs_of
from kvplan.plan import EngineInputs, MemoryInputs, Outcome, Plan, PlanInputs, make_plan
from kvplan.shared_prefixes import find_shared_prefixes

GIB = 2**30


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    """Llama-type models of any shape."""
    kv_heads = draw(st.sampled_from([1, 2, 3, 8]))
    config = {
        "model_type": draw(st.sampled_from(["llama", "qwen2", "mixtral"])),
        "num_hidden_layers": draw(st.integers(1, 100)),
        "num_key_value_heads": kv_heads,
        "num_attention_heads": kv_heads * draw(st.sampled_from([1, 2, 4, 8])),
        "head_dim": draw(st.sampled_from([16, 24, 64, 128])),
        "hidden_size": draw(st.integers(1, 8192)),
        "intermediate_size": draw(st.integers(1, 30_000)),
        "vocab_size": draw(st.integers(1, 260_000)),
        "max_position_embeddings": draw(st.integers(1, 200_000)),
        "tie_word_embeddings": draw(st.booleans()),
    }
    return model_from_config(config, name="any", source="any")


cards = st.builds(
    lambda size, reserved: (
        GpuSpec(name="", total_bytes=size, driver_reserve=UNKNOWN_RESERVE) if reserved else gpu_of_size(size)
    ),
    st.integers(GIB, 300 * GIB),
    st.booleans(),
)
fractions = st.floats(0.01, 1.0, exclude_min=True).map(lambda value: MemoryFraction(of_total=value))
sizes = st.none() | st.integers(1, 200 * GIB)
memories = st.builds(
    MemoryInputs, gpu=cards, fraction=fractions, weights_bytes=sizes, overhead_bytes=sizes
) | st.builds(MemoryInputs, available_kv_bytes=st.integers(1, 300 * GIB))
engines = st.builds(
    EngineInputs,
    engine=st.sampled_from(EngineKind),
    block_size=st.sampled_from([1, 2, 8, 16, 24, 256]),
    kv_dtype=st.none() | st.sampled_from(KVDtype),
    max_model_len=st.none() | st.integers(1, 300_000),
    fit_max_model_len=st.booleans(),
    max_num_seqs=st.none() | st.integers(1, 4096),
    prefix_caching=st.booleans(),
)
uniform = st.builds(
    lambda prompt, output, shared, requests: uniform_demand(
        prompt_tokens=prompt, output_tokens=output, shared_prefix=min(shared, prompt), requests=requests
    ),
    st.integers(1, 50_000),
    st.integers(0, 5_000),
    st.integers(0, 50_000),
    st.none() | st.integers(1, 10_000),
)
prompts = st.lists(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([1, 7, 40])), min_size=1, max_size=4),
    min_size=1,
    max_size=9,
)


def a_workload(parts: list[list[tuple[str, int]]], outputs: list[int], wanted: int | None) -> Demand:
    """Requests whose prompts are made of few parts, so that many begin alike."""
    lengths = tuple(sum(count for _, count in prompt) for prompt in parts)
    return workload_demand(
        "any",
        tuple(prompt + output for prompt, output in zip(lengths, outputs, strict=False)),
        lengths,
        find_shared_prefixes(parts),
        requests=None if wanted is None else min(wanted, len(parts)),
    )


workloads = st.builds(
    a_workload, prompts, st.lists(st.integers(1, 500), min_size=9, max_size=9), st.none() | st.integers(1, 9)
)
demands = (
    st.none()
    | workloads
    | uniform
    | st.lists(st.integers(1, 50_000), min_size=1, max_size=9).map(lambda lengths: lengths_demand(tuple(lengths)))
)
inputs = st.builds(PlanInputs, model=models(), memory=memories, engine=engines, demand=demands)


def leaves(value: object) -> Iterator[Any]:
    if isinstance(value, dict):
        for child in value.values():
            yield from leaves(child)
    elif isinstance(value, list):
        for child in value:
            yield from leaves(child)
    else:
        yield value


def with_engine(given_inputs: PlanInputs, **changes: Any) -> Plan:
    return make_plan(replace(given_inputs, engine=replace(given_inputs.engine, **changes)))


@given(inputs)
def test_parts_add_up_to_the_card_and_only_a_shortfall_is_negative(given_inputs: PlanInputs) -> None:
    budget = make_plan(given_inputs).budget

    assert sum(part.size_bytes for part in budget.parts) == budget.total_bytes
    for part in budget.parts:
        assert part.size_bytes >= 0 or part.name == "shortfall"
        assert part.amount.low_bytes <= part.size_bytes <= part.amount.high_bytes


@given(inputs)
def test_a_document_holds_no_negative_number_and_no_nan(given_inputs: PlanInputs) -> None:
    plan = make_plan(given_inputs)
    document = budget_document(plan, block_sizes=[1, 16], hints=[])

    json.dumps(document, allow_nan=False)
    rest = {key: value for key, value in document.items() if key != "parts"}
    assert not [number for number in leaves(rest) if isinstance(number, int | float) and number < 0]


@given(inputs)
def test_csv_holds_the_values_of_the_document(given_inputs: PlanInputs) -> None:
    document = budget_document(make_plan(given_inputs), block_sizes=[8], hints=[])
    text = io.StringIO()
    csv.writer(text).writerows((key, csv_cell(value)) for key, value in flat_rows(document))
    text.seek(0)

    cells = [cell for _, cell in csv.reader(text)]
    assert cells == [
        value if isinstance(value, str) else "" if value is None else json.dumps(value) for value in leaves(document)
    ]


@settings(max_examples=40, deadline=None)
@given(inputs)
def test_the_table_shows_the_numbers_of_the_document(given_inputs: PlanInputs) -> None:
    document = budget_document(make_plan(given_inputs), block_sizes=[16], hints=[])
    out = io.StringIO()
    with patch.dict(os.environ, COLUMNS="160"), redirect_stdout(out):
        show_budget(document, Format.TABLE)
    words = out.getvalue().split()

    capacity, kv = document["capacity"], document["kv"]
    counts = [capacity["num_blocks"], capacity["kv_cache_tokens"], capacity["max_model_len"], kv["bytes_per_block"]]
    counts += [capacity["max_num_seqs"]]
    if given_inputs.demand is not None:
        paged = document["baselines"]["paged"]
        counts += [paged["requests"], paged["slots_allocated"], paged["slots_used"], paged["internal_waste_slots"]]
    missing = [count for count in counts if f"{count:,}" not in {word.rstrip(",;:") for word in words}]
    assert not missing
    if len(document["parts"]) > 1:
        for part in document["parts"]:
            assert format_bytes(part["bytes"]) in " ".join(words)


@given(inputs, st.integers(0, 100 * GIB))
def test_more_memory_never_gives_fewer_blocks_or_a_worse_verdict(given_inputs: PlanInputs, extra: int) -> None:
    memory = given_inputs.memory
    if memory.gpu is not None:
        larger = replace(memory, gpu=replace(memory.gpu, total_bytes=memory.gpu.total_bytes + extra))
    else:
        assert memory.available_kv_bytes is not None
        larger = replace(memory, available_kv_bytes=memory.available_kv_bytes + extra)
    # A larger card may start with larger batches; the same batches are compared.
    engine = replace(given_inputs.engine, max_num_seqs=256, max_num_batched_tokens=2048, fit_max_model_len=False)
    before = make_plan(replace(given_inputs, engine=engine))
    after = make_plan(replace(given_inputs, engine=engine, memory=larger))

    assert after.capacity.num_blocks >= before.capacity.num_blocks
    assert after.capacity.longest_fit >= before.capacity.longest_fit
    assert after.baselines[Design.PAGED].requests >= before.baselines[Design.PAGED].requests
    ranks = [Outcome.DOES_NOT_FIT, Outcome.MARGINAL, Outcome.FITS]
    assert ranks.index(after.verdict.outcome) >= ranks.index(before.verdict.outcome)


@given(inputs, st.integers(1, 300_000), st.integers(1, 300_000))
def test_capacity_never_rises_with_the_longest_length(given_inputs: PlanInputs, one: int, other: int) -> None:
    shorter, longer = (
        with_engine(replace(given_inputs, demand=None), max_model_len=length, fit_max_model_len=False)
        for length in sorted((one, other))
    )

    # A step holds no more than its requests: with short ones it is smaller, and leaves more.
    assert longer.capacity.num_blocks <= shorter.capacity.num_blocks
    assert longer.capacity.max_concurrency <= shorter.capacity.max_concurrency
    for design in Design:
        assert longer.baselines[design].requests <= shorter.baselines[design].requests


@given(inputs, st.sampled_from([1, 2, 4, 8]), st.sampled_from([2, 4, 8]))
def test_more_ranks_never_raise_the_bytes_of_one(given_inputs: PlanInputs, ranks: int, times: int) -> None:
    model, more = given_inputs.model, ranks * times
    assume(model.divides_over(ranks) and model.divides_over(more))
    assert model.weights is not None

    fewer_spec, more_spec = (
        model.kv_cache_spec(block_size=16, dtype=KVDtype.BFLOAT16, tensor_parallel=count) for count in (ranks, more)
    )
    assert more_spec.token_bytes <= fewer_spec.token_bytes
    assert more_spec.token_bytes * times >= fewer_spec.token_bytes
    assert model.weights.rank_parameters(more) <= model.weights.rank_parameters(ranks)
    assert model.weights.rank_parameters(more) * more >= model.weights.parameters


@given(inputs)
def test_every_slot_is_used_or_wasted_and_none_is_used_twice(given_inputs: PlanInputs) -> None:
    plan = make_plan(given_inputs)
    for design, baseline in plan.baselines.items():
        wasted = baseline.reserved_waste_slots + baseline.internal_waste_slots
        assert baseline.slots_allocated == baseline.slots_used + wasted
        if plan.demand.requests is None:
            assert baseline.slots_allocated <= baseline.slots_total, design
    # A single token is the smallest unit that can be handed out.
    assert plan.baselines[Design.TOKEN_LEVEL].requests >= plan.baselines[Design.PAGED].requests


@given(inputs)
def test_the_longest_request_that_fits_fits_and_one_block_more_does_not(given_inputs: PlanInputs) -> None:
    plan = make_plan(given_inputs)
    longest, asked = plan.capacity.longest_fit, plan.capacity.max_model_len
    if longest:
        assert replace(plan.capacity, max_model_len=longest).holds_one_request
    if longest < asked:
        assert not replace(plan.capacity, max_model_len=longest + 1).holds_one_request


@settings(max_examples=60, deadline=None)
@given(inputs)
def test_what_is_needed_is_enough_when_it_is_planned_with(given_inputs: PlanInputs) -> None:
    needs = needs_of(make_plan(given_inputs))
    assume(needs is not None)
    assert needs is not None
    engine, memory = given_inputs.engine, given_inputs.memory
    if needs.max_num_seqs is not None:
        engine = replace(engine, max_num_seqs=needs.max_num_seqs)

    def verdict(memory: MemoryInputs) -> Outcome:
        return make_plan(replace(given_inputs, engine=engine, memory=memory)).verdict.outcome

    assert verdict(MemoryInputs(available_kv_bytes=needs.available_kv_bytes)) is Outcome.FITS
    if needs.gpu_memory_bytes is not None:
        assert memory.gpu is not None
        assert verdict(replace(memory, gpu=replace(memory.gpu, total_bytes=needs.gpu_memory_bytes))) is Outcome.FITS
        assert verdict(replace(memory, gpu=gpu_of_size(needs.gpu_memory_bytes))) is Outcome.FITS
    if needs.utilization is not None and needs.utilization <= 1:
        share = MemoryFraction(of_total=min(1.0, math.ceil(needs.utilization * 1000) / 1000))
        assert verdict(replace(memory, fraction=share)) is Outcome.FITS


def following(given_inputs: PlanInputs, option: str) -> PlanInputs:
    """The inputs with one more option typed."""
    flag, _, value = option.partition(" ")
    engine, memory = given_inputs.engine, given_inputs.memory
    match flag:
        case "--max-model-len":
            engine = replace(engine, max_model_len=int(value), fit_max_model_len=False)
        case "--max-num-seqs":
            engine = replace(engine, max_num_seqs=int(value))
        case "--max-num-batched-tokens":
            engine = replace(engine, max_num_batched_tokens=int(value))
        case "--block-size":
            engine = replace(engine, block_size=int(value))
        case "--tp":
            engine = replace(engine, tensor_parallel=int(value))
        case "--enforce-eager":
            engine = replace(engine, enforce_eager=True)
        case "--kv-cache-dtype":
            engine = replace(engine, kv_dtype=KVDtype(value))
        case "--available-kv":
            memory = replace(memory, available_kv_bytes=read_size(flag, value))
        case "--gpu":
            memory = replace(memory, gpu=load_gpu(value))
        case _:
            own = "--mem-fraction-static" if engine.engine is EngineKind.SGLANG else "--gpu-memory-utilization"
            assert flag == own
            memory = replace(memory, fraction=MemoryFraction(of_total=float(value)))
    return replace(given_inputs, engine=engine, memory=memory)


@settings(max_examples=50, deadline=None)
@given(inputs)
def test_a_hint_for_a_plan_that_may_not_fit_ends_in_one_that_does(given_inputs: PlanInputs) -> None:
    plan = make_plan(given_inputs)
    assume(plan.verdict.outcome is not Outcome.FITS)
    for hint in find_hints(plan):
        assert make_plan(following(given_inputs, hint.option)).verdict.outcome is Outcome.FITS, hint


def test_a_demand_of_none_counts_requests_of_the_longest_length() -> None:
    model = model_from_config({"model_type": "llama"}, name="any", source="any")
    plan = make_plan(PlanInputs(model=model, memory=MemoryInputs(available_kv_bytes=GIB)))

    assert isinstance(plan.demand, Demand)
    assert plan.demand.lengths == (2048,)
