"""Runs whose pool a card's budget sizes, and models without their weights."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import Done, run_kvplan

TINY = {
    "model_type": "gemma3_text",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "sliding_window": 9,
    "sliding_window_pattern": 3,
}
RUN = """
workload: {synthetic: {requests: 3, prompt_tokens: 20}, max_tokens: 5}
device: cpu
block_size: 4
"""


@pytest.fixture
def kvplan(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "r.yaml").write_text(RUN)
    return lambda *arguments: run_kvplan(capsys, *arguments)


def test_the_plan_of_a_run_on_an_h100_is_that_of_the_budget(kvplan: Callable[..., Done]) -> None:
    plan = kvplan("run", "llama-3.1-8b-h100", "--dry-run", "--json")
    budget = kvplan(
        *("budget", "llama-3.1-8b", "--gpu", "h100-sxm", "--gpu-memory-utilization", "0.9", "--enforce-eager"),
        *("--dtype", "bfloat16", "--kv-cache-dtype", "bfloat16", "--max-model-len", "8192", "--block-size", "16"),
        *("--max-num-seqs", "256", "--max-num-batched-tokens", "8192", "--json"),
    ).document

    (point,) = plan.document["points"]
    assert point["parts"] == budget["parts"]
    assert sum(part["bytes"] for part in point["parts"]) == budget["gpu"]["total_bytes"]
    assert point["num_blocks"] == budget["capacity"]["num_blocks"]
    # 32 layers x 16 tokens x 8 heads x 128 x K and V x 2 bytes.
    assert point["kv_cache_bytes"] == point["num_blocks"] * 2 * 2**20
    table = kvplan("run", "llama-3.1-8b-h100", "--dry-run").stdout
    assert "Memory of one GPU (h100-sxm): 79.65 GiB" in table
    assert f"{point['num_blocks']:,}" in table


def test_planning_a_run_on_a_card_loads_no_torch() -> None:
    script = (
        "import sys\nfrom kvplan.cli.main import main\n"
        "assert main(('run', 'llama-3.1-8b-h100', '--dry-run')) == 0\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("model", ["./config.json", "."])
def test_a_configuration_alone_is_run_with_random_weights(model: str, kvplan: Callable[..., Done]) -> None:
    pytest.importorskip("torch")
    done = kvplan(
        *("run", "r.yaml", "--set", f"model={model}", "--set", "load=random", "--set", "num_blocks=90"),
        *("--no-recording", "--json"),
    )

    assert done.code == 0, done.stderr
    (point,) = done.document["points"]
    assert point["measured"]["output_tokens"] == 15
    assert point["measured"]["kv_cache_bytes"] == point["planned"]["kv_cache_bytes"]


def test_the_groups_of_a_planned_run_are_shown(kvplan: Callable[..., Done]) -> None:
    arguments = ("--set", "model=./config.json", "--set", "load=random", "--set", "num_blocks=90")
    (point,) = kvplan("run", "r.yaml", *arguments, "--dry-run", "--json").document["points"]

    # Four sliding layers in two groups of two, beside the two full ones.
    window = {"kind": "sliding_window", "window": 9, "layers": 2}
    assert point["groups"] == [window, window, {"kind": "full", "window": None, "layers": 2}]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("model=llama-3.1-8b", "num_blocks=9"), "the model profile 'llama-3.1-8b' comes without weights"),
        (("model=llama-3.1-8b", "load=random"), "expected one of available_kv (such as 48MiB), num_blocks and gpu"),
        (("model=llama-3.1-8b", "load=random", "gpu=h100sxm"), "gpu: no GPU profile named 'h100sxm'; did you mean"),
        (
            ("model=llama-3.1-8b", "load=random", "num_blocks=9", "gpu=h200"),
            "num_blocks and gpu, got num_blocks and gpu",
        ),
        (
            ("model=llama-3.1-8b", "load=random", "num_blocks=9", "gpu_memory_utilization=0.5"),
            "gpu_memory_utilization: it is a share of a card, and key gpu names none",
        ),
        (("model=jamba-v0.1", "load=random", "num_blocks=9"), "model_type: 'jamba' is not supported; supported: llama"),
        (("model=llama-3.1-8b", "load=chance", "num_blocks=9"), "load: expected one of weights, random, got 'chance'"),
    ],
)
def test_what_does_not_go_together_is_refused_in_a_line(
    settings: tuple[str, ...], message: str, kvplan: Callable[..., Done]
) -> None:
    done = kvplan("run", "r.yaml", "--dry-run", *(part for setting in settings for part in ("--set", setting)))

    assert done.code == 2
    assert message in " ".join(done.stderr.split())
    assert done.stdout == ""


def test_random_weights_that_no_memory_holds_are_refused_before_they_are_made(kvplan: Callable[..., Done]) -> None:
    pytest.importorskip("torch")
    settings = ("model=llama-3.1-405b", "load=random", "num_blocks=9", "kv_cache_dtype=float32")
    done = kvplan("run", "r.yaml", *(part for setting in settings for part in ("--set", setting)), "--no-recording")

    assert done.code == 1
    # 405,853,388,800 parameters of 4 bytes.
    assert "the weights take 1.48 TiB in float32, and" in " ".join((done.stdout + done.stderr).split())
