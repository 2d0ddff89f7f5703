"""Start-up logs in the engine's words, written from records of what engines printed."""

from typing import Any

from tools.fit_memory.situation import Situation

_ENGINE_CORE = "(EngineCore_0 pid=1) INFO 01-01 00:00:00 "
_NOT_ARGUMENTS = ("speculative", "kv_connector")


def vllm_log(record: dict[str, Any], situation: Situation) -> str:
    """Write the lines of a vLLM start that a record has figures for."""
    lines = list(_v0_lines(record, situation) if situation.start.runs_v0 else _v1_lines(record, situation))
    return "\n".join(lines) + "\n"


def _head(record: dict[str, Any], situation: Situation) -> list[str]:
    flags, observed = record["flags"], record["observed"]
    length = flags.get("max_model_len") or observed.get("max_model_len") or situation.model.max_model_len
    version = ".".join(map(str, situation.start.version))
    arguments = {key: value for key, value in flags.items() if key not in _NOT_ARGUMENTS}
    if situation.engine.speculative_tokens:
        arguments["speculative_config"] = {
            "method": "mtp",
            "num_speculative_tokens": situation.engine.speculative_tokens,
        }
    generation = "V0" if situation.start.runs_v0 else "V1"
    return [
        f"INFO 01-01 00:00:00 [utils.py:1] non-default args: {arguments}",
        f"{_ENGINE_CORE}[core.py:1] Initializing a {generation} LLM engine (v{version}) with config: model='org/m', "
        f"max_seq_len={length}, tensor_parallel_size={situation.engine.tensor_parallel}, "
        f"pipeline_parallel_size={situation.engine.pipeline_parallel}",
    ]


def _v1_lines(record: dict[str, Any], situation: Situation) -> list[str]:
    observed, lines = record["observed"], _head(record, situation)
    if "model_loading_gib" in observed:
        size = f"{observed['model_loading_gib']:.2f}"
        lines.append(f"{_ENGINE_CORE}[gpu_model_runner.py:1] Model loading took {size} GiB memory and 1.0 seconds")
    if "available_kv_gib" in observed:
        lines.append(
            f"{_ENGINE_CORE}[gpu_worker.py:1] Available KV cache memory: {observed['available_kv_gib']:.2f} GiB"
        )
    if observed.get("kv_tokens"):
        lines.append(f"{_ENGINE_CORE}[kv_cache_utils.py:1] GPU KV cache size: {observed['kv_tokens']:,} tokens")
    if observed.get("max_concurrency") and observed.get("max_model_len"):
        lines.append(
            f"{_ENGINE_CORE}[kv_cache_utils.py:1] Maximum concurrency for {observed['max_model_len']:,} tokens per "
            f"request: {observed['max_concurrency']:.2f}x"
        )
    return lines


def _v0_lines(record: dict[str, Any], situation: Situation) -> list[str]:
    observed, lines = record["observed"], _head(record, situation)
    if "available_kv_gib" in observed:
        size = f"{observed['available_kv_gib']:.2f}"
        lines.append(f"INFO 01-01 00:00:00 worker.py:1] the rest of the memory reserved for KV Cache is {size}GiB.")
    blocks = observed.get("num_blocks") or observed.get("kv_tokens", 0) // (observed.get("block_size") or 16)
    if blocks:
        lines.append(f"INFO 01-01 00:00:00 executor_base.py:1] # CUDA blocks: {blocks}, # CPU blocks: 0")
    return lines
