"""The type that a model computes fastest in."""

from collections.abc import Iterator

import pytest
import torch

from kvengine import fast_dtype
from kvengine.fast_dtype import fastest_dtype
from kvengine.spec import KVDtype


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    fastest_dtype.cache_clear()
    yield
    fastest_dtype.cache_clear()


@pytest.mark.parametrize(
    ("seconds", "dtype", "gain"),
    [([2.2, 1.0], KVDtype.BFLOAT16, "2.2"), ([1.0, 1.0], KVDtype.FLOAT32, "1.0"), ([0.1, 1.0], KVDtype.FLOAT32, "0.1")],
)
def test_sixteen_bits_are_taken_where_they_pay(
    monkeypatch: pytest.MonkeyPatch, seconds: list[float], dtype: KVDtype, gain: str
) -> None:
    monkeypatch.setattr(fast_dtype, "_cpu_seconds", lambda _: seconds)
    chosen = fastest_dtype("cpu")
    assert chosen.dtype is dtype
    assert chosen.reason == f"bfloat16 is {gain} times as fast as float32 in products of 32 rows"


def test_the_probe_measures_both_types_and_asks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    chosen = fastest_dtype("cpu")
    assert chosen.dtype in (KVDtype.FLOAT32, KVDtype.BFLOAT16)
    monkeypatch.setattr(fast_dtype, "_cpu_seconds", None)
    assert fastest_dtype("cpu") is chosen
    assert torch.get_num_threads() == before


def test_a_gpu_is_not_probed() -> None:
    assert fastest_dtype("cuda").dtype is KVDtype.BFLOAT16
