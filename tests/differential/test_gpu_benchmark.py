"""The parts of `benchmarks.gpu` on a CPU and tiny shapes: that they run and add up, not what they measure."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from kvengine.model_config.huggingface import config_from_mapping
from kvengine.spec import KVDtype
from kvengine.torch_runner import random_model
from kvplan.gpu_spec import GpuProfile
from tests.differential.test_kernels import run_python
from tests.support import ROOT

pytest.importorskip("triton", reason="needs triton, which has no wheel for this machine")

from benchmarks import gpu
from benchmarks.on_gpu.attention import Shape, decode_shapes
from benchmarks.on_gpu.engine import engine_figure, pool_figures
from benchmarks.on_gpu.memory import copy_bytes_per_s
from benchmarks.on_gpu.parts import PARTS
from benchmarks.on_gpu.random_model import LLAMA_3_1_8B, weight_bytes_read

CPU = torch.device("cpu")
TINY = config_from_mapping(
    {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 60,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
    },
    where="tiny",
)

ATTENTION = """
    import json
    from dataclasses import asdict
    import torch
    from benchmarks.on_gpu.attention import Shape, attention_figures

    tiny = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "dtype": torch.float32, "cache_dtype": torch.float32,
            "distinct_bytes": 1}
    shapes = [Shape(batch=2, context=40, **tiny), Shape(batch=9, context=99, **tiny), Shape(batch=1, context=9, **tiny),
              Shape(batch=1, context=8, **{**tiny, "num_heads": 3})]
    seconds = iter([1.0] * 9 + [0.0])
    figures = attention_figures(
        shapes, torch.device("cpu"), lambda: 30_000, chunks=(8,), seconds_left=lambda: next(seconds))
    print(json.dumps([asdict(figure) for figure in figures]))
