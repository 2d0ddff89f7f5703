"""Settings out of argument dumps: vLLM's config line and arguments, SGLang's `ServerArgs`; whole or cut."""

import re
from collections.abc import Iterator, Mapping

from kvplan.explain.records import Record

Setting = int | float | str | bool | None

_VLLM_KEYS = frozenset(
    {
        "async_scheduling",
        "block_size",
        "chunked_prefill_enabled",
        "cpu_offload_gb",
        "data_parallel_size",
        "decode_context_parallel_size",
        "device_config",
        "disable_custom_all_reduce",
        "disable_hybrid_kv_cache_manager",
        "dtype",
        "enable_chunked_prefill",
        "enable_expert_parallel",
        "enable_lora",
        "enable_prefix_caching",
        "enforce_eager",
        "gpu_memory_utilization",
        "kv_cache_dtype",
        "kv_cache_memory_bytes",
        "kv_offloading_size",
        "load_format",
        "mamba_cache_mode",
        "mamba_ssm_cache_dtype",
        "max_lora_rank",
        "max_loras",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "max_seq_len",
        "mm_processor_cache_gb",
        "model",
        "num_gpu_blocks_override",
        "pipeline_parallel_size",
        "prefill_context_parallel_size",
        "quantization",
        "speculative_config",
        "swap_space",
        "tensor_parallel_size",
    }
)
_SGLANG_KEYS = frozenset(
    {
        "attention_backend",
        "chunked_prefill_size",
        "context_length",
        "cpu_offload_gb",
        "cuda_graph_max_bs",
        "disable_cuda_graph",
        "disable_hybrid_swa_memory",
        "disable_overlap_schedule",
        "disable_radix_cache",
        "dp_size",
        "dtype",
        "enable_dp_attention",
        "enable_hierarchical_cache",
        "enable_memory_saver",
        "enable_mixed_chunk",
        "ep_size",
        "hicache_ratio",
        "hicache_size",
        "kv_cache_dtype",
        "load_format",
        "mamba_full_memory_ratio",
        "mamba_ssm_dtype",
        "max_mamba_cache_size",
        "max_prefill_tokens",
        "max_running_requests",
        "max_total_tokens",
        "mem_fraction_static",
        "model_path",
        "nnodes",
        "page_size",
        "pp_size",
        "quantization",
        "schedule_policy",
        "speculative_algorithm",
        "speculative_draft_model_path",
        "speculative_eagle_topk",
        "speculative_num_draft_tokens",
        "speculative_num_steps",
        "swa_full_tokens_ratio",
        "tp_size",
    }
)
_ONLY_SGLANG = frozenset(
    {
        "chunked_prefill_size",
        "cuda_graph_max_bs",
        "disable_overlap_schedule",
        "disable_radix_cache",
        "enable_dp_attention",
        "mem_fraction_static",
    }
)
_FEWEST_KEYS_OF_A_FRAGMENT = 4
_CONFIG = re.compile(
    r"Initializing an? (?:V(?P<generation>[01]) )?LLM engine (?:\(v?(?P<version>[^)]+)\) )?with config: (?P<dump>.*)",
    re.DOTALL,
)
_ARGUMENTS = re.compile(
    r"(?:non-default args: |args: Namespace\(|server_args=ServerArgs\(|ServerArgs\()(?P<dump>.*)", re.DOTALL
)
_KEY = re.compile(r"""['"]?(?P<key>[A-Za-z_]\w*)['"]?\s*[=:]\s*""")
_NEXT_KEY = re.compile(r" [a-z_]+=")
_CONSTANTS: dict[str, Setting] = {
    "None": None,
    "True": True,
    "False": False,
    "null": None,
    "true": True,
    "false": False,
}
_INTEGER = re.compile(r"[+-]?\d{1,15}")
_FLOAT = re.compile(r"[+-]?\d{0,15}\.\d{1,15}(?:e[+-]?\d{1,2})?")
_OPENING, _CLOSING = "([{", ")]}"


def config_line(record: Record) -> re.Match[str] | None:
    """The line in which vLLM states its version, model and settings."""
    return _CONFIG.search(record.text + record.raw_continuation) if "LLM engine" in record.text else None


def arguments(record: Record) -> str | None:
    """The dump of a line in which a server lists its arguments; None for other lines."""
    if "args" not in record.text and "Args" not in record.text:
        return None
    match = _ARGUMENTS.search(record.text + record.raw_continuation)
    return match["dump"] if match else None


def is_sglang_fragment(record: Record) -> bool:
    """Whether a line without prefix is the rest of a SGLang argument dump whose beginning is missing."""
    return record.text.count("=") >= _FEWEST_KEYS_OF_A_FRAGMENT and (
        sum(f"{key}=" in record.text for key in _ONLY_SGLANG) >= _FEWEST_KEYS_OF_A_FRAGMENT - 1
    )


def vllm_settings(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Those of vLLM's settings that bear on memory."""
    return {key: value for key, value in settings.items() if key in _VLLM_KEYS}


def sglang_settings(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Those of SGLang's settings that bear on memory."""
    return {key: value for key, value in settings.items() if key in _SGLANG_KEYS}


def parse_dump(dump: str, *, is_fragment: bool = False) -> Iterator[tuple[str, Setting]]:
    """Read `key=value, …` or `{'key': value, …}` at the outer level; a value that the end of the log cuts is left out.

    Args:
        dump: The text behind the dump's opening words.
        is_fragment: The beginning is missing, so a closing bracket need not be the end.
    """
    position = 0
    while position < len(dump):
        match = _KEY.match(dump, position)
        if match is None:
            if dump[position] in _CLOSING and not is_fragment:
                return
            position += 1
            continue
        end = _value_end(dump, match.end())
        if end is None:
            return
        yield match["key"], _value(dump[match.end() : end].strip())
        if dump[end] in _CLOSING and not is_fragment:
            return
        position = end + 1


def _value_end(dump: str, start: int) -> int | None:
    """Where a value ends: at a comma or closing bracket of its own level. None if the dump ends first.

    0.6.3 forgot one comma, so the next key ends a value, too.
    """
    depth, quote = 0, ""
    for position in range(start, len(dump)):
        character = dump[position]
        if quote:
            quote = "" if character == quote and dump[position - 1] != "\\" else quote
        elif character in "'\"":
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            if depth == 0:
                return position
            depth -= 1
        elif depth == 0 and (character == "," or (character == " " and _NEXT_KEY.match(dump, position))):
            return position
    return None


def _value(text: str) -> Setting:
    """A plain Python literal as its value, anything else (`torch.float16`, `KVEventsConfig(…)`) as it stands."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text
