"""A model, a card and a demand to a pool, an engine configuration and a verdict."""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.errors import ConfigError
from kvengine.spec import KVCacheSpec, KVDtype
from kvengine.units import cdiv, format_bytes
from kvplan.baselines import Baseline, Design, compare_designs, paged_baseline
from kvplan.budget import MemoryBudget, MemoryFraction, divide_memory, given_kv
from kvplan.capacity import Capacity, EngineKind, count_blocks
from kvplan.demand import Demand, DemandKind, full_length_demand
from kvplan.estimate import Amount, Evidence, estimated, sure
from kvplan.gpu_spec import GpuSpec
from kvplan.model_spec import ModelSpec
from kvplan.overhead import estimate_overhead

DEFAULT_MAX_NUM_SEQS = 256
DEFAULT_FRACTION = MemoryFraction(of_total=0.92)
"""vLLM 0.32's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInputs:
    """What is said about memory. None means: work it out."""

    gpu: GpuSpec | None = None
    fraction: MemoryFraction = DEFAULT_FRACTION
    weights_bytes: int | None = None
    """On one GPU."""
    overhead_bytes: int | None = None
    """All that is neither weights nor KV, on one GPU."""
    available_kv_bytes: int | None = None
    """KV memory of one GPU; skips the memory model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInputs:
    """How the engine is started. None means: its default."""

    engine: EngineKind = EngineKind.VLLM
    tensor_parallel: int = 1
    block_size: int = 16
    dtype: KVDtype | None = None
    """Of weights and activations."""
    kv_dtype: KVDtype | None = None
    max_model_len: int | None = None
    """None for the model's own limit."""
    fit_max_model_len: bool = False
    """Lower the length until one request fits, as vLLM does for `auto`."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    num_blocks: int | None = None
    """Override of the number of blocks."""
    prefix_caching: bool = True

    @property
    def seqs_limit(self) -> int:
        """Most requests of a step."""
        return self.max_num_seqs or DEFAULT_MAX_NUM_SEQS


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """Everything that a plan depends on."""

    model: ModelSpec
    memory: MemoryInputs = field(default_factory=MemoryInputs)
    engine: EngineInputs = field(default_factory=EngineInputs)
    demand: Demand | None = None
    """None when no requests were described."""


class Outcome(StrEnum):
    """Whether it fits."""

    FITS = "fits"
    MARGINAL = "marginal"
    """It depends on where in their ranges the estimates turn out to be."""
    DOES_NOT_FIT = "does_not_fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether it fits, and why, in one sentence with its numbers."""

    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the inputs come to."""

    inputs: PlanInputs
    budget: MemoryBudget
    capacity: Capacity
    demand: Demand
    """The one that was given, else requests of the longest length."""
    baselines: dict[Design, Baseline]
    verdict: Verdict

    def engine_config(self) -> EngineConfig:
        """Return the configuration of an engine with this pool."""
        engine = self.inputs.engine
        scheduler = SchedulerConfig(max_num_seqs=engine.seqs_limit, max_model_len=self.capacity.max_model_len)
        if engine.max_num_batched_tokens is not None:
            scheduler = replace(scheduler, max_num_batched_tokens=engine.max_num_batched_tokens)
        return EngineConfig(
            kv_cache=self.capacity.spec,
            num_blocks=self.capacity.num_blocks,
            enable_prefix_caching=engine.prefix_caching,
            scheduler=scheduler,
        )

    def at_block_size(self, block_size: int) -> tuple[Capacity, Baseline]:
        """Return the pool and the paged design with blocks of another size in the same memory."""
        engine = replace(self.inputs.engine, block_size=block_size, num_blocks=None)
        capacity = _pool(replace(self.inputs, engine=engine), self.capacity.available_bytes)
        return capacity, _paged(engine, capacity, self.demand)


def make_plan(inputs: PlanInputs) -> Plan:
    """Work everything out.

    Raises:
        ConfigError: The inputs contradict each other, or something that is needed is neither given nor known.
    """
    budget = _budget(inputs)
    capacity = _pool(inputs, budget.available_kv.size_bytes)
    demand = inputs.demand or full_length_demand(capacity.max_model_len)
    engine = inputs.engine
    return Plan(
        inputs=inputs,
        budget=budget,
        capacity=capacity,
        demand=demand,
        baselines=compare_designs(
            capacity, demand, max_num_seqs=engine.seqs_limit, prefix_caching=engine.prefix_caching
        ),
        verdict=_verdict(inputs, budget, demand),
    )


def _budget(inputs: PlanInputs) -> MemoryBudget:
    memory, engine, model = inputs.memory, inputs.engine, inputs.model
    if memory.available_kv_bytes is not None:
        return given_kv(memory.available_kv_bytes, memory.gpu)
    if memory.gpu is None and engine.num_blocks is not None:
        return given_kv(engine.num_blocks * _spec(inputs).block_bytes, None)
    if memory.gpu is None:
        raise ConfigError("the memory is not known", hint="--gpu h100-sxm, --gpu-memory 80GiB or --available-kv 40GiB")
    overhead = (
        sure(memory.overhead_bytes, Evidence.GIVEN)
        if memory.overhead_bytes is not None
        else estimate_overhead(
            model.geometry,
            card_bytes=memory.gpu.total_bytes,
            tensor_parallel=engine.tensor_parallel,
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
        )
    )
    return divide_memory(memory.gpu, memory.fraction, weights=_weights(inputs), overhead=overhead)


def _weights(inputs: PlanInputs) -> Amount:
    """Return the weights of one GPU: as given, from the headers of their files, else from the model's shape."""
    model, ranks = inputs.model, inputs.engine.tensor_parallel
    element_bytes = (inputs.engine.dtype or model.dtype).num_bytes
    if inputs.memory.weights_bytes is not None:
        return sure(inputs.memory.weights_bytes, Evidence.GIVEN)
    if model.stored_weights is not None:
        stored_bytes = model.stored_weights.loaded_bytes(element_bytes)
        # Norms, routers and repeated KV heads are not split, so a rank holds a little more than its share.
        share = cdiv(stored_bytes, ranks)
        return sure(stored_bytes, Evidence.EXACT) if ranks == 1 else estimated(share, share, share + stored_bytes // 50)
    if model.weights is None or model.weights_unknown:
        raise ConfigError(
            f"the size of its weights is not known: {model.weights_unknown}",
            where=model.name,
            hint="--weights SIZE (of one GPU), or a folder that holds the weight files or their index",
        )
    likely = model.weights.rank_parameters(ranks) * element_bytes
    low = model.weights.rank_parameters(ranks, vocab_padding=1) * element_bytes
    spread = likely // (200 if model.weights.exact else 20)
    return estimated(low if model.weights.exact else low - spread, likely, likely + spread)


def _spec(inputs: PlanInputs) -> KVCacheSpec:
    engine = inputs.engine
    return inputs.model.kv_cache_spec(
        block_size=engine.block_size,
        dtype=inputs.model.kv_dtype(engine.kv_dtype, engine.dtype),
        tensor_parallel=engine.tensor_parallel,
    )


def _pool(inputs: PlanInputs, available_bytes: int) -> Capacity:
    engine = inputs.engine
    if engine.max_model_len is not None:
        longest = engine.max_model_len
    elif engine.engine is EngineKind.PAGED and inputs.demand is not None:
        # The textbook has no limit of its own: a length counts only where one was typed.
        longest = inputs.demand.tokens_max
    else:
        longest = inputs.model.max_model_len
    capacity = count_blocks(
        _spec(inputs),
        engine.engine,
        available_bytes=available_bytes,
        max_model_len=longest,
        override=engine.num_blocks,
    )
    if engine.fit_max_model_len and capacity.longest_fit:
        return replace(capacity, max_model_len=capacity.longest_fit)
    return capacity


def _paged(engine: EngineInputs, capacity: Capacity, demand: Demand) -> Baseline:
    return paged_baseline(capacity, demand, max_num_seqs=engine.seqs_limit, prefix_caching=engine.prefix_caching)


def _verdict(inputs: PlanInputs, budget: MemoryBudget, demand: Demand) -> Verdict:
    """Judge at both edges of the estimates and in the middle."""
    available = budget.available_kv
    edges = (available.low_bytes, available.size_bytes, available.high_bytes)
    at_low, likely, at_high = (_obstacle(inputs, budget, demand, edge) for edge in edges)
    if not at_low:
        return Verdict(outcome=Outcome.FITS, reason=_success(inputs, demand, available.size_bytes))
    if likely and at_high:
        return Verdict(outcome=Outcome.DOES_NOT_FIT, reason=likely)
    doubt = f"{format_bytes(available.low_bytes)} to {format_bytes(available.high_bytes)} may be there"
    reason = likely or f"it fits in the likely {format_bytes(available.size_bytes)}"
    return Verdict(outcome=Outcome.MARGINAL, reason=f"{reason}, but {doubt}")


def _obstacle(inputs: PlanInputs, budget: MemoryBudget, demand: Demand, available_bytes: int) -> str:
    """Say what keeps it from fitting in that much KV memory; nothing when it fits."""
    engine = inputs.engine
    capacity = _pool(inputs, available_bytes)
    if available_bytes == 0 and budget.shortfall_bytes:
        return f"weights and overhead need {format_bytes(budget.shortfall_bytes)} more than the engine may take"
    if capacity.available_bytes > available_bytes:
        taken, there = format_bytes(capacity.available_bytes), format_bytes(available_bytes)
        return f"{capacity.num_blocks:,} blocks take {taken}, and {there} are there"
    if not capacity.holds_one_request:
        there = format_bytes(capacity.checked_bytes)
        beside = " beside the null block" if engine.engine.null_blocks else ""
        return (
            f"one request of {capacity.max_model_len:,} tokens needs {format_bytes(capacity.needed_bytes)} "
            f"of KV cache, and {there} are there{beside}; the longest that fits has {capacity.longest_fit:,} tokens"
        )
    if inputs.demand is None:
        return ""
    if demand.tokens_max > capacity.max_model_len:
        return f"a request of {demand.tokens_max:,} tokens is longer than the {capacity.max_model_len:,} allowed"
    if demand.requests is not None and demand.requests > (engine.max_num_seqs or demand.requests):
        return f"{demand.requests:,} requests at once are more than the {engine.max_num_seqs:,} allowed"
    paged = _paged(engine, capacity, demand)
    if paged.fits or not demand_counts(inputs):
        return ""
    needed = paged.slots_allocated // capacity.spec.block_size
    return (
        f"{demand.requests or 1:,} requests need {needed:,} blocks of {capacity.spec.block_size}, "
        f"and {capacity.usable_blocks:,} are there: {paged.requests:,} of them fit"
    )


def demand_counts(inputs: PlanInputs) -> bool:
    """Whether the demand must fit as a whole: an engine lets requests wait, unless a number was asked for."""
    demand = inputs.demand
    assert demand is not None, "asked only with a demand"
    return inputs.engine.engine is EngineKind.PAGED or (
        demand.kind is not DemandKind.LENGTHS and demand.requests is not None
    )


def _success(inputs: PlanInputs, demand: Demand, available_bytes: int) -> str:
    capacity = _pool(inputs, available_bytes)
    paged = _paged(inputs.engine, capacity, demand)
    if inputs.demand is not None and demand_counts(inputs):
        needed = cdiv(paged.slots_allocated, capacity.spec.block_size)
        return f"{demand.requests or paged.requests:,} requests need {needed:,} of {capacity.usable_blocks:,} blocks"
    reason = (
        f"one request of {capacity.max_model_len:,} tokens needs {format_bytes(capacity.needed_bytes)} of KV cache, "
        f"and {format_bytes(capacity.available_bytes)} are there: {float(capacity.max_concurrency):,.2f} such requests"
    )
    if demand.requests is not None and not paged.fits:
        reason += f"; of the {demand.requests:,} requests {paged.requests:,} fit at the same time, the others wait"
    return reason
