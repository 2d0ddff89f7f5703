"""A real vLLM under load, with a pool that is too small: what it counts beside what was planned.

Run where a server can be started: `KVPLAN_VLLM_PROGRAM` says how vLLM is called (`vllm serve`), `KVPLAN_VLLM_WEIGHTS`
names a folder of SmolLM2-135M in Hugging Face form, and `KVPLAN_VLLM_ARGUMENTS` holds further words of the launch line.
"""

import os
from pathlib import Path

import pytest

from kvplan.load_profiles import load_run
from kvplan.prepare import prepare
from kvplan.run import run_point
from kvplan.run_model import LiveModels

pytest.importorskip("httpx", reason="needs the extra pagedkv[serving]")

_PROFILE = """
target: vllm
model: smollm2-135m
dtype: bfloat16
kv_cache_dtype: bfloat16
block_size: 32
num_blocks: 40
max_model_len: 512
max_num_seqs: 16
max_num_batched_tokens: 512
workload:
  max_tokens: 80
  synthetic: {requests: 24, prompt_tokens: {low: 60, high: 150}, shared_prefix_tokens: 64}
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_vllm_that_preempts_counts_what_was_planned(tmp_path: Path) -> None:
    program, weights = os.environ.get("KVPLAN_VLLM_PROGRAM"), os.environ.get("KVPLAN_VLLM_WEIGHTS")
    if not program or not weights:
        pytest.skip("no server is configured: KVPLAN_VLLM_PROGRAM and KVPLAN_VLLM_WEIGHTS say how to start one")
    arguments = os.environ.get("KVPLAN_VLLM_ARGUMENTS", "")
    server = f"server: {{program: {program!r}, weights: {weights!r}, arguments: {arguments!r}}}"
    (tmp_path / "p.yaml").write_text(f"{_PROFILE}{server}\n")
    (prepared,) = prepare([load_run(str(tmp_path / "p.yaml"))])

    result = run_point(prepared, prepared.requests(), models=LiveModels())

    planned, measured = result.planned, result.measured
    assert (result.outcome, result.message) == ("finished", "")
    assert measured is not None
    assert result.environment["server"].startswith("vllm ")
    assert (measured.num_blocks, measured.block_size) == (40, 32)
    assert (measured.finished_requests, measured.output_tokens) == (24, 24 * 80)
    assert measured.output_tokens == planned.output_tokens
    # All but the first request find the two whole blocks that they share.
    assert measured.first_prefix_hit_tokens == planned.first_prefix_hit_tokens == 23 * 64
    assert measured.peak_blocks_in_use == planned.peak_blocks_in_use == 39
    # Over HTTP not all come before the first step, so who runs with whom differs a little.
    assert measured.preemptions is not None
    assert planned.preemptions is not None
    assert measured.preemptions > 0
    assert abs(measured.preemptions - planned.preemptions) <= 0.3 * planned.preemptions
