"""A model, a card and a demand to a pool and a verdict."""

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from kvengine.errors import ConfigError
from kvengine.units import cdiv, format_bytes
from kvplan.baselines import Baseline, Design, compare_designs, paged_baseline
from kvplan.budget import MemoryBudget, MemoryFraction
from kvplan.capacity import Capacity, EngineKind
from kvplan.demand import Demand, DemandKind, full_length_demand
from kvplan.engine_inputs import EngineInputs
from kvplan.engine_start import limits_of_step
from kvplan.estimate import Evidence
from kvplan.gpu_spec import GpuSpec
from kvplan.memory_model.start import StepLimits
from kvplan.model_spec import ModelSpec
from kvplan.pool import RankPool, caches_prefixes, rank_pool
from kvplan.stage_budget import calibration_of, stage_budget

if TYPE_CHECKING:
    from kvplan.calibration.store import Stored

_TABLE_REQUESTS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInputs:
    """What is said about memory. None means: work it out."""

    gpu: GpuSpec | None = None
    fraction: MemoryFraction | None = None
    """The engine's share of the card."""
    weights_bytes: int | None = None
    """On one GPU."""
    overhead_bytes: int | None = None
    """All that is neither weights nor KV, on one GPU."""
    available_kv_bytes: int | None = None
    """KV memory of one GPU; skips the memory model."""
    calibrations: "tuple[Stored, ...]" = ()
    """Of the same model; one is used where everything else agrees too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """Everything that a plan depends on."""

    model: ModelSpec
    memory: MemoryInputs = field(default_factory=MemoryInputs)
    engine: EngineInputs = field(default_factory=EngineInputs)
    demand: Demand | None = None
    """None when no requests were described."""

    @property
    def table_requests(self) -> int:
        """Requests whose block tables are measured: the limit that was typed, else so many that sizes compare."""
        return self.engine.max_num_seqs or _TABLE_REQUESTS

    def fraction_of(self, gpu: GpuSpec) -> MemoryFraction:
        """Return the engine's share of a card: the one that was given, else its default."""
        from kvplan.memory_parts import default_share

        if self.memory.fraction is not None:
            return self.memory.fraction
        share = default_share(self.model, self.engine, gpu)
        return MemoryFraction(of_total=share, evidence=Evidence.TABLE)


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
    limits: StepLimits
    """Most requests and tokens of a step: as was asked, else what the engine takes on such a card."""
    calibration: "Stored | None" = None
    """The start-up log that the parts are from; None where they are estimated or given."""
    stage: int = 0
    """Of pipeline stages, the one whose pool is smallest: it decides, and the plan is of its GPUs."""

    @property
    def prefix_caching(self) -> bool:
        """Whether prefixes are cached."""
        return caches_prefixes(self.inputs.model, self.inputs.engine)

    def at_block_size(self, block_size: int) -> tuple[Capacity, Baseline]:
        """Return the pool and the paged design with blocks of another size in the same memory."""
        engine = replace(self.inputs.engine, block_size=block_size, num_blocks=None)
        inputs = replace(self.inputs, engine=engine)
        pool = _pool(inputs, self.stage)
        assert pool is not None, "the stage that decides keeps something"
        capacity = pool.fill(self.budget.available_kv.size_bytes)
        return capacity, _paged(inputs, capacity, self.demand)


