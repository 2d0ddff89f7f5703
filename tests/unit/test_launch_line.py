from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvengine.errors import ConfigError
from kvplan.cli.budget_options import BudgetOptions
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
            {"engine": "vllm", "model": "a/b", "engine_version": "0.21.0"},
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
        (
            "HF_HOME=/srv/vllm docker run --name vllm -v ~/vllm:/root -p 80:8000 vllm/vllm-openai:latest --model=a/b",
            {"engine": "vllm", "model": "a/b"},
        ),
        (
            "docker run --entrypoint vllm vllm/vllm-openai:v0.16.0-x86_64 serve a/b -dcp 2 -tp 4",
            {"engine": "vllm", "model": "a/b", "engine_version": "0.16.0", "dcp": "2", "tp": "4"},
        ),
        (
            "docker run nvcr.io/nvidia/vllm:25.09-py3 vllm serve a/b",
            {"engine": "vllm", "model": "a/b"},
        ),
        (
            "cd envs/vllm && source bin/activate && vllm serve a/b --max_num_seqs=8 2>&1 | tee vllm.log --tp 9",
            {"engine": "vllm", "model": "a/b", "max_num_seqs": "8"},
        ),
        (
            "vllm serve --enable-log-requests --port 8000 a/b --enforce-eager --no-enforce-eager -ep",
            {"engine": "vllm", "model": "a/b", "enforce_eager": False, "ep": True},
        ),
        (
            "vllm serve a/b --max-model-len 32K --max-num-batched-tokens 8k --kv-cache-memory-bytes 1.5g",
            {
                "engine": "vllm",
                "model": "a/b",
                "max_model_len": "32768",
                "max_num_batched_tokens": "8000",
                "available_kv": "1500000000",
            },
        ),
        (
            "vllm serve a/b --device-memory-utilization .85 --speculative-config.num_speculative_tokens 2",
            {"engine": "vllm", "model": "a/b", "gpu_memory_utilization": ".85", "speculative_tokens": "2"},
        ),
        (
            "vllm serve a/b \\ \n # the old value\n --max-model-len 4096 \\\r\n  --block-size 32",
            {"engine": "vllm", "model": "a/b", "max_model_len": "4096", "block_size": "32"},
        ),
        (
            "docker run lmsysorg/sglang:v0.5.5-cu129 python3 -m sglang.launch_server --model a/b --tp-size 8 --dp 4 "
            "--enable-dp-attention --ep-size 8 --context-len 8192 --mem-fraction .8 --kv-cache-dtype bf16",
            {
                "engine": "sglang",
                "engine_version": "0.5.5",
                "model": "a/b",
                "tp": "2",
                "dp": "4",
                "ep": True,
                "max_model_len": "8192",
                "mem_fraction_static": ".8",
                "kv_cache_dtype": "bfloat16",
            },
        ),
        (
            "sglang serve --model-path a/b --tp 2 --dp-size 4 --chunked-prefill-size -1 --speculative-num-steps 3",
            {"engine": "sglang", "model": "a/b", "tp": "2", "speculative_tokens": "4"},
        ),
    ],
)
def test_a_launch_line_becomes_options(line: str, options: dict[str, Any]) -> None:
    assert read_launch_line(line).options == options


def test_flags_that_do_not_matter_are_named() -> None:
    line = read_launch_line("vllm serve a/b --port 8000 --trust-remote-code --tp-of-mine=3 --max-num-seqs 8")

    assert line.ignored == ("--port 8000", "--trust-remote-code", "--tp-of-mine=3")
    assert line.options["max_num_seqs"] == "8"


def test_flags_that_memory_depends_on_are_named_apart() -> None:
    line = read_launch_line(
        "VLLM_USE_V1=1 CUDA_VISIBLE_DEVICES=0 vllm serve a/b --cpu-offload-gb 10 --language-model-only --host 0.0.0.0 "
        "--mamba_ssm_cache_dtype float32 -O3 --compilation-config.level=2 --max-modellen 4096 "
        """--speculative-config '{"method": "eagle3", "model": "a/draft", "num_speculative_tokens": 2}'"""
    )

    assert line.options == {"engine": "vllm", "model": "a/b", "speculative_tokens": "2"}
    assert line.uncounted == (
        "VLLM_USE_V1=1",
        "--cpu-offload-gb 10",
        "--language-model-only",
        "--mamba_ssm_cache_dtype float32",
        "-O3",
        "--compilation-config.level=2",
        "--speculative-config model a/draft",
    )
    assert line.ignored == (
        "--host 0.0.0.0",
        "--max-modellen 4096 (not a flag of this engine; --max-model-len?)",
    )


