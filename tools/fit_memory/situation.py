"""A record as the planner would be asked about it: a model, a card, and how the engine is started."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from kvengine.spec import KVDtype
from kvplan.capacity import EngineKind
from kvplan.engine_inputs import EngineInputs
from kvplan.engine_start import engine_start
from kvplan.gpu_spec import GpuSpec
from kvplan.loading import load_yaml
from kvplan.memory_model.shape import StepShape
from kvplan.memory_model.start import EngineStart
from kvplan.memory_parts import default_share
from kvplan.model_config import model_from_config
from kvplan.model_spec import ModelProfile, ModelSpec, load_model
from kvplan.parameters import Parallelism
from kvplan.quantization import quantization_named
from tools.fit_memory.records import StartRecord

_QUANTIZATION_NAMES = {"w8a8": "int8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is known before a start."""

    record: StartRecord
    model: ModelSpec
    card: GpuSpec
    engine: EngineInputs
    start: EngineStart
    utilization: float
    """The engine's share of the card."""

    @property
    def shape(self) -> StepShape:
        """What the memory of one step depends on."""
        return self.model.step

    @property
    def stage(self) -> int:
        """The last pipeline stage, which samples."""
        return self.engine.pipeline_parallel - 1

    @property
    def budget_bytes(self) -> int:
        """What the engine may take of one card."""
        return round(self.card.process_bytes * self.utilization)


def situation_of(record: StartRecord) -> Situation:
    """Return the situation of a record whose model, card and version are known.

    Raises:
        ValueError: One of them is not.
        ConfigError: Its model's configuration is not understood.
    """
    if record.card is None or record.model is None or record.version is None:
        raise ValueError(f"{record.id} lacks {', '.join(record.lacks)}")
    model = _model(record, load_known(record.model.source))
    engine = _engine(record)
    flags = record.flags
    start = engine_start(engine, record.card, max_model_len=int(flags.get("max_model_len") or model.max_model_len))
    given = flags.get("gpu_memory_utilization") or flags.get("mem_fraction_static")
    return Situation(
        record=record,
        model=model,
        card=record.card,
        engine=engine,
        start=replace(start, version=record.version, generation=record.generation),
        utilization=float(given or default_share(model, engine, record.card)),
    )


def parallel_of(record: StartRecord) -> Parallelism:
    """Return how a record's model is shared out: over tensor-parallel ranks where no flag says how."""
    flags = record.flags
    stages, copies = (int(flags.get(f"{kind}_parallel_size") or 1) for kind in ("pipeline", "data"))
    ranks = flags.get("tensor_parallel_size") or flags.get("tp") or record.gpu_count // (stages * copies)
    return Parallelism(
        tensor=max(1, int(ranks)),
        pipeline=stages,
        data=copies,
        experts=bool(flags.get("enable_expert_parallel")),
        decode_context=int(flags.get("decode_context_parallel_size") or 1),
    )


@cache
def load_known(source: str) -> ModelSpec:
    """Read a model from its folder, where other files may say more than its configuration, or from its profile."""
    path = Path(source)
    if path.name == "config.json":
        return load_model(str(path.parent))
    config = load_yaml(path, ModelProfile, name=source).config
    return model_from_config(config, name=path.stem, source=source)


def _model(record: StartRecord, model: ModelSpec) -> ModelSpec:
    """Return the model as the report has it: the configuration at hand may be that of another checkpoint."""
    if not record.is_other_checkpoint:
        return model
    named = _QUANTIZATION_NAMES.get(record.weight_type, record.weight_type)
    quantization = quantization_named(named) if named else None
    return replace(model, kv_scheme="", quantization=quantization, stored_weights=None)


def _engine(record: StartRecord) -> EngineInputs:
    flags, parallel = record.flags, parallel_of(record)
    return EngineInputs(
        engine=EngineKind(record.engine),
        version=record.version,
        tensor_parallel=parallel.tensor,
        pipeline_parallel=parallel.pipeline,
        data_parallel=parallel.data,
        expert_parallel=parallel.experts,
        decode_context_parallel=parallel.decode_context,
        block_size=flags.get("block_size") or flags.get("page_size"),
        kv_dtype=KVDtype.FP8 if str(flags.get("kv_cache_dtype", "")).startswith("fp8") else None,
        max_num_seqs=flags.get("max_num_seqs"),
        max_num_batched_tokens=flags.get("max_num_batched_tokens"),
        prefix_caching=flags.get("enable_prefix_caching"),
        speculative_tokens=_speculative_tokens(flags),
        enforce_eager=bool(flags.get("enforce_eager")),
    )


def _speculative_tokens(flags: Mapping[str, object]) -> int:
    """Read how many tokens `mtp n=3` drafts; one where no number is there."""
    said = str(flags.get("speculative", ""))
    if not said.startswith("mtp"):
        return 0
    digits = said.rpartition("n=")[2]
    return int(digits) if digits.isdecimal() else 1
