"""Pools planned from model configurations against vLLM 0.32's own answers for the same models.

The answers in `kv_sizing.json` come from specs that were built by hand; here the specs follow from `config.json`.
"""

import json
from typing import Any

import pytest

from kvengine.spec import KVDtype
from kvplan.capacity import Capacity
from kvplan.engine_inputs import EngineInputs
from kvplan.model_config import model_from_config
from kvplan.model_spec import ModelSpec
from kvplan.plan import MemoryInputs, PlanInputs, make_plan
from tests.support import SHARED, shared_path

_CASES = SHARED / "oracle" / "kv_sizing.json"
CASES: dict[str, Any] = (
    {case["input"]["name"]: case for case in json.loads(_CASES.read_text())["cases"]} if _CASES.exists() else {}
)

GEMMA3_27B = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 1024,
        "max_position_embeddings": 131072,
    },
}
GPT_OSS_20B = {"model_type": "gpt_oss", "num_hidden_layers": 24}
FP8 = {"kv_dtype": KVDtype.FP8}
# Case: a folder of real configurations or a configuration, and how the engine is started.
PLANNED: dict[str, tuple[str | dict[str, Any], dict[str, Any]]] = {
    "llama31_8b_52p32gib": ("meta-llama__Llama-3.1-8B-Instruct", {}),
    "llama31_8b_26785": ("meta-llama__Llama-3.1-8B-Instruct", {}),
    "llama31_8b_fp8": ("meta-llama__Llama-3.1-8B-Instruct", FP8),
    "llama31_70b_tp4_b32": ("meta-llama__Meta-Llama-3.1-70B", {"tensor_parallel": 4, "block_size": 32}),
    "mistral_7b_v01_swa": ("mistralai__Mistral-7B-v0.1", {"max_model_len": 32768}),
    "gemma3_27b": (GEMMA3_27B, {}),
    "gemma3_27b_hybrid_off": (GEMMA3_27B, {"hybrid_manager": False}),
    "gpt_oss_20b": (GPT_OSS_20B, {}),
    "deepseek_v3_mla_b64": ("deepseek-ai__DeepSeek-R1", {}),
    "deepseek_v32_sparse_fp8": ("nvidia__DeepSeek-V3.2-NVFP4", {}),
    "llama4_scout_default": ("meta-llama__Llama-4-Scout-17B-16E-Instruct", {"tensor_parallel": 8}),
    "jamba_v01": ("ai21labs__Jamba-v0.1", {"prefix_caching": False}),
    "qwen3_next_80b_align": ("Qwen__Qwen3-Next-80B-A3B-Instruct", {"tensor_parallel": 4}),
    "too_little_memory": ("meta-llama__Llama-3.1-8B-Instruct", {}),
    "auto_fit": ("meta-llama__Llama-3.1-8B-Instruct", {"fit_max_model_len": True}),
    "override_1000_blocks": ("meta-llama__Llama-3.1-8B-Instruct", {"num_blocks": 1000}),
}


def a_model(source: str | dict[str, Any]) -> ModelSpec:
    config = (
        source if isinstance(source, dict) else json.loads((SHARED / "models" / source / "config.json").read_text())
    )
    # The caches of these cases are of 16 bits unless they say otherwise.
    config.pop("quantization_config", None)
    return model_from_config(config, name="x", source="x")


def planned(name: str) -> Capacity:
    given = CASES[name]["input"]
    source, engine = PLANNED[name]
    kind = given["kinds"][given["layers"][0]]
    dtype = KVDtype.FP8 if kind.get("bytes_per_token") == 656 else None
    inputs = PlanInputs(
        model=a_model(source),
        memory=MemoryInputs(available_kv_bytes=min(given["available_memory"])),
        engine=EngineInputs(
            **{
                "max_model_len": None if given.get("auto_fit") else given["max_model_len"],
                "max_num_batched_tokens": given["max_num_batched_tokens"],
                "kv_dtype": dtype,
                **engine,
            }
        ),
    )
    return make_plan(inputs).capacity


@pytest.mark.parametrize("name", sorted(PLANNED))
def test_a_configuration_gives_the_pool_that_vllm_has(name: str) -> None:
    shared_path("oracle/kv_sizing.json")
    shared_path("models")
    wanted, capacity = CASES[name]["vllm"], planned(name)

    assert capacity.block_bytes == wanted["bytes_per_block"]
    if not CASES[name]["input"].get("auto_fit"):
        assert capacity.needed_bytes == wanted["needed_bytes_one_request"]
        assert capacity.holds_one_request == wanted["accepted"]
    assert capacity.longest_fit == wanted["estimated_max_model_len"]
    if wanted["accepted"]:
        assert capacity.num_blocks == wanted["num_blocks"]
        assert capacity.kv_cache_tokens == wanted["kv_cache_size_tokens"]
        assert float(capacity.max_concurrency) == wanted["max_concurrency"]
    groups = [(group["num_layers"], group["block_size"], group["page_size_bytes"]) for group in wanted["groups"]]
    assert sorted(groups) == sorted(
        (len(group.layers), group.block_size, group.page_bytes) for group in capacity.layout.groups
    )


def test_every_case_but_the_draft_model_of_another_is_planned() -> None:
    shared_path("oracle/kv_sizing.json")

    assert set(CASES) - set(PLANNED) == {"gpt_oss_20b_plus_one_full"}