def test_copies_of_sglang_are_planned_one_by_one_and_that_is_said() -> None:
    line = read_launch_line("python -m sglang.launch_server --model a/b --dp 2")

    assert "dp" not in line.options
    assert line.notes == ("--dp-size 2: so many whole copies; one of them is planned",)


def test_flags_of_a_file_count_where_the_line_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("model: a/b\ntensor-parallel-size: 2\nmax_model_len: 8192\nenforce-eager: true\nport: 80\n")
    line = read_launch_line(f"vllm serve --config {file} --max-model-len 4096")

    assert line.options == {
        "engine": "vllm",
        "model": "a/b",
        "tp": "2",
        "max_model_len": "4096",
        "enforce_eager": True,
    }
    assert line.ignored == ("--port=80",)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "starts neither vLLM nor SGLang"),
        ("ollama run llama3", "starts neither vLLM nor SGLang"),
        ("vllm serve a/b --max-model-len", "--max-model-len has no value"),
        ("vllm serve 'a/b", "not a command line"),
        ("VLLM=1 python serve.py --model a/b", "starts neither vLLM nor SGLang"),
        ("cd envs/vllm", "starts neither vLLM nor SGLang"),
        ("vllm serve a/b --speculative-config fast", "expected a JSON object with num_speculative_tokens"),
        ("vllm serve a/b --speculative-config [1]", "expected a JSON object with num_speculative_tokens"),
    ],
)
def test_what_is_no_launch_line_is_refused(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match="--from-command") as caught:
        read_launch_line(line)
    assert message in str(caught.value)


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        read_launch_line("vllm serve a/b --config nowhere.yaml")


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("vllm serve a/b --swap-space 4", {"swap_space": "4GiB"}),
        ("vllm serve a/b --swap-space 0", {}),
        ("vllm serve a/b --enable-lora", {"max_loras": "1"}),
        ("vllm serve a/b --enable-lora --max-loras 4 --max-lora-rank 64", {"max_loras": "4", "max_lora_rank": "64"}),
        ("vllm serve a/b --max-loras 4", {}),
        ("sglang.launch_server --model-path a/b --enable-lora", {"max_loras": "8"}),
        (
            """vllm serve a/b -sc '{"model": "a/small", "num_speculative_tokens": 5}'""",
            {"draft_model": "a/small", "speculative_tokens": "5"},
        ),
    ],
)
def test_adapters_swap_space_and_a_draft_model_become_options(line: str, options: dict[str, str]) -> None:
    read = read_launch_line(line)

    assert {key: value for key, value in read.options.items() if key not in ("engine", "model")} == options
    assert read.uncounted == ()


WORDS = [
    "vllm", "serve", "sglang", "-m", "sglang.launch_server", "vllm.entrypoints.openai.api_server", "a/b", "docker",
    "vllm/vllm-openai:v0.21.0", "--model", "--tp", "-tp", "2", "--max-model-len", "32k", "--", "-", "=", "--=3",
    "--speculative-config", "{}", '{"num_speculative_tokens": 2}', "-O3", "--config", "'", "\\", "\n", "#", "&&", ">",
    "--dp-size", "x", "--enable-dp-attention", "--max-total-tokens", "--page-size", "0", "-sc.num_speculative_tokens",
]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=12) | st.text(max_size=60).map(lambda text: [text]))
def test_any_words_are_read_or_refused(words: list[str]) -> None:
    line, refusal = None, ""
    try:
        line = read_launch_line(" ".join(words))
    except ConfigError as error:
        refusal = error.message
    assert (line is None) == bool(refusal)
    assert "\n" not in refusal
    if line is not None:
        assert line.options["engine"] in ("vllm", "sglang")
        assert {*line.options} <= {entry.name for entry in fields(BudgetOptions)}
