"""Groups, blocks, concurrency and parameters of whole models, against what vLLM's own model classes answered."""

import json
from typing import Any

import pytest

from kvplan.engine_inputs import EngineInputs
from kvplan.model_config import model_from_config
from kvplan.plan import MemoryInputs, PlanInputs, make_plan
from tests.support import ROOT

GOLDEN: dict[str, Any] = json.loads((ROOT / "tests/golden/kv_groups/vllm_0_32.json").read_text())


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: str(case["name"]))
def test_a_model_is_grouped_and_counted_as_vllm_does(case: dict[str, Any]) -> None:
    model = model_from_config(case["config"], name=case["name"], source=case["name"])
    engine = EngineInputs(
        block_size=GOLDEN["block_size"],
        max_num_batched_tokens=GOLDEN["max_num_batched_tokens"],
        max_model_len=case["max_model_len"],
    )
    memory = MemoryInputs(available_kv_bytes=GOLDEN["available_kv_bytes"])
    capacity = make_plan(PlanInputs(model=model, memory=memory, engine=engine)).capacity

    groups = sorted([len(group.layers), group.block_size, group.page_bytes] for group in capacity.layout.groups)
    assert groups == case["groups"]
    assert capacity.num_blocks == case["num_blocks"]
    assert float(capacity.max_concurrency) == pytest.approx(case["max_concurrency"], rel=1e-12)
    assert model.weights is not None
    # Biases that only vLLM's classes have are 62 thousand parameters at most here.
    assert model.weights.parameters == pytest.approx(case["parameters"], abs=70_000)
