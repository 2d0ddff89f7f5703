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

ODD_VALUES: list[Any] = [
    None,
    -1,
    0,
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
