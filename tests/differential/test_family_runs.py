"""Models with windows, several groups and latent rows through a whole run: what was planned is what is measured."""

from pathlib import Path

import msgspec
import pytest

pytest.importorskip("transformers", reason="needs transformers, which builds these models")

from kvplan.figures import Figures
from kvplan.load_profiles import load_run
from kvplan.prepare import PreparedPoint, prepare
from kvplan.results import PointResult
from kvplan.run import run_point
from kvplan.run_model import LiveModels
from tests.differential.model_families import FAMILIES, save

WORKLOAD = """
about: test
synthetic: {requests: 10, prompt_tokens: 30, shared_prefix_tokens: 12}
max_tokens: 20
"""
COUNTED = (
    *("num_blocks", "kv_cache_bytes", "peak_blocks_in_use", "peak_running", "preemptions", "prefix_hit_tokens"),
    *("recomputed_tokens", "steps", "scheduled_tokens", "output_tokens", "finished_requests"),
)
CASES = {
    "Gemma 3": (70, False),
    "Gemma 2": (60, True),
    "Qwen2, windows above": (60, True),
    "Mistral, window": (18, False),
    "DeepSeek-V2-Lite": (40, True),
}
"""Blocks of each family's pool, too few for the six requests that may run; and whether some are preempted for it.

Admission sets aside what windows may need while a prompt is computed, which is more than they hold later: where they
weigh most, requests wait instead.
"""


def run_family(family: str, folder: Path, *keys: str) -> tuple[PreparedPoint, PointResult]:
    save(FAMILIES[family].build(), folder / "model")
    (folder / "w.yaml").write_text(WORKLOAD)
    lines = ["model: ./model", "workload: ./w.yaml", "block_size: 4", "max_num_seqs: 6", "device: cpu", *keys]
    (folder / "p.yaml").write_text("\n".join(lines))
    (prepared,) = prepare([load_run(str(folder / "p.yaml"))])
    return prepared, run_point(prepared, prepared.requests(), models=LiveModels(), debug=True)


def counted(figures: Figures | None) -> dict[str, object]:
    values = msgspec.structs.asdict(figures) if figures is not None else {}
    return {key: values[key] for key in COUNTED}


@pytest.mark.parametrize("family", CASES)
def test_blocks_steps_and_preemptions_are_those_of_the_plan(family: str, tmp_path: Path) -> None:
    num_blocks, preempts = CASES[family]
    prepared, result = run_family(family, tmp_path, f"num_blocks: {num_blocks}", "max_num_batched_tokens: 48")

    assert result.outcome == "finished"
    assert result.measured is not None
    assert bool(result.measured.preemptions) == preempts
    assert result.measured.peak_running is not None
    assert result.measured.peak_running < 6, "the pool was too large to show anything"
    assert counted(result.measured) == counted(result.planned)
    assert result.measured.kv_cache_bytes == num_blocks * prepared.config.kv_cache.block_bytes


@pytest.mark.parametrize("allocator", ["contiguous", "buddy", "token_level"])
def test_allocators_without_groups_run_models_with_windows(allocator: str, tmp_path: Path) -> None:
    keys = ("num_blocks: 60", "max_num_batched_tokens: 48", "max_model_len: 64", f"allocator: {allocator}")
    _, result = run_family("Gemma 3", tmp_path, *keys)

    assert result.outcome == "finished"
    assert counted(result.measured) == counted(result.planned)


def test_requests_are_swapped_out_and_in_with_the_blocks_of_all_their_groups(tmp_path: Path) -> None:
    keys = ("num_blocks: 60", "max_num_batched_tokens: 48", "preemption: swap", "swap_space: 1MiB")
    _, result = run_family("Gemma 2", tmp_path, *keys)

    assert result.outcome == "finished"
    assert result.measured is not None
    assert result.measured.preemptions
    assert counted(result.measured) == counted(result.planned)


def test_a_pool_in_bytes_becomes_the_planners_blocks(tmp_path: Path) -> None:
    prepared, result = run_family("Gemma 3", tmp_path, "available_kv: 100KiB", "max_num_batched_tokens: 48")

    # Blocks of two layers: 2 x 4 tokens x 2 heads x 8 x K and V x 4 bytes = 1,024.
    assert prepared.config.num_blocks == 100
    assert result.measured is not None
    assert result.measured.kv_cache_bytes == 102_400