def make_plan(inputs: PlanInputs) -> Plan:
    """Work everything out.

    Raises:
        ConfigError: The inputs contradict each other, or something that is needed is neither given nor known.
    """
    inputs.model.check_divides_over(inputs.engine.tensor_parallel)
    if inputs.model.draft_model is not None:
        inputs.model.draft_model.check_divides_over(inputs.engine.tensor_parallel)
    _check_parallelism(inputs)
    tightest = _tightest_stage(inputs)
    demand = _demand(inputs, tightest.capacity)
    return Plan(
        inputs=inputs,
        budget=tightest.budget,
        capacity=tightest.capacity,
        demand=demand,
        baselines=compare_designs(
            tightest.capacity,
            demand,
            table_requests=inputs.table_requests,
            prefix_caching=caches_prefixes(inputs.model, inputs.engine),
        ),
        verdict=_verdict(inputs, tightest),
        limits=_limits(inputs, tightest.capacity),
        calibration=calibration_of(inputs),
        stage=tightest.index,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """One pipeline stage: its pool, its memory, and both together."""

    index: int
    pool: RankPool
    budget: MemoryBudget
    capacity: Capacity


def _check_parallelism(inputs: PlanInputs) -> None:
    engine, num_layers = inputs.engine, inputs.model.geometry.num_layers
    if engine.pipeline_parallel > num_layers:
        raise ConfigError(f"{num_layers} layers are fewer than {engine.pipeline_parallel} stages", where="--pp")
    if engine.tensor_parallel % engine.decode_context_parallel:
        raise ConfigError(
            f"{engine.decode_context_parallel} ranks do not divide the {engine.tensor_parallel} of --tp", where="--dcp"
        )


def _tightest_stage(inputs: PlanInputs) -> _Stage:
    """Return the pipeline stage that holds fewest blocks: engines give all stages as many."""
    stages = [stage for index in range(inputs.engine.pipeline_parallel) if (stage := _stage(inputs, index))]
    if not stages:
        raise ConfigError("no layer of this model keeps anything", where=inputs.model.name)
    return min(stages, key=lambda stage: (stage.capacity.num_blocks, stage.index))


def _stage(inputs: PlanInputs, index: int) -> _Stage | None:
    pool = _pool(inputs, index)
    if pool is None:
        return None
    budget = stage_budget(inputs, pool, index, max_model_len=longest_asked(inputs))
    return _Stage(index=index, pool=pool, budget=budget, capacity=pool.fill(budget.available_kv.size_bytes))


def _step_limits(inputs: PlanInputs) -> StepLimits:
    return limits_of_step(inputs.model, inputs.engine, inputs.memory.gpu, max_model_len=longest_asked(inputs))


def _limits(inputs: PlanInputs, capacity: Capacity) -> StepLimits:
    limits = _step_limits(inputs)
    if inputs.engine.engine is not EngineKind.SGLANG or inputs.engine.max_num_seqs is not None:
        return limits
    from kvplan.memory_model.sglang import default_running_requests

    running = default_running_requests(capacity.kv_cache_tokens, capacity.max_model_len)
    return replace(limits, num_seqs=running if capacity.state_slots is None else min(running, capacity.state_slots))


def longest_asked(inputs: PlanInputs) -> int:
    """Return the longest request that the engine is started for."""
    if inputs.engine.max_model_len is not None:
        return inputs.engine.max_model_len
    if inputs.engine.engine is EngineKind.PAGED and inputs.demand is not None:
        # The textbook has no limit of its own: a length counts only where one was typed.
        return inputs.demand.tokens_max
    return default_length(inputs.model, inputs.engine)


_SHORT_LENGTHS_SINCE = (0, 11, 1)


def default_length(model: ModelSpec, engine: EngineInputs) -> int:
    """Return the longest request where none was typed: the model's limit, but vLLM keeps LongRoPE to its short factors.

    Source: vllm-project/vllm#27431, released with 0.11.1.
    """
    is_recent = engine.engine is EngineKind.VLLM and (engine.version is None or engine.version >= _SHORT_LENGTHS_SINCE)
    return model.short_length if is_recent and model.short_length is not None else model.max_model_len


def _pool(inputs: PlanInputs, stage: int) -> RankPool | None:
    return rank_pool(
        inputs.model,
        inputs.engine,
        stage,
        max_model_len=longest_asked(inputs),
        step_tokens=_step_limits(inputs).num_tokens,
    )


def _paged(inputs: PlanInputs, capacity: Capacity, demand: Demand) -> Baseline:
    caching = caches_prefixes(inputs.model, inputs.engine)
    return paged_baseline(capacity, demand, table_requests=inputs.table_requests, prefix_caching=caching)


def _demand(inputs: PlanInputs, capacity: Capacity) -> Demand:
    """Return the demand that was given, else requests of the longest length; a fitted length is that of the pool."""
    demand = inputs.demand
    if demand is None:
        return full_length_demand(capacity.max_model_len)
    if demand.kind is DemandKind.FULL_LENGTH and inputs.engine.fit_max_model_len:
        return full_length_demand(capacity.max_model_len, requests=demand.requests)
    return demand


def _verdict(inputs: PlanInputs, stage: _Stage) -> Verdict:
    """Judge at both edges of the estimates and in the middle."""
    available = stage.budget.available_kv
    edges = (available.low_bytes, available.size_bytes, available.high_bytes)
    at_low, likely, at_high = (_obstacle(inputs, stage, edge) for edge in edges)
    if not at_low:
        return Verdict(outcome=Outcome.FITS, reason=_success(inputs, stage.capacity))
    if likely and at_high:
        return Verdict(outcome=Outcome.DOES_NOT_FIT, reason=likely)
    doubt = f"{format_bytes(available.low_bytes)} to {format_bytes(available.high_bytes)} may be there"
    reason = likely or f"it fits in the likely {format_bytes(available.size_bytes)}"
    return Verdict(outcome=Outcome.MARGINAL, reason=f"{reason}, but {doubt}")


def _obstacle(inputs: PlanInputs, stage: _Stage, available_bytes: int) -> str:
    """Say what keeps it from fitting in that much KV memory; nothing when it fits."""
    engine, budget = inputs.engine, stage.budget
    capacity = stage.pool.fill(available_bytes)
    demand = _demand(inputs, capacity)
    if (in_use := _in_use(inputs)) is not None:
        return in_use
    if available_bytes == 0 and budget.shortfall_bytes:
        return f"weights and overhead need {format_bytes(budget.shortfall_bytes)} more than the engine may take"
    if engine.num_blocks is not None and capacity.available_bytes > available_bytes:
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
        too_long = sum(length > capacity.max_model_len for length in demand.lengths)
        others = f" ({too_long:,} of {len(demand.lengths):,} are)" if len(demand.lengths) > 1 else ""
        return (
            f"a request of {demand.tokens_max:,} tokens is longer than the {capacity.max_model_len:,} allowed{others}"
        )
    most = _limits(inputs, capacity).num_seqs
    if demand.together is not None and demand.together > most and seqs_are_limited(inputs):
        return f"{demand.together:,} requests at once are more than the {most:,} allowed (--max-num-seqs)"
    paged = _paged(inputs, capacity, demand)
    if paged.fits or not demand_counts(inputs):
        return ""
    if capacity.state_slots is not None and (demand.requests or 1) > capacity.state_slots:
        return f"{demand.requests or 1:,} requests need a state each, and there is room for {capacity.state_slots:,}"
    needed = paged.slots_allocated // capacity.block_slots
    return (
        f"{demand.requests or 1:,} requests need {needed:,} blocks of {capacity.block_size}, "
        f"and {capacity.usable_blocks:,} are there: {paged.requests:,} of them fit"
    )


def _in_use(inputs: PlanInputs) -> str | None:
    """Say that others hold what the engine would take: vLLM then refuses to start, however small the model is."""
    gpu = inputs.memory.gpu
    if gpu is None or inputs.memory.available_kv_bytes is not None or inputs.engine.engine is not EngineKind.VLLM:
        return None
    share = inputs.fraction_of(gpu).of_total
    taken, free = math.ceil(gpu.process_bytes * share), gpu.process_bytes - gpu.used_bytes
    if taken <= free or not gpu.used_bytes:
        return None
    return (
        f"{format_bytes(gpu.used_bytes)} of the card are in use, {format_bytes(free)} are free, and the engine takes "
        f"{format_bytes(taken)} ({share:g} of it): it does not start"
    )


def seqs_are_limited(inputs: PlanInputs) -> bool:
    """Whether requests beyond the limit are refused: one that was typed, or an engine's own where none may wait."""
    engine = inputs.engine
    return engine.max_num_seqs is not None or (engine.engine is not EngineKind.PAGED and demand_counts(inputs))


def demand_counts(inputs: PlanInputs) -> bool:
    """Whether the demand must fit as a whole: an engine lets requests wait, unless a number was asked for."""
    demand = inputs.demand
    assert demand is not None, "asked only with a demand"
    if demand.kind is DemandKind.WORKLOAD:
        return demand.must_fit
    return inputs.engine.engine is EngineKind.PAGED or (
        demand.kind is not DemandKind.LENGTHS and demand.requests is not None
    )


def _success(inputs: PlanInputs, capacity: Capacity) -> str:
    demand = _demand(inputs, capacity)
    paged = _paged(inputs, capacity, demand)
    if inputs.demand is not None and demand_counts(inputs):
        needed = cdiv(paged.slots_allocated, capacity.block_slots)
        return f"{demand.requests or paged.requests:,} requests need {needed:,} of {capacity.usable_blocks:,} blocks"
    reason = (
        f"one request of {capacity.max_model_len:,} tokens needs {format_bytes(capacity.needed_bytes)} of KV cache, "
        f"and {format_bytes(capacity.available_bytes)} are there: {float(capacity.max_concurrency):,.2f} such requests"
    )
    if demand.kind is DemandKind.WORKLOAD and not paged.fits:
        reason += f"; of the workload any {paged.requests:,} in a row fit at the same time, the others wait"
    elif demand.requests is not None and not paged.fits:
        reason += f"; of the {demand.requests:,} requests {paged.requests:,} fit at the same time, the others wait"
    return reason
