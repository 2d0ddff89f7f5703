"""Launch lines of vLLM and SGLang, made from runs: read back by the reader of such lines."""

import shlex
from pathlib import Path

import pytest

from kvengine.errors import ConfigError
from kvplan.launch_line import read_launch_line
from kvplan.load_profiles import load_run, load_sweep
from kvplan.prepare import PreparedPoint, prepare
from kvplan.serving.launch import launch_words

WORKLOAD = "workload: {synthetic: {requests: 2, prompt_tokens: 9}, max_tokens: 3}"


def a_point(folder: Path, *keys: str) -> PreparedPoint:
    (folder / "p.yaml").write_text("\n".join(("model: llama-3.1-8b", WORKLOAD, *keys)))
    (prepared,) = prepare([load_run(str(folder / "p.yaml"))])
    return prepared


def words_of(folder: Path, *keys: str) -> list[str]:
    if not any(key.startswith("server") for key in keys):
        keys = (*keys, "server: {weights: org/model}")
    return launch_words(a_point(folder, *keys).point.profile, weights="org/model", port=18000)


EVERYTHING = (
    *("block_size: 32", "num_blocks: 1000", "max_model_len: 4096", "max_num_seqs: 64", "max_num_batched_tokens: 1024"),
    *("tensor_parallel: 4", "kv_cache_dtype: fp8", "dtype: bfloat16", "prefix_caching: false"),
    "gpu_memory_utilization: 0.8",
)


def test_vllm_is_told_what_the_run_says(tmp_path: Path) -> None:
    words = words_of(tmp_path, "target: vllm", *EVERYTHING)
    line = read_launch_line(shlex.join(words))

    assert words[:3] == ["vllm", "serve", "org/model"]
    told = {
        "model": "org/model",
        "engine": "vllm",
        "block_size": "32",
        "num_blocks_override": "1000",
        "max_model_len": "4096",
        "max_num_seqs": "64",
        "max_num_batched_tokens": "1024",
        "tp": "4",
        "kv_cache_dtype": "fp8",
        "dtype": "bfloat16",
        "prefix_caching": "False",
        "gpu_memory_utilization": "0.8",
    }
    assert {key: str(value) for key, value in line.options.items()} == told


def test_sglang_is_told_what_the_run_says(tmp_path: Path) -> None:
    words = words_of(tmp_path, "target: sglang", *EVERYTHING)
    line = read_launch_line(shlex.join(words))

    assert words[:4] == ["python", "-m", "sglang.launch_server", "--model-path"]
    # Pages of 32: 999 usable blocks.
    assert words[words.index("--max-total-tokens") + 1] == str(999 * 32)
    assert words[words.index("--page-size") + 1] == "32"
    assert "--disable-radix-cache" in words
    assert line.options["engine"] == "sglang"
    assert (line.options["model"], str(line.options["tp"])) == ("org/model", "4")


def test_what_a_run_does_not_say_is_left_to_the_engine(tmp_path: Path) -> None:
    words = words_of(tmp_path, "target: vllm")

    absent = ("--dtype", "--kv-cache-dtype", "--num-gpu-blocks-override", "--tensor-parallel-size", "--max-model-len")
    assert not {*words} & {*absent}
    assert "--enable-prefix-caching" in words


def test_another_program_and_more_words_can_be_given(tmp_path: Path) -> None:
    program = "env A=1 python -m vllm.entrypoints.openai.api_server"
    server = f"server: {{weights: m, program: {program}, arguments: --enforce-eager}}"
    words = words_of(tmp_path, "target: vllm", server)

    assert words[:5] == ["env", "A=1", "python", "-m", "vllm.entrypoints.openai.api_server"]
    assert words[5:7] == ["--model", "org/model"]
    assert words[-1] == "--enforce-eager"


def test_gpus_are_a_key_of_a_grid_for_a_served_model(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        f"run:\n  model: llama-3.1-8b\n  target: vllm\n  {WORKLOAD}\n  server: {{weights: org/model}}\n"
        "grid:\n  tensor_parallel: [1, 2, 4]\n  server.arguments: ['', --enable-expert-parallel]\n"
    )
    points = prepare(load_sweep(str(tmp_path / "s.yaml")))

    lines = [launch_words(one.point.profile, weights="m", port=1) for one in points]
    assert len({one.fingerprint for one in points}) == len(points) == 6
    assert ["--tensor-parallel-size" in line for line in lines] == [False, False, True, True, True, True]
    assert [line[-1] == "--enable-expert-parallel" for line in lines] == [False, True] * 3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("target: vllm\nserver: {url: 'http://127.0.0.1:1'}", "server.url: a server that is started"),
        ("target: openai\nserver: {url: 'http://127.0.0.1:1', weights: m}", "server.weights: only the launch line"),
        ("target: vllm\nserver: {command: x, arguments: --y}", "server.arguments: only the launch line"),
        ("target: vllm", "server.weights: llama-3.1-8b is a model profile, which has no weights"),
        ('target: vllm\nserver: {weights: m, arguments: "\'x"}', "server: arguments is no part of a command line"),
        ("target: vllm\nserver: {weights: m, program: ' '}", "server: expected words as program, got ' '"),
        ("target: vllm\neviction_policy: lfu", "eviction_policy: vllm cannot be told so, got lfu"),
        ("target: sglang\navailable_kv: 1GiB", "available_kv: sglang cannot be told so"),
        ("target: vlm", "did you mean 'vllm'"),
        ("target: vllm\nallocator: buddy", "a server has an allocator of its own"),
        ("num_blocks: 9\ntarget: engine\ntensor_parallel: 2", "tensor_parallel: a live run has one device, got 2"),
    ],
)
def test_a_target_that_makes_no_sense_is_refused(tmp_path: Path, keys: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        a_point(tmp_path, keys)