"""


def test_every_point_says_what_was_read_and_how_fast_or_why_it_was_skipped() -> None:
    figures = json.loads(run_python("-c", textwrap.dedent(ATTENTION), TRITON_INTERPRET="1"))

    ours = [figure for figure in figures if figure["kernel"] == "decode"]
    assert [figure["kernel"] for figure in figures] == [
        "prefill of 8", "prefill of 8", *["decode", "torch SDPA, contiguous"] * 4,
    ]  # fmt: skip
    # 2 requests x 40 tokens x K and V x 2 heads x 16 x 4 bytes; the second needs 9 x 112 slots x 256 bytes.
    assert ours[0]["kv_bytes"] == 20_480
    assert ours[0]["bytes_per_s"] == pytest.approx(20_480 / ours[0]["seconds"])
    assert (ours[1]["seconds"], ours[1]["skipped"]) == (None, "needs 258048 bytes, 30000 may be taken")
    assert ours[2]["seconds"] > 0
    # What fails, and what there is no time for, says so.
    assert ours[3]["skipped"] == "failed: paged_decode: 3 query heads are no multiple of 2 KV heads"
    assert figures[-1]["skipped"] == "out of time"


def test_the_points_that_say_most_come_first() -> None:
    shapes = decode_shapes(batches=(1, 16, 256), contexts=(128, 1024, 4096), block_sizes=(8, 16, 64))

    # Batches and contexts at 16; both layouts and fp8 in the middle; then every other block size, the middle first.
    assert len(shapes) == 9 + 3 + 2 * 9 == len(set(shapes))
    assert {shape.block_size for shape in shapes} == {8, 16, 64}
    assert [(shape.batch, shape.context, shape.block_size) for shape in shapes[12:14]] == [
        (16, 1024, 8),
        (16, 1024, 64),
    ]
    # Llama-3.1-8B keeps 4,096 bytes a token and layer in 16 bits: 16 requests of 1,024 tokens are 64 MiB, and 8 layers
    # of them 512 MiB; in 8 bits they are half as large, so 16 layers take turns.
    middle = Shape(batch=16, context=1024)
    assert (middle.kv_bytes, middle.num_layers) == (64 * 2**20, 8)
    assert [(shape.kv_bytes, shape.num_layers) for shape in shapes[10:12]] == [(32 * 2**20, 16)] * 2


def test_a_decode_step_of_llama_8b_reads_15_gigabytes_of_weights() -> None:
    assert weight_bytes_read(LLAMA_3_1_8B, torch.bfloat16) == 15_009_849_344


def test_the_engine_is_held_against_reading_weights_and_cache_once_a_step() -> None:
    model = random_model(TINY, dtype=KVDtype.FLOAT32, device="cpu")

    figure = engine_figure(model, KVDtype.FLOAT32, batch=3, prompt_tokens=8, output_tokens=6, copy_bytes_per_s=1e6)

    # Weights: 2 layers of 32 x (32 + 32) + 32 x 32 + 3 x 32 x 48 + 64 = 7,744, norm 32, head 60 x 32: 17,440 x 4 bytes.
    # Cache: 3 requests of 8 + 3 tokens, 2 layers x 2 x 2 heads x 8 x 4 bytes = 256 a token: 8,448.
    assert figure.roofline_tokens_per_s == pytest.approx(3 * 1e6 / (17_440 * 4 + 8_448))
    assert figure.decode_tokens_per_s == pytest.approx(3 / figure.step_s)
    assert figure.prefill_tokens_per_s > 0


def test_a_pool_that_is_too_small_preempts_at_every_block_size() -> None:
    model = random_model(TINY, dtype=KVDtype.FLOAT32, device="cpu")

    figures = pool_figures(
        model, KVDtype.FLOAT32, block_sizes=(4, 8), pool_tokens=64, requests=4, prompt_tokens=12, output_tokens=16,
        seconds_left=lambda: 1.0,
    )  # fmt: skip

    # Four requests of 28 tokens want 112 of 64.
    assert [(figure.block_size, figure.num_blocks) for figure in figures] == [(4, 17), (8, 9)]
    assert all(figure.preemptions > 0 for figure in figures)
    assert all(figure.recomputed_tokens > 0 for figure in figures)


def test_a_copy_reads_and_writes() -> None:
    assert copy_bytes_per_s(CPU, size_bytes=2**20) > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_nothing_is_measured() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks.gpu"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "error: torch sees no CUDA device, so there is nothing to measure\n"


def test_an_unknown_part_is_refused() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks.gpu", "decode"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "unknown part 'decode'; there are bandwidth, correctness, attention, engine, pool" in done.stderr


def test_a_dry_run_goes_through_the_parts_on_the_cpu_and_claims_nothing(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    run_python("-m", "benchmarks.gpu", "correctness", "engine", "pool", "--dry-run", "--out", str(out))

    document = json.loads(out.read_text())
    assert document["dry_run"] is True
    assert document["machine"]["gpu"] == "none: a dry run on the CPU, whose figures mean nothing"
    assert "gpu_profile" not in document
    assert {name: part["outcome"] for name, part in document["parts"].items()} == dict.fromkeys(
        ("bandwidth", "correctness", "engine", "pool"), "ok"
    )
    assert set(document["correctness"].values()) == {"ok"}
    assert [(figure["batch"], figure["backend"]) for figure in document["engine"]] == [(1, "triton"), (2, "triton")]
    assert document["pool"][0]["preemptions"] > 0


def test_a_part_that_fails_or_hangs_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    document: dict[str, Any] = {"parts": {}}
    assert gpu.in_a_process("no such part", document, dry_run=True) == {}
    assert document["parts"]["no such part"]["outcome"].startswith("failed with 2: error: unknown part")

    monkeypatch.setattr(gpu, "_GRACE_S", -599.9)
    assert gpu.in_a_process("bandwidth", document, dry_run=True) == {}
    assert document["parts"]["bandwidth"]["outcome"] == "ended after 0.1 s"


def test_all_parts_together_stay_under_five_minutes() -> None:
    assert sum(seconds for _, seconds in PARTS.values()) < 300


def test_what_a_run_learns_of_a_card_is_a_gpu_profile() -> None:
    about = {"gpu": "NVIDIA H100 80GB HBM3", "capability": "9.0", "memory_bytes": str(81089 * 2**20), "driver": "570"}
    document = {"machine": {**about, "date": "2026-11-30"}, "copy_bytes_per_s": 2.9e12}

    profile = msgspec.convert(gpu.gpu_profile(document), GpuProfile)

    assert profile.process_memory_mib is not None
    assert profile.process_memory_mib.value == 81089
    assert profile.bandwidth_gb_per_s is not None
    assert profile.bandwidth_gb_per_s.value == 2900
    assert profile.bandwidth_gb_per_s.source.startswith("measured: bytes a copy moves; python -m benchmarks.gpu, 2026")
