"""Linear layers with weights in a layout of their own compute what plain ones do."""

import pytest
import torch

from kvengine.models.linear import Linear

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""Largest error of sums near 1 of 70 products; the types keep 53, 24, 11 and 8 bits."""


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("num_rows", [1, 3, 32, 130])
@pytest.mark.parametrize("has_bias", [False, True])
def test_any_number_of_rows_gives_the_product(dtype: torch.dtype, num_rows: int, has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = (torch.randn(50, 70, generator=generator) / 70**0.5).to(dtype)
    bias = torch.randn(50, generator=generator).to(dtype) if has_bias else None
    x = torch.randn(num_rows, 70, generator=generator).to(dtype)
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())

    with torch.inference_mode():
        result = Linear(weight, bias)(x)

    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])


def test_a_row_gives_the_same_whoever_is_beside_it() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = Linear(torch.randn(64, 96, generator=generator))
    x = torch.randn(40, 96, generator=generator)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x[7:8])[0], layer(x)[7], atol=2e-5, rtol=0)


def test_without_onednn_the_weight_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(8, 6)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False, raising=False)
    with torch.inference_mode():
        assert torch.equal(Linear(weight)(weight), torch.nn.functional.linear(weight, weight))
