"""Which calibration is one of what is planned: everything that changes memory must agree."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvengine.spec import KVDtype
from kvengine.units import GIB
from kvplan.calibration.names import folded_gpu, nominal_gb, same_model
from kvplan.calibration.record import Calibration, CardSeen, Settings
from kvplan.calibration.store import Stored
from kvplan.capacity import EngineKind
from kvplan.engine_inputs import EngineInputs
from kvplan.engine_start import engine_start, limits_of_step
from kvplan.engine_words import DTYPES, KV_DTYPES, packing_named
from kvplan.gpu_spec import GpuSpec
from kvplan.kv_layout.rules import Version, parse_version
from kvplan.memory_model.adapters import DEFAULT_RANK
from kvplan.memory_model.sglang import LATEST_SGLANG
from kvplan.memory_model.start import LATEST
from kvplan.model_spec import ModelSpec
from kvplan.pool import caches_prefixes
from kvplan.quantization import quantization_named
from kvplan.rank_layers import default_block_size, default_page_size

if TYPE_CHECKING:
    from kvplan.plan import PlanInputs

_CARD_TOLERANCE = 0.02
_NOMINAL_TOLERANCE = 0.1
"""`80GB` in a card's name is 80e9 to 85e9 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing in which a calibration differs from what is planned."""

    what: str
    there: str
    here: str

    def __str__(self) -> str:
        return f"{self.what} {self.there}, here {self.here}"


def matching(inputs: "PlanInputs") -> Stored | None:
    """Return the newest calibration of exactly what is planned; None without one, or where parts are given by hand."""
    memory = inputs.memory
    if memory.gpu is None or _is_given(inputs):
        return None
    same = (stored for stored in memory.calibrations if not any(differences(stored.calibration, inputs)))
    return max(same, key=lambda stored: stored.calibration.saved, default=None)


def near_misses(inputs: "PlanInputs") -> list[tuple[Stored, Sequence[Difference]]]:
    """Return the calibrations of the same model and engine that differ otherwise, and in what; the nearest first."""
    if inputs.memory.gpu is None or _is_given(inputs):
        return []
    engine = inputs.engine.engine.value
    same_engine = (stored for stored in inputs.memory.calibrations if stored.calibration.engine == engine)
    differing = ((stored, list(differences(stored.calibration, inputs))) for stored in same_engine)
    return sorted(((stored, found) for stored, found in differing if found), key=lambda entry: len(entry[1]))


def of_model(found: Iterable[Stored], names: Sequence[str]) -> tuple[Stored, ...]:
    """Keep the calibrations of a model that goes by these names."""
    return tuple(
        stored for stored in found if any(same_model(stored.calibration.model, name) for name in names if name)
    )


def differences(calibration: Calibration, inputs: "PlanInputs") -> Iterator[Difference]:
    """Yield in what a calibration of the same model differs from what is planned."""
    gpu = inputs.memory.gpu
    assert gpu is not None, "calibrations are of cards"
    engine, model = inputs.engine, inputs.model
    if calibration.engine != engine.engine.value:
        yield Difference(what="--engine", there=calibration.engine, here=engine.engine.value)
        return
    yield from _card_differences(calibration, gpu)
    yield from _version_differences(calibration, engine, gpu, model)
    there = _Resolved.of(calibrated_engine(calibration.settings, engine), model, gpu, calibration.max_model_len)
    here = _Resolved.of(engine, model, gpu, engine.max_model_len)
    for name, ours in here.values.items():
        theirs = there.values[name]
        if theirs != ours:
            yield Difference(what=name, there=_word(theirs), here=_word(ours))
    yield from _type_differences(calibration.settings, engine, model)
    if model.draft_model is not None:
        yield Difference(what="--draft-model", there="none", here=model.draft_model.name)
    for other in calibration.settings.others:
        yield Difference(what=other.partition("=")[0], there=other.partition("=")[2], here="not planned for")


def calibrated_engine(settings: Settings, planned: EngineInputs) -> EngineInputs:
    """Return the engine as it was started for the log; what decides no memory of the card is as planned."""
    kv_type = settings.kv_cache_dtype or "auto"
    return replace(
        planned,
        tensor_parallel=settings.tensor_parallel,
        pipeline_parallel=settings.pipeline_parallel,
        data_parallel=settings.data_parallel,
        expert_parallel=settings.expert_parallel,
        decode_context_parallel=settings.decode_context_parallel,
        dtype=DTYPES.get(settings.dtype or "auto"),
        kv_dtype=KV_DTYPES.get(kv_type),
        kv_packing=packing_named(kv_type),
        block_size=settings.block_size,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        prefix_caching=settings.prefix_caching,
        hybrid_manager=settings.hybrid_kv_cache,
        speculative_tokens=settings.speculative_tokens,
        enforce_eager=settings.enforce_eager,
        max_loras=settings.max_loras,
        max_lora_rank=settings.max_lora_rank,
    )


def _is_given(inputs: "PlanInputs") -> bool:
    memory = inputs.memory
    return any(size is not None for size in (memory.weights_bytes, memory.overhead_bytes, memory.available_kv_bytes))


