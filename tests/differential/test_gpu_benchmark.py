"""The parts of `benchmarks.gpu` on a CPU and tiny shapes: that they run and add up, not what they measure."""

import json
import subprocess
import sys
import textwrap

import pytest
import torch

from kvengine.model_config.huggingface import config_from_mapping
from kvengine.spec import KVDtype
from kvengine.torch_runner import random_model
from tests.differential.test_kernels import run_python
from tests.support import ROOT

pytest.importorskip("triton", reason="needs triton, which has no wheel for this machine")

from benchmarks.on_gpu.attention import Shape, decode_shapes
from benchmarks.on_gpu.engine import engine_figure, pool_figures
from benchmarks.on_gpu.memory import copy_bytes_per_s
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
    shapes = [Shape(batch=2, context=40, **tiny), Shape(batch=9, context=99, **tiny), Shape(batch=1, context=9, **tiny)]
    figures = attention_figures(shapes, torch.device("cpu"), lambda: 30_000, chunks=())
    print(json.dumps([asdict(figure) for figure in figures]))
"""


def test_every_point_says_what_was_read_and_how_fast_or_why_it_was_skipped() -> None:
    figures = json.loads(run_python("-c", textwrap.dedent(ATTENTION), TRITON_INTERPRET="1"))

    ours = [figure for figure in figures if figure["kernel"] == "decode"]
    assert {figure["kernel"] for figure in figures} >= {"decode", "torch SDPA, contiguous"}
    # 2 requests x 40 tokens x K and V x 2 heads x 16 x 4 bytes; the second needs 9 x 112 slots x 256 bytes.
    assert ours[0]["kv_bytes"] == 20_480
    assert ours[0]["bytes_per_s"] == pytest.approx(20_480 / ours[0]["seconds"])
    assert ours[1]["seconds"] is None
    assert ours[1]["skipped"] == "needs 258048 bytes, 30000 may be taken"
    assert ours[2]["seconds"] > 0


def test_the_points_vary_one_thing_at_a_time_around_the_middle() -> None:
    shapes = decode_shapes(batches=(1, 16, 256), contexts=(128, 1024, 4096), block_sizes=(8, 16, 64))

    assert len(shapes) == 9 + 2 + 3
    assert {shape.block_size for shape in shapes} == {8, 16, 64}
    # Llama-3.1-8B keeps 4,096 bytes a token and layer in 16 bits: 16 requests of 1,024 tokens are 64 MiB, and 8 layers
    # of them 512 MiB; in 8 bits they are half as large, so 16 layers take turns.
    middle = Shape(batch=16, context=1024)
    assert (middle.kv_bytes, middle.num_layers) == (64 * 2**20, 8)
    assert [(shape.kv_bytes, shape.num_layers) for shape in shapes[-2:]] == [(32 * 2**20, 16)] * 2


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
        model, KVDtype.FLOAT32, block_sizes=(4, 8), pool_tokens=64, requests=4, prompt_tokens=12, output_tokens=16
    )

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
    assert "unknown part 'decode'; there are correctness, bandwidth, attention, engine, pool" in done.stderr
