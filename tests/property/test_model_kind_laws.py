"""Laws of budgets that hold for models of every kind: windows, chunks, latents, states, shared and compressed KV."""

import csv
import io
import json
from dataclasses import replace
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvengine.spec import KVDtype
from kvplan.budget_report import budget_document
from kvplan.capacity import EngineKind
from kvplan.cli.output import csv_cell, flat_rows
from kvplan.demand import uniform_demand
from kvplan.engine_inputs import EngineInputs
from kvplan.gpu_spec import gpu_of_size
from kvplan.kv_layout.layers import StateLayer
from kvplan.model_config import model_from_config
from kvplan.model_spec import ModelSpec
from kvplan.parameters import Parallelism
from kvplan.plan import MemoryInputs, Outcome, Plan, PlanInputs, make_plan
from kvplan.rank_layers import CacheForm, natural_layers

GIB = 2**30

# The smallest model of each kind whose heads, groups and states all divide by 8.
KINDS: dict[str, dict[str, Any]] = {
    "full": {"model_type": "llama", "num_key_value_heads": 8},
    "sliding": {"model_type": "gemma3_text", "sliding_window": 64, "num_key_value_heads": 8},
    "all sliding": {"model_type": "mistral", "sliding_window": 96},
    "chunked": {"model_type": "llama4_text", "attention_chunk_size": 128, "num_key_value_heads": 8},
    "two sizes": {"model_type": "gemma4_text", "num_kv_shared_layers": 2, "num_key_value_heads": 8},
    "latent": {"model_type": "deepseek_v3", "first_k_dense_replace": 1},
    "indexed": {"model_type": "deepseek_v32", "first_k_dense_replace": 1},
    "block sparse": {"model_type": "minimax_m3", "num_key_value_heads": 8, "num_local_experts": 8},
    "latent, kept by head": {"model_type": "minicpm3", "num_key_value_heads": 8},
    "compressed": {
        "model_type": "deepseek_v4",
        "compress_ratios": [0, 4, 128, 4, 128, 4, 0, 0],
        "num_attention_heads": 64,
    },
    "gated delta": {"model_type": "qwen3_next", "num_key_value_heads": 8, "num_experts": 8},
    "mamba": {"model_type": "mamba2", "hidden_size": 1024, "num_heads": 32},
    "jamba": {"model_type": "jamba", "num_key_value_heads": 8},
    "both": {"model_type": "falcon_h1", "mamba_n_heads": 16, "mamba_d_head": 64, "mamba_n_groups": 8},
    "kimi": {"model_type": "kimi_linear", "layer_group_size": 4, "linear_num_heads": 16, "linear_head_dim": 64},
    "cross": {"model_type": "whisper", "decoder_layers": 4, "decoder_attention_heads": 8, "d_model": 512},
}
COMMON = {
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "hidden_size": 1024,
    "head_dim": 64,
    "intermediate_size": 2048,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}
MODELS: dict[str, ModelSpec] = {
    kind: model_from_config({**COMMON, **keys}, name=kind, source=kind) for kind, keys in KINDS.items()
}

models = st.sampled_from(sorted(MODELS)).map(MODELS.__getitem__)
engines = st.builds(
    EngineInputs,
    engine=st.sampled_from(EngineKind),
    version=st.sampled_from([None, (0, 16, 0), (0, 21, 0), (0, 27, 1), (0, 32, 0)]),
    tensor_parallel=st.sampled_from([1, 2, 4, 8]),
    pipeline_parallel=st.sampled_from([1, 1, 2, 3]),
    data_parallel=st.sampled_from([1, 2]),
    expert_parallel=st.booleans(),
    block_size=st.sampled_from([None, 16, 64]),
    kv_dtype=st.sampled_from([None, KVDtype.FP8]),
    max_model_len=st.none() | st.integers(1, 20_000),
    max_num_batched_tokens=st.integers(1, 10_000),
    max_num_seqs=st.integers(1, 512),
    prefix_caching=st.sampled_from([None, True, False]),
    hybrid_manager=st.sampled_from([None, True, False]),
    speculative_tokens=st.integers(0, 4),
)
memories = st.builds(
    MemoryInputs,
    gpu=st.integers(2 * GIB, 200 * GIB).map(gpu_of_size),
    weights_bytes=st.integers(1, GIB),
) | st.builds(MemoryInputs, available_kv_bytes=st.integers(1, 100 * GIB))
demands = st.none() | st.builds(
    lambda prompt, output, requests: uniform_demand(prompt_tokens=prompt, output_tokens=output, requests=requests),
    st.integers(1, 5_000),
    st.integers(0, 500),
    st.none() | st.integers(1, 1_000),
)
inputs = st.builds(PlanInputs, model=models, memory=memories, engine=engines, demand=demands)


def with_memory(given_inputs: PlanInputs, extra: int) -> PlanInputs:
    memory = given_inputs.memory
    if memory.gpu is None:
        assert memory.available_kv_bytes is not None
        return replace(given_inputs, memory=replace(memory, available_kv_bytes=memory.available_kv_bytes + extra))
    larger = replace(memory.gpu, total_bytes=memory.gpu.total_bytes + extra)
    return replace(given_inputs, memory=replace(memory, gpu=larger))


