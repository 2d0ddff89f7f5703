"""From a start-up log as read to a calibration."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from kvengine.errors import ConfigError
from kvengine.units import GIB, format_bytes
from kvplan.calibration.record import Calibration, CardSeen, Pool, PrintedPart, Settings
from kvplan.explain.findings import SGLANG, VLLM
from kvplan.explain.memory import read_memory
from kvplan.explain.reading import EngineReading
from kvplan.explain.settings import Setting
from kvplan.gpu_spec import GpuSpec, load_gpu_profile
from kvplan.kv_layout.rules import Version, parse_version
from kvplan.memory_model.start import default_utilization
from kvplan.profiles import find_profiles

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
    if pool.available_gib is None and pool.kv_cache_tokens is None and pool.num_blocks is None:
        raise _refusal(log, "the log prints neither KV memory nor a number of tokens or blocks")
    return Calibration(
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
        settings=_settings(reading),
        parts=tuple(_parts(reading)),
        graphs_outside_gib=_graphs_outside(reading),
        pool=pool,
    )


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
        return CardSeen(name=gpu.name, total_gib=total)
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
    cards = {name: load_gpu_profile(profile) for name, profile in find_profiles("gpus").items()}
    fitting = {name: card.name for name, card in cards.items() if _can_be(card, total_gib * GIB)}
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
    return next((length for name in names if (length := _count(reading.settings.get(name)))), None)


def _settings(reading: EngineReading) -> Settings:
    said = reading.settings
    return _sglang_settings(said) if reading.engine == SGLANG else _vllm_settings(said)


def _vllm_settings(said: Mapping[str, Setting]) -> Settings:
    return Settings(
        tensor_parallel=_count(said.get("tensor_parallel_size")) or 1,
        pipeline_parallel=_count(said.get("pipeline_parallel_size")) or 1,
        data_parallel=_count(said.get("data_parallel_size")) or 1,
        expert_parallel=said.get("enable_expert_parallel") is True,
        decode_context_parallel=_count(said.get("decode_context_parallel_size")) or 1,
        dtype=_dtype(said.get("dtype")),
        quantization=_text(said.get("quantization")),
        kv_cache_dtype=_kv_dtype(said.get("kv_cache_dtype")),
        block_size=_count(said.get("block_size")),
        max_num_seqs=_count(said.get("max_num_seqs")),
        max_num_batched_tokens=_count(said.get("max_num_batched_tokens")),
        prefix_caching=_switch(said.get("enable_prefix_caching")),
        hybrid_kv_cache=False if said.get("disable_hybrid_kv_cache_manager") is True else None,
        speculative_tokens=_drafted(said.get("speculative_config")),
        enforce_eager=said.get("enforce_eager") is True,
        max_loras=(_count(said.get("max_loras")) or 1) if said.get("enable_lora") is True else 0,
        max_lora_rank=_count(said.get("max_lora_rank")),
        others=tuple(_vllm_others(said)),
    )


def _vllm_others(said: Mapping[str, Setting]) -> Iterator[str]:
    """Name what takes or gives memory of the card and no budget knows of."""
    for name in ("cpu_offload_gb", "prefill_context_parallel_size"):
        value = said.get(name)
        if isinstance(value, int | float) and value > (1 if name.startswith("prefill") else 0):
            yield f"{name}={value:g}"
    drafts = _text(said.get("speculative_config"))
    if drafts and not _drafted(drafts):
        yield f"speculative_config={drafts[:80]}"


def _sglang_settings(said: Mapping[str, Setting]) -> Settings:
    others = [
        f"{name}={value}"
        for name in ("cpu_offload_gb", "enable_memory_saver", "enable_dp_attention")
        if (value := said.get(name))
    ]
    disabled = said.get("disable_radix_cache")
    return Settings(
        tensor_parallel=_count(said.get("tp_size")) or 1,
        pipeline_parallel=_count(said.get("pp_size")) or 1,
        data_parallel=_count(said.get("dp_size")) or 1,
        expert_parallel=(_count(said.get("ep_size")) or 1) > 1,
        dtype=_dtype(said.get("dtype")),
        quantization=_text(said.get("quantization")),
        kv_cache_dtype=_kv_dtype(said.get("kv_cache_dtype")),
        block_size=_count(said.get("page_size")),
        max_num_seqs=_count(said.get("max_running_requests")),
        max_num_batched_tokens=_count(said.get("chunked_prefill_size")),
        prefix_caching=not disabled if isinstance(disabled, bool) else None,
        speculative_tokens=_count(said.get("speculative_num_draft_tokens")) or 0,
        enforce_eager=said.get("disable_cuda_graph") is True,
        others=tuple(others),
    )


def _count(value: Setting) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else None


def _switch(value: Setting) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: Setting) -> str | None:
    return value if isinstance(value, str) and value not in ("", "auto", "None") else None


def _dtype(value: Setting) -> str | None:
    named = _text(value)
    return named.removeprefix("torch.") if named else None


def _kv_dtype(value: Setting) -> str | None:
    named = _dtype(value)
    return {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}.get(named, named) if named else None


def _drafted(value: Setting) -> int:
    """Read the drafted tokens of a model's own draft layers; 0 for another model's, which budgets do not know."""
    said = str(value or "")
    method = re.search(r"method['\"]?\s*[=:]\s*['\"]?(\w+)", said)
    count = re.search(r"num_spec(?:ulative)?_tokens['\"]?\s*[=:]\s*(\d{1,3})\b", said)
    return int(count[1]) if method and count and method[1].endswith("mtp") else 0


def _pool(reading: EngineReading) -> Pool:
    sizes = ("k_size_gb", "v_size_gb", "kv_size_gb", "conv_state_gb", "ssm_state_gb")
    if reading.engine == SGLANG:
        tokens = reading.smallest("kv_tokens") or reading.smallest("max_total_num_tokens")
        printed = [figure for name in sizes if (figure := reading.smallest(name)) is not None]
        total = f"{sum(float(figure.text) for figure in printed):.2f}" if printed else None
        return Pool(available_gib=total, kv_cache_tokens=_positive(tokens.value if tokens else None))
    available = reading.smallest("available_kv_gib")
    profiled = reading.smallest("num_gpu_blocks_profiled")
    is_overridden = profiled is not None or reading.settings.get("num_gpu_blocks_override") is not None
    blocks = profiled or (None if is_overridden else reading.smallest("num_gpu_blocks"))
    tokens = None if is_overridden else reading.smallest("kv_cache_tokens")
    concurrency = None if is_overridden else reading.smallest("concurrency")
    return Pool(
        available_gib=available.text if available else None,
        num_blocks=_positive(blocks.value if blocks else None),
        kv_cache_tokens=_positive(tokens.value if tokens else None),
        concurrency=concurrency.text if concurrency else None,
    )


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
