"""Laws that the memory model obeys for any model, card, version and flags."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kvplan.budget import MemoryFraction
from kvplan.estimate import Amount
from kvplan.gpu_spec import UNKNOWN_RESERVE, GpuSpec
from kvplan.memory_model.activation import activation_peak
from kvplan.memory_model.constants import vllm_constants
from kvplan.memory_model.encoder import EncoderShape
from kvplan.memory_model.shape import LatentShape, StepShape
from kvplan.memory_model.start import Card, EngineStart, step_limits
from kvplan.memory_model.vllm import vllm_parts
from kvplan.model_config import model_from_config
from kvplan.plan import EngineInputs, MemoryInputs, Outcome, PlanInputs, make_plan

GIB = 2**30

versions = st.sampled_from(
    [(0, 6, 3), (0, 7, 3), (0, 8, 5), (0, 11, 0), (0, 19, 0), (0, 20, 0), (0, 27, 0), (0, 32, 0)]
)
cards = st.builds(
    Card,
    name=st.sampled_from(["", "NVIDIA A100 SXM4 80GB"]),
    process_bytes=st.integers(GIB, 300 * GIB),
    compute_capability=st.none() | st.sampled_from([7.0, 9.0]),
    is_unified=st.booleans(),
)
starts = st.builds(
    EngineStart,
    card=cards,
    max_model_len=st.integers(1, 300_000),
    version=versions,
    tensor_parallel=st.sampled_from([1, 2, 3, 8]),
    max_num_seqs=st.none() | st.integers(1, 4096),
    max_num_batched_tokens=st.none() | st.integers(1, 100_000),
    enforce_eager=st.booleans(),
)
encoders = st.builds(
    EncoderShape,
    hidden_size=st.integers(1, 4096),
    mlp_width=st.integers(1, 20_000),
    patches_per_token=st.integers(1, 16),
    tokens_per_image=st.integers(1, 20_000),
)
latents = st.builds(
    LatentShape,
    num_layers=st.integers(1, 100),
    num_heads=st.integers(1, 128),
    query_width=st.integers(1, 8192),
    kv_rank=st.integers(1, 512),
)
shapes = st.builds(
    StepShape,
    hidden_size=st.integers(1, 20_000),
    vocab_size=st.integers(1, 300_000),
    mlp_width=st.integers(0, 60_000),
    expert_width=st.integers(0, 8192),
    experts_per_token=st.integers(0, 16),
    latent=st.none() | latents,
    is_hybrid=st.booleans(),
    encoder=st.none() | encoders,
)


def no_smaller(one: Amount, other: Amount) -> bool:
    pairs = ((one.low_bytes, other.low_bytes), (one.size_bytes, other.size_bytes), (one.high_bytes, other.high_bytes))
    return all(mine >= its for mine, its in pairs)


@given(starts, shapes)
def test_no_part_is_negative_and_every_range_is_in_order(start: EngineStart, shape: StepShape) -> None:
    for part in vllm_parts(start, shape, vllm_constants()):
        assert 0 <= part.amount.low_bytes <= part.amount.size_bytes <= part.amount.high_bytes


@given(starts, shapes)
def test_a_step_has_at_least_one_sequence_and_a_token_for_each_that_was_not_asked_for(
    start: EngineStart, shape: StepShape
) -> None:
    limits = step_limits(start, shape)

    assert limits.num_seqs >= 1
    assert limits.num_tokens >= 1
    if start.max_num_seqs is None:
        assert limits.num_tokens >= limits.num_seqs


@given(starts, shapes, st.integers(0, 1000), st.integers(0, 10_000), st.integers(0, 100_000))
def test_larger_steps_and_vocabularies_never_take_less(
    start: EngineStart, shape: StepShape, seqs: int, tokens: int, entries: int
) -> None:
    limits = step_limits(start, shape)
    small = replace(start, max_num_seqs=limits.num_seqs, max_num_batched_tokens=limits.num_tokens)
    large = replace(small, max_num_seqs=limits.num_seqs + seqs, max_num_batched_tokens=limits.num_tokens + tokens)
    wider = replace(shape, vocab_size=shape.vocab_size + entries)

    taken = activation_peak(large, wider, vllm_constants())
    assert no_smaller(taken, activation_peak(small, shape, vllm_constants()))


@given(starts, shapes)
def test_more_ranks_never_take_more_but_for_communication(start: EngineStart, shape: StepShape) -> None:
    more = replace(start, tensor_parallel=start.tensor_parallel * 2)
    few = {part.name: part.amount for part in vllm_parts(start, shape, vllm_constants())}
    many = {part.name: part.amount for part in vllm_parts(more, shape, vllm_constants())}

    assert set(many) - set(few) <= {"communication"}
    for name in set(few) - {"communication"}:
        assert no_smaller(few[name], many[name])


@given(
    st.integers(GIB, 200 * GIB),
    st.floats(0.05, 1.0),
    st.integers(1, 200_000),
    versions,
    st.sampled_from([1, 2, 8]),
)
def test_a_verdict_says_what_the_edges_of_its_range_come_to(
    card_bytes: int, share: float, length: int, version: tuple[int, int, int], ranks: int
) -> None:
    config = {"model_type": "llama", "num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 1024}
    model = model_from_config(config, name="any", source="any")
    gpu = GpuSpec(name="", total_bytes=card_bytes, driver_reserve=UNKNOWN_RESERVE)
    engine = EngineInputs(version=version, tensor_parallel=ranks, max_model_len=length)
    plan = make_plan(
        PlanInputs(model=model, memory=MemoryInputs(gpu=gpu, fraction=MemoryFraction(of_total=share)), engine=engine)
    )
    available = plan.budget.available_kv

    def fits(size_bytes: int) -> bool:
        memory = MemoryInputs(available_kv_bytes=size_bytes)
        return make_plan(PlanInputs(model=model, memory=memory, engine=engine)).verdict.outcome is Outcome.FITS

    at_low, likely, at_high = map(fits, (available.low_bytes, available.size_bytes, available.high_bytes))
    expected = Outcome.FITS if at_low else Outcome.MARGINAL if likely or at_high else Outcome.DOES_NOT_FIT
    assert plan.verdict.outcome is expected
