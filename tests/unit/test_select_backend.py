"""Which attention backend is chosen, and what is said about it."""

from dataclasses import replace

import pytest
import torch

from kvengine.attention.base import ModelAttention
from kvengine.attention.select import Selection, select_backend
from kvengine.config import EngineConfig
from kvengine.errors import ConfigError
from kvengine.spec import KVDtype
from tests.builders import an_engine_config

CPU = torch.device("cpu")


def a_config(*, dtype: KVDtype = KVDtype.FLOAT32, head_dim: int = 8) -> EngineConfig:
    config = an_engine_config()
    spec = replace(config.kv_cache, dtype=dtype, head_dim=head_dim, head_dim_v=head_dim)
    return replace(config, kv_cache=spec)


def select(config: EngineConfig, *, softcap: float | None = None) -> Selection:
    model = replace(ModelAttention.plain(config.kv_cache, num_heads=2), softcap=softcap)
    return select_backend(config, model=model, device=CPU)


def test_a_cpu_attends_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    chosen = select(a_config())
    assert chosen.backend.name == "torch"
    assert chosen.reason == "gather and SDPA in torch: the one backend that runs on cpu"


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
        select(a_config(dtype=KVDtype.BFLOAT16))
    assert caught.value.hint == "use float32 or float16, or unset TRITON_INTERPRET"


def test_heads_that_the_kernels_do_not_take_fall_back_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    chosen = select(a_config(head_dim=512))
    assert chosen.backend.name == "torch"
    assert chosen.reason.endswith("heads of 512 are more than the 256 that the kernels take")


def test_soft_capped_scores_and_latent_rows_fall_back_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert select(a_config(), softcap=50.0).reason.endswith("the kernels do not soft-cap scores")
    config = a_config()
    latent = replace(config, kv_cache=replace(config.kv_cache, num_kv_heads=1, head_dim_v=0))
    assert select(latent).reason.endswith("the kernels do not keep latent rows")
