"""From a start-up log as read to a calibration."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast

import msgspec

from kvengine.errors import ConfigError
from kvengine.units import GIB, format_bytes
from kvplan.calibration.log_settings import settings_of, whole
from kvplan.calibration.record import Calibration, CardSeen, Pool, PrintedPart
from kvplan.explain.findings import SGLANG, VLLM
from kvplan.explain.memory import read_memory
from kvplan.explain.reading import EngineReading, Figure
from kvplan.gpu_spec import GpuSpec, known_gpus
from kvplan.kv_layout.rules import Version, parse_version
from kvplan.loading import decode
from kvplan.memory_model.start import default_utilization

_CARD_TOLERANCE = 0.02
"""Of a card's memory: drivers keep more or less of it."""
_MEMORY_SETTINGS = ("kv_cache_memory_bytes", "max_total_tokens")
"""Settings that fix the pool, so that it says nothing of what the rest leaves."""
_PART_NAMES = {
    "weights": "weights",
    "activation peak": "activation_peak",
    "non-torch": "non_torch",
    "CUDA graphs (estimate, charged)": "cuda_graphs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the user says of a start that its log does not; None where nothing was said."""

    model: str | None = None
    gpu: GpuSpec | None = None
    version: str | None = None
    utilization: float | None = None


def calibration_of(reading: EngineReading, known: Known, *, log: str, saved: str) -> Calibration:
    """Make a calibration of one start.

    Args:
        reading: The start.
        known: What the user adds to it.
        log: Where it is from.
        saved: The day.

    Raises:
        ConfigError: The log lacks something that a calibration needs; the message says what, the hint how to say it.
    """
    version = _needed(known.version or reading.version, "the engine's version", "--engine-version V", log)
    pool = _pool(reading)
    if any(reading.settings.get(name) is not None for name in _MEMORY_SETTINGS) or "kv_memory_set" in reading.events:
        raise _refusal(log, "its KV memory was set by hand and says nothing of what the rest leaves")
    if reading.settings.get("device_config") == "cpu":
        raise _refusal(log, "it ran on a CPU, and calibrations are of cards")
    if pool is None:
        raise _refusal(log, "the log prints neither KV memory nor a number of tokens or blocks")
    made = Calibration(
        schema="kvplan.calibration/1",
        saved=saved,
        log=log,
        engine=cast(Literal["vllm", "sglang"], reading.engine),
        version=version,
        generation=cast(Literal["V0", "V1"] | None, reading.generation),
        model=_needed(known.model or reading.model, "the model", "--model NAME", log),
        gpu=_card(reading, known.gpu, log),
        utilization=_utilization(reading, known, parse_version(version), log),
        max_model_len=_length(reading),
        settings=settings_of(reading),
        parts=tuple(_parts(reading)),
        graphs_outside_gib=_graphs_outside(reading),
        pool=pool,
    )
    # As strict as reading it back: what a damaged log says must not be kept.
    return decode(msgspec.to_builtins(made), Calibration, source=log)


def assumptions_of(reading: EngineReading) -> str:
    """Say what a calibration takes for granted; nothing where the log shows the engine's arguments."""
    if reading.has_arguments:
        return ""
    return "the log does not show the arguments: settings that it does not name count as the engine's defaults"


def _needed(value: str | None, what: str, option: str, log: str) -> str:
    if not value:
        raise _refusal(log, f"the log does not say {what}", hint=f"kvplan explain {log} --save {option}")
    return value


def _refusal(log: str, reason: str, *, hint: str = "") -> ConfigError:
    return ConfigError(f"no calibration can be made of it: {reason}", where=log, hint=hint)


def _card(reading: EngineReading, gpu: GpuSpec | None, log: str) -> CardSeen:
    printed = reading.smallest("total_gib")
    total = printed.text if printed is not None and "." in printed.text else None
    if gpu is not None:
        if total is not None and abs(float(total) * GIB / gpu.process_bytes - 1) > _CARD_TOLERANCE:
            there = format_bytes(gpu.process_bytes)
            raise ConfigError(f"the log's card has {total} GiB, {gpu.name} has {there}", where="--gpu")
        memory = f"{gpu.total_bytes / GIB:.2f}" if total is None else None
        return CardSeen(name=gpu.name, total_gib=total, memory_gib=memory)
    if reading.gpu.name:
        return CardSeen(name=reading.gpu.name, total_gib=total)
    if total is None:
        raise _refusal(log, "the log does not say the GPU", hint=f"kvplan explain {log} --save --gpu NAME")
    return CardSeen(name=_only_card_of(float(total), log), total_gib=total)


def _only_card_of(total_gib: float, log: str) -> str:
    """Name the one card of that memory.

    Raises:
        ConfigError: There is none, or more than one.
    """
    fitting = {name: card.name for name, card in known_gpus().items() if _can_be(card, total_gib * GIB)}
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    of_them = f"those of {', '.join(fitting)}" if fitting else "those of no card that is known"
    hint = f"kvplan explain {log} --save --gpu {next(iter(fitting), 'NAME')}"
    raise _refusal(log, f"the log does not name the GPU, and its {total_gib:g} GiB are {of_them}", hint=hint)


def _can_be(card: GpuSpec, seen_bytes: float) -> bool:
    reserve, rounding = card.driver_reserve, 0.05 * GIB
    least, most = card.total_bytes - reserve.high_bytes, card.total_bytes - reserve.low_bytes
    return least - rounding <= seen_bytes <= most + rounding


def _utilization(reading: EngineReading, known: Known, version: Version | None, log: str) -> float:
    option = "mem_fraction_static" if reading.engine == SGLANG else "gpu_memory_utilization"
    stated = reading.settings.get(option)
    if known.utilization is not None:
        return known.utilization
    if isinstance(stated, int | float) and not isinstance(stated, bool):
        return float(stated)
    if reading.engine == VLLM and reading.has_arguments and version is not None:
        return default_utilization(version)
    flag = f"--{option.replace('_', '-')}"
    raise _refusal(
        log, "the log does not say the engine's share of the card", hint=f"kvplan explain {log} --save {flag} F"
    )


def _length(reading: EngineReading) -> int | None:
    in_pool_line = reading.smallest("concurrency")
    beside = reading.beside("max_model_len", in_pool_line) if in_pool_line else None
    if beside is not None:
        return int(beside.value)
    names = ("context_length",) if reading.engine == SGLANG else ("max_model_len", "max_seq_len")
    return next((length for name in names if (length := whole(reading.settings.get(name)))), None)


def _pool(reading: EngineReading) -> Pool | None:
    """Read the cache of the GPU that decides; None where the log says nothing of it."""
    if reading.engine == SGLANG:
        tokens = reading.smallest("kv_tokens") or reading.smallest("max_total_num_tokens")
        return _known_pool(_sglang_memory(reading), None, tokens, None)
    profiled = reading.smallest("num_gpu_blocks_profiled")
    is_overridden = profiled is not None or reading.settings.get("num_gpu_blocks_override") is not None
    return _known_pool(
        _text_of(reading.smallest("available_kv_gib")),
        profiled or (None if is_overridden else reading.smallest("num_gpu_blocks")),
        None if is_overridden else reading.smallest("kv_cache_tokens"),
        None if is_overridden else reading.smallest("concurrency"),
    )


def _sglang_memory(reading: EngineReading) -> str | None:
    sizes = ("k_size_gb", "v_size_gb", "kv_size_gb", "conv_state_gb", "ssm_state_gb")
    printed = [figure for name in sizes if (figure := reading.smallest(name)) is not None]
    return f"{sum(float(figure.value) for figure in printed):.2f}" if printed else None


def _known_pool(
    memory: str | None, blocks: Figure | None, tokens: Figure | None, concurrency: Figure | None
) -> Pool | None:
    num_blocks, num_tokens = (_positive(figure.value if figure else None) for figure in (blocks, tokens))
    if memory is None and num_blocks is None and num_tokens is None:
        return None
    return Pool(
        available_gib=memory,
        num_blocks=num_blocks,
        kv_cache_tokens=num_tokens,
        concurrency=_text_of(concurrency),
    )


def _text_of(figure: Figure | None) -> str | None:
    return figure.text if figure else None


def _positive(value: float | None) -> int | None:
    return int(value) if value is not None and value >= 1 else None


def _parts(reading: EngineReading) -> Iterator[PrintedPart]:
    """Name the parts as budgets do; a figure of weights and the rest is cut at the weights, the peak at the graphs."""
    found = {part.name: part.gib for part in read_memory(reading).parts}
    weights = reading.smallest("weights_gib")
    together = found.pop("weights and non-torch", None)
    if together is not None and weights is not None and 0 < weights.value <= together:
        found |= {"weights": float(weights.value), "non-torch": together - float(weights.value)}
    graphs = reading.smallest("cuda_graph_estimated_gib")
    peak = found.get("activation peak", 0.0)
    if together is not None and graphs is not None and 0 < graphs.value <= peak and "graphs_charged" in reading.events:
        found["activation peak"] = peak - float(graphs.value)
        found["CUDA graphs (estimate, charged)"] = float(graphs.value)
    for printed, name in _PART_NAMES.items():
        if found.get(printed, 0.0) > 0:
            named = cast(Literal["weights", "activation_peak", "non_torch", "cuda_graphs"], name)
            yield PrintedPart(name=named, gib=round(found[printed], 4))


def _graphs_outside(reading: EngineReading) -> float | None:
    graphs = reading.smallest("cuda_graph_gib")
    if reading.engine == SGLANG or graphs is None or "graphs_charged" in reading.events or graphs.value <= 0:
        return None
    return float(graphs.value)
