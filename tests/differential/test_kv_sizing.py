"""Blocks, tokens, concurrency and start-up checks against vLLM 0.32's own answers for full attention."""

import json
from dataclasses import replace
from typing import Any

import pytest

from kvengine.spec import KVCacheSpec, KVDtype
from kvplan.capacity import EngineKind, count_blocks
from tests.support import SHARED, shared_path

_CASES = SHARED / "oracle" / "kv_sizing.json"


def full_attention_cases() -> list[Any]:
    """The cases in which all layers are alike and keep every token."""
    if not _CASES.exists():
        return [pytest.param({}, id="absent")]
    cases = json.loads(_CASES.read_text())["cases"]
    plain = [
        case
        for case in cases
        if len(set(case["input"]["layers"])) == 1 and all(k["type"] == "full" for k in case["input"]["kinds"].values())
    ]
    return [pytest.param(case, id=case["input"]["name"]) for case in plain]


@pytest.mark.parametrize("case", full_attention_cases())
def test_a_pool_is_sized_as_vllm_sizes_it(case: dict[str, Any]) -> None:
    shared_path("oracle/kv_sizing.json")
    given, wanted = case["input"], case["vllm"]
    kind = given["kinds"][given["layers"][0]]
    spec = KVCacheSpec(
        num_layers=len(given["layers"]),
        num_kv_heads=kind["num_kv_heads"],
        head_dim=kind["head_size"],
        head_dim_v=kind["head_size"],
        dtype=KVDtype("fp8" if kind["dtype"].startswith("float8") else kind["dtype"]),
        block_size=given["block_size"],
    )
    capacity = count_blocks(
        spec,
        EngineKind.VLLM,
        available_bytes=min(given["available_memory"]),
        max_model_len=given["max_model_len"],
        override=given.get("num_gpu_blocks_override"),
    )

    assert spec.block_bytes == wanted["bytes_per_block"]
    assert capacity.needed_bytes == wanted["needed_bytes_one_request"]
    assert capacity.checked_bytes == wanted["checked_memory_bytes"]
    assert capacity.longest_fit == wanted["estimated_max_model_len"]
    if given.get("auto_fit"):
        capacity = replace(capacity, max_model_len=capacity.longest_fit)
    assert capacity.holds_one_request == wanted["accepted"]
    if wanted["accepted"]:
        assert capacity.num_blocks == wanted["num_blocks"]
        assert capacity.usable_blocks == wanted["usable_blocks"]
        assert capacity.kv_cache_tokens == wanted["kv_cache_size_tokens"]
        assert float(capacity.max_concurrency) == wanted["max_concurrency"]
