from typing import Any

import pytest

from kvengine.errors import ConfigError
from kvplan.launch_line import read_launch_line


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("vllm serve Qwen/Qwen3-8B", {"engine": "vllm", "model": "Qwen/Qwen3-8B"}),
        (
            "CUDA_VISIBLE_DEVICES=0,1 vllm serve a/b -tp 2 --max-model-len=32768 --gpu-memory-utilization 0.9",
            {"engine": "vllm", "model": "a/b", "tp": "2", "max_model_len": "32768", "gpu_memory_utilization": "0.9"},
        ),
        (
            "python -m vllm.entrypoints.openai.api_server --model a/b --tensor_parallel_size 4 --enforce-eager",
            {"engine": "vllm", "model": "a/b", "tp": "4", "enforce_eager": True},
        ),
        (
            "docker run --gpus all vllm/vllm-openai:v0.21.0 --model a/b",
            {"engine": "vllm", "model": "a/b"},
        ),
        (
            'vllm serve a/b --speculative-config \'{"method": "mtp", "num_speculative_tokens": 3}\'',
            {"engine": "vllm", "model": "a/b", "speculative_tokens": "3"},
        ),
        (
            "vllm serve a/b --no-enable-prefix-caching --disable-hybrid-kv-cache-manager --max-model-len -1",
            {
                "engine": "vllm",
                "model": "a/b",
                "prefix_caching": False,
                "hybrid_kv_cache": False,
                "max_model_len": "auto",
            },
        ),
        (
            "python -m sglang.launch_server --model-path a/b --tp 8 --mem-fraction-static 0.85 --page-size 16",
            {"engine": "sglang", "model": "a/b", "tp": "8", "mem_fraction_static": "0.85", "block_size": "16"},
        ),
        (
            "python3 -m sglang.launch_server --model a/b --max-total-tokens 100000 --page-size 64",
            {"engine": "sglang", "model": "a/b", "num_blocks_override": "1562", "block_size": "64"},
        ),
        (
            "vllm serve a/b \\\n  --max-num-seqs 64 \\\n  # as it ran in May",
            {"engine": "vllm", "model": "a/b", "max_num_seqs": "64"},
        ),
    ],
)
def test_a_launch_line_becomes_options(line: str, options: dict[str, Any]) -> None:
    assert read_launch_line(line).options == options


def test_flags_that_do_not_matter_are_named() -> None:
    line = read_launch_line("vllm serve a/b --port 8000 --trust-remote-code --tp-of-mine=3 --max-num-seqs 8")

    assert line.ignored == ("--port", "8000", "--trust-remote-code", "--tp-of-mine=3")
    assert line.options["max_num_seqs"] == "8"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "starts neither vLLM nor SGLang"),
        ("ollama run llama3", "starts neither vLLM nor SGLang"),
        ("vllm serve a/b --max-model-len", "--max-model-len has no value"),
        ("vllm serve 'a/b", "not a command line"),
        ("vllm serve a/b --speculative-config fast", "expected a JSON object with num_speculative_tokens"),
        ("vllm serve a/b --speculative-config [1]", "expected a JSON object with num_speculative_tokens"),
    ],
)
def test_what_is_no_launch_line_is_refused(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match="--from-command") as caught:
        read_launch_line(line)
    assert message in str(caught.value)
