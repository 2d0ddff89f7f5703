"""Whatever stands in a trace file, it is read or refused in one line that names the file."""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvengine.errors import ConfigError
from kvplan.traces.csv_rows import AZURE, BURSTGPT, VIDUR, read_csv_rows
from kvplan.traces.mooncake import read_mooncake
from kvplan.traces.texts import read_benchmark_lines, read_prompts, read_sharegpt

SAMPLES = {
    "mooncake": b'{"timestamp": 27.5, "input_length": 9, "output_length": 2, "hash_ids": [0, 1, 2], "session_id": 5}\n'
    * 2,
    "azure": b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n",
    "burstgpt": b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,API log\n",
    "vidur": b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,374,44\n",
    "sharegpt": b'[{"id": "1", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]}]',
    "vllm": b'{"prompt": "Hi", "output_tokens": 3}\n',
    "prompts": b"Hi\nHo\n",
}
READERS: dict[str, Callable[[Path], Iterator[object]]] = {
    "mooncake": partial(read_mooncake, time_unit="ms", block_tokens=4),
    "azure": partial(read_csv_rows, form=AZURE),
    "burstgpt": partial(read_csv_rows, form=BURSTGPT, model="ChatGPT"),
    "vidur": partial(read_csv_rows, form=VIDUR),
    "sharegpt": read_sharegpt,
    "vllm": read_benchmark_lines,
    "prompts": read_prompts,
}


def refusal_of(reader: Callable[[Path], Iterator[object]], path: Path) -> str | None:
    try:
        list(reader(path))
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_a_damaged_trace_is_read_or_refused(name: str, data: st.DataObject) -> None:
    content = bytearray(SAMPLES[name])
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(content)))
        length = data.draw(st.integers(0, 8))
        content[place : place + length] = data.draw(st.binary(max_size=8) | st.sampled_from([b"1e999", b"-1", b"null"]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        path.write_bytes(content)
        refusal = refusal_of(READERS[name], path)
        if refusal is not None:
            assert str(path) in refusal
            assert "\n" not in refusal


@pytest.mark.parametrize("name", READERS)
def test_the_undamaged_trace_is_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(SAMPLES[name])

    assert list(READERS[name](tmp_path / "trace"))


def test_a_table_without_the_column_that_names_models_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(SAMPLES["burstgpt"].replace(b"Model", b"M\x00del"))
    refusal = refusal_of(READERS["burstgpt"], path)
    assert refusal is not None
    assert "column 'Model' is missing" in refusal
