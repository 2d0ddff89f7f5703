"""Damaged model files are refused in one line or read; they never end in a traceback."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvengine.errors import ConfigError
from kvengine.gguf_file import read_gguf
from kvengine.model_config.read import read_config
from tests.unit.test_decoder_config import LLAMA_32_1B
from tests.unit.test_gguf_file import a_gguf
from tests.unit.test_model_families_config import BASE, DEEPSEEK, QWEN3_MOE

ODD_VALUES: list[Any] = [
    None,
    -1,
    0,
    2**39,
    2**63,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    True,
    "",
    "a\nb",
    [],
    [1],
    {},
    0.5,
]
FAMILIES: list[dict[str, Any]] = [
    DEEPSEEK,
    {**DEEPSEEK, "model_type": "deepseek_v2", "topk_method": "group_limited_greedy", "scoring_func": "softmax"},
    {**QWEN3_MOE, "mlp_only_layers": [1], "decoder_sparse_step": 2, "use_sliding_window": True, "sliding_window": 8}
    | {"max_window_layers": 1, "layer_types": None, "norm_topk_prob": True},
    {**BASE, "model_type": "gemma3_text", "sliding_window": 8, "sliding_window_pattern": 3, "layer_types": None}
    | {"rope_parameters": None, "rope_local_base_freq": 10000, "query_pre_attn_scalar": 16, "hidden_activation": None},
    {"model_type": "gemma3", "text_config": BASE, "quantization_config": None, "eos_token_id": [1]},
]
ROPE_KEYS = sorted(LLAMA_32_1B["rope_scaling"])


def refusal(read: Callable[[Path], object], path: Path) -> str | None:
    try:
        read(path)
    except ConfigError as error:
        return str(error)
    return None


def assert_read_or_refused(read: Callable[[Path], object], path: Path) -> None:
    message = refusal(read, path)
    assert message is None or ("\n" not in message and str(path) in message)


@settings(max_examples=200, deadline=None)
@given(
    changes=st.dictionaries(st.sampled_from(sorted(LLAMA_32_1B)), st.sampled_from(ODD_VALUES), max_size=2),
    rope_changes=st.dictionaries(st.sampled_from(ROPE_KEYS), st.sampled_from(ODD_VALUES), max_size=2),
)
def test_a_config_with_odd_values_is_assert_read_or_refused(
    changes: dict[str, Any], rope_changes: dict[str, Any]
) -> None:
    scaling = {**LLAMA_32_1B["rope_scaling"], **rope_changes}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({**LLAMA_32_1B, "rope_scaling": scaling, **changes}))
        assert_read_or_refused(read_config, path)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), values=st.sampled_from(FAMILIES))
def test_odd_values_in_any_familys_config_are_read_or_refused(data: st.DataObject, values: dict[str, Any]) -> None:
    odd = st.dictionaries(st.sampled_from(sorted(values)), st.sampled_from(ODD_VALUES), min_size=1, max_size=2)
    scaling = values.get("rope_scaling", {"rope_type": "default"})
    inner = st.dictionaries(st.sampled_from(sorted(scaling)), st.sampled_from(ODD_VALUES), max_size=1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({**values, "rope_scaling": {**scaling, **data.draw(inner)}, **data.draw(odd)}))
        assert_read_or_refused(read_config, path)


@settings(max_examples=200, deadline=None)
@given(
    damage=st.lists(st.tuples(st.integers(0, len(a_gguf()) - 1), st.integers(0, 255)), min_size=1, max_size=4),
    length=st.integers(0, len(a_gguf())),
)
def test_a_gguf_head_with_changed_bytes_is_assert_read_or_refused(damage: list[tuple[int, int]], length: int) -> None:
    data = bytearray(a_gguf())
    for place, value in damage:
        data[place] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        path.write_bytes(data[:length] if length % 2 else data)
        assert_read_or_refused(read_gguf, path)