def _card_differences(calibration: Calibration, gpu: GpuSpec) -> Iterator[Difference]:
    seen = calibration.gpu
    kept = calibration.pool.available_gib
    if kept is not None and float(kept) * GIB > gpu.process_bytes:
        yield Difference(what="KV memory", there=f"{kept} GiB", here="a smaller card")
    if folded_gpu(seen.name) != folded_gpu(gpu.name) or not _is_of_that_size(seen, gpu):
        known = seen.total_gib or seen.memory_gib
        size = f" of {known} GiB" if known else ""
        here = gpu.name or "a card by its size alone"
        yield Difference(what="--gpu", there=f"{seen.name}{size}", here=f"{here} of {gpu.process_bytes / GIB:.2f} GiB")


def _is_of_that_size(seen: CardSeen, gpu: GpuSpec) -> bool:
    """Whether a card can be the one that was seen; a log that prints no memory may have it in the card's name."""
    if seen.total_gib is not None:
        total = float(seen.total_gib) * GIB
        return abs(total / gpu.process_bytes - 1) <= _CARD_TOLERANCE and total <= gpu.total_bytes
    if seen.memory_gib is not None:
        return abs(float(seen.memory_gib) * GIB / gpu.total_bytes - 1) <= _CARD_TOLERANCE
    nominal = nominal_gb(seen.name)
    return nominal is None or abs(nominal * 1e9 / gpu.total_bytes - 1) <= _NOMINAL_TOLERANCE


def _version_differences(
    calibration: Calibration, engine: EngineInputs, gpu: GpuSpec, model: ModelSpec
) -> Iterator[Difference]:
    planned: Version = engine.version or (LATEST if engine.engine is EngineKind.VLLM else LATEST_SGLANG)
    if parse_version(calibration.version) != planned:
        here = ".".join(map(str, planned))
        yield Difference(what="--engine-version", there=calibration.version, here=here)
    elif calibration.generation is not None:
        runs_v0 = engine_start(engine, gpu, max_model_len=model.max_model_len).runs_v0
        if (calibration.generation == "V0") != runs_v0:
            yield Difference(
                what="the engine's generation", there=calibration.generation, here="V0" if runs_v0 else "V1"
            )


@dataclass(frozen=True, slots=True)
class _Resolved:
    """What decides memory, with the engine's defaults filled in, by option."""

    values: dict[str, object]

    @classmethod
    def of(cls, engine: EngineInputs, model: ModelSpec, gpu: GpuSpec, max_model_len: int | None) -> "_Resolved":
        limits = limits_of_step(model, engine, gpu, max_model_len=max_model_len or model.max_model_len)
        return cls(
            {
                "--tp": engine.tensor_parallel,
                "--pp": engine.pipeline_parallel,
                "--dp": engine.data_parallel,
                "--ep": engine.expert_parallel,
                "--dcp": engine.decode_context_parallel,
                "--dtype": _dtype_of(engine, model),
                "--kv-cache-dtype": (engine.kv_packing.value, _kv_dtype_of(engine, model)),
                "--block-size": engine.block_size or _default_block(engine, model),
                "--max-num-seqs": limits.num_seqs if engine.engine is EngineKind.VLLM else engine.max_num_seqs,
                "--max-num-batched-tokens": limits.num_tokens,
                "--prefix-caching": caches_prefixes(model, engine),
                "--hybrid-kv-cache": engine.hybrid_manager is not False,
                "--speculative-tokens": engine.speculative_tokens,
                "--enforce-eager": engine.enforce_eager,
                "--max-loras": engine.max_loras,
                "--max-lora-rank": (engine.max_lora_rank or DEFAULT_RANK) if engine.max_loras else None,
            }
        )


def _dtype_of(engine: EngineInputs, model: ModelSpec) -> KVDtype:
    return engine.dtype or model.dtype


def _kv_dtype_of(engine: EngineInputs, model: ModelSpec) -> KVDtype:
    return model.kv_dtype(engine.kv_dtype, engine.dtype)


def _default_block(engine: EngineInputs, model: ModelSpec) -> int:
    is_sglang = engine.engine is EngineKind.SGLANG
    return default_page_size(model.layers) if is_sglang else default_block_size(model.layers)


def _type_differences(settings: Settings, engine: EngineInputs, model: ModelSpec) -> Iterator[Difference]:
    """Yield types that are not known here, and another quantisation than the one planned for.

    An engine names the checkpoint's own quantisation in its own words, so any word is that where none is asked for.
    """
    for name, said, known in (
        ("--dtype", settings.dtype, DTYPES),
        ("--kv-cache-dtype", settings.kv_cache_dtype, KV_DTYPES),
    ):
        if said is not None and said not in known:
            yield Difference(what=name, there=said, here="not known")
    said, planned = settings.quantization, engine.quantization
    if planned is None:
        if said is not None and model.quantization is None:
            yield Difference(what="--quantization", there=said, here="none")
    elif said is not None:
        named = quantization_named(said)
        if (named.method if named else said) != planned.method:
            yield Difference(what="--quantization", there=said, here=planned.method)
    elif model.quantization is None or model.quantization.method != planned.method:
        yield Difference(what="--quantization", there="none", here=planned.method)


def _word(value: object) -> str:
    if isinstance(value, tuple):
        packing, dtype = value
        return str(dtype if packing == "plain" else packing)
    return (
        {None: "none", True: "on", False: "off"}.get(value, str(value))
        if isinstance(value, bool | None)
        else str(value)
    )
