"""Configurations as they were published: the engine reads them as the planner does, or refuses them with the reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvengine.errors import ConfigError
from kvengine.model_config.decoder import ExpertFeed
from kvengine.model_config.huggingface import SUPPORTED_MODEL_TYPES, config_from_json
from kvengine.model_config.parameters import num_parameters
from kvengine.spec import KVDtype
from kvplan.engine_layout import decoder_layers, spec_layers
from kvplan.model_spec import load_model
from tests.support import SHARED, shared_path

REFUSED = {
    "Alibaba-NLP__gte-Qwen2-7B-instruct": "is_causal: False is not supported",
    "Qwen__Qwen3-32B-FP8-Static-PerTensor": "quantization_config: None weights are not supported",
    "intfloat__e5-mistral-7b-instruct": "architectures: ['MistralModel'] is not supported",
    "meta-llama__Meta-Llama-3.1-405B-Instruct-FP8": "quantization_config: 'fbgemm_fp8' weights are not supported",
    "xai-org__grok-1": "architectures: ['Grok1ModelForCausalLM'] is not supported",
}
REFERENCE = SHARED / "models" / "kv_reference.json"
COUNTED: dict[str, Any] = json.loads(REFERENCE.read_text())["models"] if REFERENCE.exists() else {}


def is_known_type(path: Path) -> bool:
    return json.loads(path.read_text()).get("model_type") in SUPPORTED_MODEL_TYPES


PATHS = {path.parent.name: path for path in sorted(SHARED.glob("models/*/config.json")) if is_known_type(path)}


@pytest.mark.parametrize("name", sorted(PATHS.keys() - REFUSED) or ["models"])
def test_a_published_config_is_the_model_that_the_planner_sees(name: str) -> None:
    shared_path("models")
    model, planned = config_from_json(PATHS[name]), load_model(str(PATHS[name]))

    layers = decoder_layers(model, KVDtype.BFLOAT16, 16)
    assert layers == spec_layers(planned, KVDtype.BFLOAT16, 16, tensor_parallel=1)
    for check in COUNTED[name]["evidence"] or []:
        if "total_parameters" in check:
            feeds = [layer.feed for layer in model.layers if isinstance(layer.feed, ExpertFeed)]
            biases = sum(feed.num_experts for feed in feeds if feed.selection_bias)
            # The biases by which DeepSeek-V3 chooses experts are no parameters in its own class.
            assert num_parameters(model) - biases == check["total_parameters"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_only_looks_like_a_known_model_is_refused(name: str) -> None:
    path = shared_path(f"models/{name}") / "config.json"
    with pytest.raises(ConfigError) as caught:
        config_from_json(path)
    assert f"{path}: {REFUSED[name]}" in str(caught.value)
