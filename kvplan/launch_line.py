"""The launch line of a server (`vllm serve ...`, `python -m sglang.launch_server ...`) as options of a budget."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvengine.errors import ConfigError

_VLLM: Mapping[str, str] = {
    "--model": "model",
    "--tensor-parallel-size": "tp",
    "-tp": "tp",
    "--pipeline-parallel-size": "pp",
    "-pp": "pp",
    "--data-parallel-size": "dp",
    "-dp": "dp",
    "--decode-context-parallel-size": "dcp",
    "-dcp": "dcp",
    "--gpu-memory-utilization": "gpu_memory_utilization",
    "--kv-cache-memory-bytes": "available_kv",
    "--max-model-len": "max_model_len",
    "--max-num-seqs": "max_num_seqs",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--kv-cache-dtype": "kv_cache_dtype",
    "--dtype": "dtype",
    "--quantization": "quantization",
    "-q": "quantization",
    "--block-size": "block_size",
    "--num-gpu-blocks-override": "num_blocks_override",
}
_SGLANG: Mapping[str, str] = {
    "--model-path": "model",
    "--model": "model",
    "--tensor-parallel-size": "tp",
    "--tp-size": "tp",
    "--tp": "tp",
    "--pipeline-parallel-size": "pp",
    "--pp-size": "pp",
    "--data-parallel-size": "dp",
    "--dp-size": "dp",
    "--dp": "dp",
    "--mem-fraction-static": "mem_fraction_static",
    "--context-length": "max_model_len",
    "--page-size": "block_size",
    "--max-running-requests": "max_num_seqs",
    "--max-total-tokens": "max_total_tokens",
    "--kv-cache-dtype": "kv_cache_dtype",
    "--dtype": "dtype",
    "--quantization": "quantization",
    "--chunked-prefill-size": "max_num_batched_tokens",
    "--speculative-num-draft-tokens": "speculative_tokens",
}
_SWITCHES: Mapping[str, tuple[str, bool]] = {
    "--enable-expert-parallel": ("ep", True),
    "-ep": ("ep", True),
    "--enable-ep-moe": ("ep", True),
    "--enable-prefix-caching": ("prefix_caching", True),
    "--no-enable-prefix-caching": ("prefix_caching", False),
    "--disable-radix-cache": ("prefix_caching", False),
    "--enforce-eager": ("enforce_eager", True),
    "--disable-cuda-graph": ("enforce_eager", True),
    "--disable-hybrid-kv-cache-manager": ("hybrid_kv_cache", False),
    "--no-disable-hybrid-kv-cache-manager": ("hybrid_kv_cache", True),
}
_ALONE = ("--trust-remote-code", "--enable-auto-tool-choice", "--enable-chunked-prefill")
_SPECULATIVE = ("--speculative-config", "-sc")
_ENGINE_WORDS = ("vllm", "sglang")
_VLLM_IMAGE = "vllm-openai"
"""Runs the server with the words that follow it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLine:
    """What a launch line says."""

    options: dict[str, Any]
    """Options of a budget by their names in Python."""
    ignored: tuple[str, ...]
    """Flags that a budget does not depend on, or does not know."""


def read_launch_line(line: str) -> LaunchLine:
    """Read a launch line.

    Raises:
        ConfigError: It starts neither vLLM nor SGLang, or a flag lacks its value.
    """
    try:
        words = shlex.split(line.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise ConfigError(f"not a command line: {str(error).lower()}", where="--from-command") from None
    start, engine = _find_engine(words)
    options: dict[str, Any] = {"engine": engine}
    ignored = list(_read(words[start:], _SGLANG if engine == "sglang" else _VLLM, options))
    if options.get("max_model_len") == "-1":
        options["max_model_len"] = "auto"
    tokens = options.pop("max_total_tokens", None)
    if tokens is not None:
        # SGLang's pool in pages of one token, or of the page that was named.
        page = options.get("block_size", "1")
        pages = int(tokens) // max(1, int(page)) if tokens.isdecimal() and page.isdecimal() else 0
        options["num_blocks_override"] = str(pages)
    return LaunchLine(options=options, ignored=tuple(ignored))


def _find_engine(words: list[str]) -> tuple[int, str]:
    """Return where the engine's own words begin, and whose they are."""
    for index, word in enumerate(words):
        name = word.rpartition("/")[2].partition(".")[0]
        if name.partition(":")[0] == _VLLM_IMAGE:
            return index + 1, "vllm"
        if name in _ENGINE_WORDS:
            is_subcommand = "." not in word.rpartition("/")[2] and words[index + 1 : index + 2] == ["serve"]
            return index + (2 if is_subcommand else 1), name
    raise ConfigError(
        "it starts neither vLLM nor SGLang", where="--from-command", hint='--from-command "vllm serve MODEL ..."'
    )


def _read(words: list[str], known: Mapping[str, str], options: dict[str, Any]) -> Iterator[str]:
    """Put what is known into the options and yield the rest."""
    position = 0
    while position < len(words):
        word = words[position]
        flag, equals, inline = word.partition("=") if word.startswith("--") else (word, "", "")
        flag = flag.replace("_", "-") if flag.startswith("--") else flag
        position += 1
        if not flag.startswith("-"):
            if "model" not in options and position == 1:
                options["model"] = word
            else:
                yield word
            continue
        if flag in _SWITCHES:
            name, value = _SWITCHES[flag]
            options[name] = value
            continue
        takes_value = flag in known or flag in _SPECULATIVE
        if not takes_value:
            yield word
            has_value = not equals and flag not in _ALONE and position < len(words)
            if has_value and not words[position].startswith("-"):
                yield words[position]
                position += 1
            continue
        if not equals:
            if position >= len(words):
                raise ConfigError(f"{flag} has no value", where="--from-command")
            inline = words[position]
            position += 1
        if flag in _SPECULATIVE:
            options["speculative_tokens"] = _drafted(inline)
        else:
            options[known[flag]] = inline


def _drafted(text: str) -> str:
    """Read the number of drafted tokens from a JSON object."""
    try:
        said = json.loads(text)
        count = said["num_speculative_tokens"]
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            "expected a JSON object with num_speculative_tokens", where="--from-command: --speculative-config"
        ) from None
    return str(count)