def planned_at(given_inputs: PlanInputs, length: int) -> Plan:
    engine = replace(given_inputs.engine, max_model_len=length)
    return make_plan(replace(given_inputs, engine=engine, demand=None))


@settings(deadline=None)
@given(inputs)
def test_parts_add_up_and_the_document_is_sane_in_json_and_csv(given_inputs: PlanInputs) -> None:
    plan = make_plan(given_inputs)
    document = budget_document(plan, block_sizes=[16, 64], hints=[])

    assert sum(part.size_bytes for part in plan.budget.parts) == plan.budget.total_bytes
    text = json.dumps(document, allow_nan=False)
    rows = io.StringIO()
    csv.writer(rows).writerows((key, csv_cell(value)) for key, value in flat_rows(document))
    rows.seek(0)
    cells = dict(csv.reader(rows))
    for key, value in flat_rows(json.loads(text)):
        assert cells[key] == (value if isinstance(value, str) else "" if value is None else json.dumps(value))
        assert not isinstance(value, int | float) or value >= 0 or key.startswith("parts."), key


@settings(deadline=None)
@given(inputs, st.integers(0, 100 * GIB))
def test_more_memory_never_gives_fewer_blocks_or_a_worse_verdict(given_inputs: PlanInputs, extra: int) -> None:
    # A larger card may start with larger batches; the same batches are compared.
    before, after = make_plan(given_inputs), make_plan(with_memory(given_inputs, extra))

    assert after.capacity.num_blocks >= before.capacity.num_blocks
    assert after.capacity.longest_fit >= before.capacity.longest_fit
    ranks = [Outcome.DOES_NOT_FIT, Outcome.MARGINAL, Outcome.FITS]
    assert ranks.index(after.verdict.outcome) >= ranks.index(before.verdict.outcome)


@settings(deadline=None)
@given(inputs, st.integers(1, 20_000), st.integers(1, 20_000))
def test_capacity_never_rises_with_the_longest_length(given_inputs: PlanInputs, one: int, other: int) -> None:
    given_inputs = replace(given_inputs, memory=MemoryInputs(available_kv_bytes=10 * GIB))
    shorter, longer = (planned_at(given_inputs, length) for length in sorted((one, other)))

    assert longer.capacity.num_blocks <= shorter.capacity.num_blocks
    assert longer.capacity.max_concurrency <= shorter.capacity.max_concurrency


@settings(deadline=None)
@given(inputs)
def test_the_longest_request_that_fits_fits_and_one_token_more_does_not(given_inputs: PlanInputs) -> None:
    capacity = make_plan(given_inputs).capacity
    longest, asked = capacity.longest_fit, capacity.max_model_len

    if longest:
        assert replace(capacity, max_model_len=longest).holds_one_request
    if longest < asked:
        assert not replace(capacity, max_model_len=longest + 1).holds_one_request


def rank_bytes(model: ModelSpec, ranks: int) -> tuple[int, int]:
    """Bytes of one token and of one sequence's states on one rank."""
    form = CacheForm(tensor_parallel=ranks, kv_dtype=KVDtype.BFLOAT16, model_dtype=KVDtype.BFLOAT16)
    layers = natural_layers(model.layers, form)
    states = [layer.state_bytes for layer in layers if isinstance(layer, StateLayer)]
    return sum(layer.token_bytes for layer in layers if not isinstance(layer, StateLayer)), sum(states)


@given(models, st.sampled_from([1, 2, 4]), st.sampled_from([2, 4]), st.booleans())
def test_more_ranks_never_raise_what_one_holds(model: ModelSpec, ranks: int, times: int, by_expert: bool) -> None:
    more = ranks * times
    assume(model.divides_over(ranks) and model.divides_over(more))
    (fewer_tokens, fewer_states), (tokens, states) = rank_bytes(model, ranks), rank_bytes(model, more)

    assert tokens <= fewer_tokens <= tokens * times
    assert states <= fewer_states <= states * times
    weights = model.weights
    assert weights is not None
    held, held_by_more = (
        weights.stage_amount(Parallelism(tensor=count, experts=by_expert), 0, lambda _, params: params)
        for count in (ranks, more)
    )
    assert held_by_more <= held <= held_by_more * times


@given(models, st.sampled_from([1, 2, 4]), st.integers(1, 8))
def test_stages_hold_the_whole_model_between_them(model: ModelSpec, ranks: int, stages: int) -> None:
    assume(model.divides_over(ranks) and stages <= model.geometry.num_layers)
    weights = model.weights
    assert weights is not None
    parallel = Parallelism(tensor=ranks, pipeline=stages)

    held = [weights.stage_amount(parallel, stage, lambda _, params: params) for stage in range(stages)]
    assert sum(held) >= weights.rank_parameters(ranks)
    # A tied table is on the first stage and on the last.
    assert sum(held) <= weights.rank_parameters(ranks) + weights.vocab_size * weights.table_width * 2
