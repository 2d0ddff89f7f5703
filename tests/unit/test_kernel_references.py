"""The plain-torch references that define the kernels, against numbers worked out by hand and torch's own operators."""

import math

import pytest
import torch
from torch import Tensor

from kvkernels import reference
from kvkernels.reference import kept_probabilities

FP8 = torch.float8_e4m3fn
HALVES = torch.tensor([math.log(0.5), math.log(0.25), math.log(0.125), math.log(0.125)], dtype=torch.float64)
"""Logits of the probabilities 1/2, 1/4, 1/8, 1/8."""


def sample(uniform: list[float], **settings: float) -> list[int]:
    """Draw from HALVES with one number after another."""
    rows = len(uniform)
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | settings
    return reference.sample(
        HALVES.expand(rows, -1),
        temperature=torch.full((rows,), values["temperature"]),
        top_k=torch.full((rows,), int(values["top_k"]), dtype=torch.int32),
        top_p=torch.full((rows,), values["top_p"]),
        min_p=torch.full((rows,), values["min_p"]),
        uniform=torch.tensor(uniform),
    ).tolist()


def close(got: Tensor, known: list[float]) -> bool:
    return torch.allclose(got, torch.tensor(known, dtype=got.dtype), atol=1e-12)


def test_a_draw_is_the_first_token_whose_summed_probability_exceeds_the_number() -> None:
    # Sums: 0.5, 0.75, 0.875, 1.
    assert sample([0.0, 0.49, 0.5, 0.74, 0.75, 0.8, 0.875, 0.999]) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_temperature_zero_takes_the_most_likely() -> None:
    assert sample([0.999], temperature=0) == [0]


def test_temperature_two_takes_square_roots() -> None:
    # Roots of 4, 2, 1, 1 over their sum: 2 / 5.414 = 0.369, 1.414 / 5.414 = 0.261, 0.185, 0.185.
    kept = kept_probabilities(HALVES, 2.0, 0, 1.0, 0.0)
    total = 4 + math.sqrt(2)
    assert close(kept, [2 / total, math.sqrt(2) / total, 1 / total, 1 / total])


@pytest.mark.parametrize(
    ("top_k", "known"),
    [(1, [1, 0, 0, 0]), (2, [2 / 3, 1 / 3, 0, 0]), (3, [0.5, 0.25, 0.125, 0.125]), (9, [0.5, 0.25, 0.125, 0.125])],
)
def test_top_k_keeps_the_k_most_likely_and_their_equals(top_k: int, known: list[float]) -> None:
    assert close(kept_probabilities(HALVES, 1.0, top_k, 1.0, 0.0), known)


@pytest.mark.parametrize(
    ("top_p", "known"),
    [(0.0, [1, 0, 0, 0]), (0.49, [1, 0, 0, 0]), (0.6, [2 / 3, 1 / 3, 0, 0]), (0.8, [0.5, 0.25, 0.125, 0.125])],
)
def test_top_p_keeps_the_fewest_that_reach_the_share_and_the_equals_of_the_last(
    top_p: float, known: list[float]
) -> None:
    assert close(kept_probabilities(HALVES, 1.0, 0, top_p, 0.0), known)


def test_top_p_takes_its_share_of_what_top_k_left() -> None:
    # Of 1/2 and 1/4 the first has 2/3, which reaches 0.6 but not 0.7.
    assert close(kept_probabilities(HALVES, 1.0, 2, 0.6, 0.0), [1, 0, 0, 0])
    assert close(kept_probabilities(HALVES, 1.0, 2, 0.7, 0.0), [2 / 3, 1 / 3, 0, 0])


def test_min_p_drops_what_is_less_likely_than_its_share_of_the_most_likely() -> None:
    assert close(kept_probabilities(HALVES, 1.0, 0, 1.0, 0.3), [2 / 3, 1 / 3, 0, 0])


def test_rms_norm_and_swiglu_are_torchs_own() -> None:
    x, weight = torch.randn(3, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    torch.testing.assert_close(
        reference.rms_norm(x, weight, eps=1e-5), torch.nn.functional.rms_norm(x, (8,), weight, 1e-5)
    )
    torch.testing.assert_close(reference.swiglu(x), torch.nn.functional.silu(x[:, :4]) * x[:, 4:])


def test_rope_turns_pairs_that_lie_half_a_head_apart() -> None:
    heads = torch.tensor([[[1.0, 2.0, 0.0, 0.0]]], dtype=torch.float64)
    # A quarter turn of (1, 0) gives (0, 1); half a turn of (2, 0) gives (-2, 0).
    cos, sin = torch.tensor([[0.0, -1.0]]).double(), torch.tensor([[1.0, 0.0]]).double()
    assert close(reference.rope(heads, cos, sin), [[[0, -2, 1, 0]]])


def test_what_is_stored_in_eight_bits_is_divided_rounded_to_even_and_bounded() -> None:
    # 17 / 0.5 = 34 lies between 32 and 36, steps of 4 there: 34 is the middle, and 32 has the even mantissa.
    # 19 / 0.5 = 38, the middle of 36 and 40: 40 is even. 300 / 0.5 is beyond 448. The second head has scale 1.
    x = torch.tensor([[[17.0, 19.0, 300.0, -1e9], [17.0, 19.0, 300.0, 0.3]]])
    got = reference.quantise(x, torch.tensor([0.5, 1.0]), FP8)
    # 17 is the middle of 16 and 18; 19 of 18 and 20; 300 lies nearest to 288; 0.3 to 0.3125.
    assert got.float().tolist() == [[[32, 40, 448, -448], [16, 20, 288, 0.3125]]]
