"""Which attention backend is chosen, and what is said about it."""

from dataclasses import replace

import pytest
import torch

from kvengine.attention.base import ModelAttention
from kvengine.attention.select import BackendName, Selection, select_backend
from kvengine.config import EngineConfig
from kvengine.errors import ConfigError, DeviceError
from kvengine.native.kernels import native_kernels
from kvengine.spec import KVDtype
from tests.builders import an_engine_config

CPU = torch.device("cpu")


def a_config(*, dtype: KVDtype = KVDtype.FLOAT32, head_dim: int = 8) -> EngineConfig:
    config = an_engine_config()
    spec = replace(config.kv_cache, dtype=dtype, head_dim=head_dim, head_dim_v=head_dim)
    return replace(config, kv_cache=spec)


def select(
    config: EngineConfig,
    *,
    dtype: torch.dtype = torch.float32,
    name: BackendName = "auto",
) -> Selection:
    model = ModelAttention.plain(config.kv_cache, num_heads=2)
    return select_backend(config, model=model, dtype=dtype, device=CPU, name=name)


@pytest.fixture(autouse=True)
def not_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvengine.attention.select.native_kernels", lambda: "no C++ compiler")


@pytest.mark.skipif(isinstance(native_kernels(), str), reason=f"no native kernels: {native_kernels()}")
def test_a_cpu_attends_with_the_kernels_that_were_compiled_for_it() -> None:
    chosen = select(a_config())
    assert chosen.backend.name == "native"
    assert chosen.reason == "kernels compiled for this processor"


def test_without_a_compiler_torch_attends_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    without_kernels(monkeypatch)
    chosen = select(a_config())
    assert chosen.backend.name == "torch"
    assert chosen.reason == "gather and SDPA in torch: no C++ compiler"


def test_a_type_that_the_kernels_do_not_compute_in_goes_to_torch() -> None:
    chosen = select(a_config(), dtype=torch.float64)
    assert chosen.backend.name == "torch"
    assert chosen.reason.endswith("the native kernels do not compute in torch.float64")


def test_a_backend_that_was_asked_for_is_taken_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert select(a_config(), name="torch").reason == "gather and SDPA in torch"
    without_kernels(monkeypatch)
    for name, why in (("native", "no C\\+\\+ compiler"), ("triton", "do not run on cpu")):
        with pytest.raises(DeviceError, match=f"the {name} backend cannot be used: .*{why}"):
            select(a_config(), name=name)


def test_eight_bits_are_kept_by_what_attends_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    config = a_config(dtype=KVDtype.FP8)
    # 1 byte an element: a block of the spec is what is allocated.
    assert select(config).backend.cache_bytes == config.num_blocks * config.kv_cache.block_bytes


def test_the_triton_kernels_keep_the_type_computed_in_or_eight_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="needs triton, which has no wheel for this machine")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    config = a_config(dtype=KVDtype.FP8)
    chosen = select(config)
    assert chosen.backend.name == "triton"
    assert chosen.backend.cache_bytes == config.num_blocks * config.kv_cache.block_bytes
    assert select(a_config(dtype=KVDtype.FLOAT16)).reason.endswith(
        "the kernels keep K/V in the type computed in or in fp8, not in float16"
    )


def test_the_interpreter_is_taken_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="needs triton, which has no wheel for this machine")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    chosen = select(a_config())
    assert chosen.backend.name == "triton"
    assert "interpreted because TRITON_INTERPRET is set: for tests, and slow" in chosen.reason


def test_bfloat16_is_not_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="needs triton, which has no wheel for this machine")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(ConfigError, match="interpreter computes bfloat16 wrongly") as caught:
        select(a_config(dtype=KVDtype.BFLOAT16), dtype=torch.bfloat16)
    assert caught.value.hint == "use float32 or float16, or unset TRITON_INTERPRET"


def test_what_the_triton_kernels_do_not_take_falls_back_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    chosen = select(a_config(head_dim=512))
    assert chosen.backend.name != "triton"
    assert chosen.reason.endswith("heads of 512 are more than the 256 that the kernels take")


def test_latent_rows_fall_back_and_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    config = a_config()
    latent = replace(config, kv_cache=replace(config.kv_cache, num_kv_heads=1, head_dim_v=0))
    assert select(latent).reason.endswith(
        "the kernels do not keep latent rows: theirs would be tiles of 1,024 dimensions"
    )
