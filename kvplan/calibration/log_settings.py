"""The settings of a start-up log that decide memory, out of the engines' own names."""

import re
from collections.abc import Iterator, Mapping

from kvplan.calibration.record import Settings
from kvplan.explain.findings import SGLANG
from kvplan.explain.reading import EngineReading
from kvplan.explain.settings import Setting


def settings_of(reading: EngineReading) -> Settings:
    """Return what a start was asked for that decides memory."""
    said = reading.settings
    return _sglang_settings(said) if reading.engine == SGLANG else _vllm_settings(said)


def _vllm_settings(said: Mapping[str, Setting]) -> Settings:
    return Settings(
        tensor_parallel=whole(said.get("tensor_parallel_size")) or 1,
        pipeline_parallel=whole(said.get("pipeline_parallel_size")) or 1,
        data_parallel=whole(said.get("data_parallel_size")) or 1,
        expert_parallel=said.get("enable_expert_parallel") is True,
        decode_context_parallel=whole(said.get("decode_context_parallel_size")) or 1,
        dtype=_dtype(said.get("dtype")),
        quantization=_text(said.get("quantization")),
        kv_cache_dtype=_kv_dtype(said.get("kv_cache_dtype")),
        block_size=whole(said.get("block_size")),
        max_num_seqs=whole(said.get("max_num_seqs")),
        max_num_batched_tokens=whole(said.get("max_num_batched_tokens")),
        prefix_caching=_switch(said.get("enable_prefix_caching")),
        hybrid_kv_cache=False if said.get("disable_hybrid_kv_cache_manager") is True else None,
        speculative_tokens=_drafted(said.get("speculative_config")),
        enforce_eager=said.get("enforce_eager") is True,
        max_loras=(whole(said.get("max_loras")) or 1) if said.get("enable_lora") is True else 0,
        max_lora_rank=whole(said.get("max_lora_rank")),
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
        tensor_parallel=whole(said.get("tp_size")) or 1,
        pipeline_parallel=whole(said.get("pp_size")) or 1,
        data_parallel=whole(said.get("dp_size")) or 1,
        expert_parallel=(whole(said.get("ep_size")) or 1) > 1,
        dtype=_dtype(said.get("dtype")),
        quantization=_text(said.get("quantization")),
        kv_cache_dtype=_kv_dtype(said.get("kv_cache_dtype")),
        block_size=whole(said.get("page_size")),
        max_num_seqs=whole(said.get("max_running_requests")),
        max_num_batched_tokens=whole(said.get("chunked_prefill_size")),
        prefix_caching=not disabled if isinstance(disabled, bool) else None,
        speculative_tokens=whole(said.get("speculative_num_draft_tokens")) or 0,
        enforce_eager=said.get("disable_cuda_graph") is True,
        others=tuple(others),
    )


def whole(value: Setting) -> int | None:
    """Return a setting that is a whole number from 1 on; None for anything else."""
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
