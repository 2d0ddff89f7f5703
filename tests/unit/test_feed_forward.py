"""Choosing experts, and products of runs of rows, worked out by hand or row by row."""

import math

import pytest
import torch

from kvengine.model_config.decoder import ExpertFeed, Scoring
from kvengine.models import feed_forward
from kvengine.models.feed_forward import choose_experts, grouped_linear


def an_expert_feed(**changes: object) -> ExpertFeed:
    values = {"num_experts": 4, "top_k": 2, "intermediate_size": 8, "normalize": False, **changes}
    return ExpertFeed(**values)  # type: ignore[arg-type]


def test_the_best_scores_are_the_weights() -> None:
    # Softmax of logs of 1, 2, 3, 4: tenths.
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).log()

    weights, experts = choose_experts(logits, None, an_expert_feed(routed_scale=2.0))
    assert experts.tolist() == [[3, 2]]
    assert weights.tolist() == [pytest.approx([0.8, 0.6])]

    weights, _ = choose_experts(logits, None, an_expert_feed(normalize=True))
    assert weights.tolist() == [pytest.approx([4 / 7, 3 / 7])]


def test_experts_come_from_the_best_groups_only() -> None:
    # Groups (0, 1) and (2, 3): the second has the best expert, so the second best, 0, is out.
    logits = torch.tensor([[3.0, 1.0, 4.0, 2.0]]).log()

    _, experts = choose_experts(logits, None, an_expert_feed(num_groups=2, top_groups=1))
    assert experts.tolist() == [[2, 3]]


def test_a_bias_decides_the_choice_and_not_the_weight() -> None:
    feed = an_expert_feed(num_groups=2, top_groups=1, selection_bias=True, scoring=Scoring.SIGMOID)
    # Sigmoids of logs of 1, 1, 3, 0: 1/2, 1/2, 3/4, 0. By their two best the groups have 1 and 3/4; a bias of 0.3 on
    # expert 3 makes that 1.05.
    logits = torch.tensor([[0.0, 0.0, math.log(3), -100.0]])

    _, without = choose_experts(logits, torch.zeros(4), feed)
    weights, experts = choose_experts(logits, torch.tensor([0.0, 0.0, 0.0, 0.3]), feed)

    assert sorted(without[0].tolist()) == [0, 1]
    assert experts.tolist() == [[2, 3]]
    assert weights.tolist() == [pytest.approx([0.75, 0.0])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("has_grouped_mm", [True, False])
def test_each_run_of_rows_meets_its_own_matrix(
    dtype: torch.dtype, has_grouped_mm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_grouped_mm:
        monkeypatch.setattr(feed_forward, "_grouped_mm", None)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(7, 8, generator=generator, dtype=dtype)
    weights = torch.randn(4, 5, 8, generator=generator, dtype=dtype)

    # Runs of 3, 0, 4 and 0 rows.
    found = grouped_linear(rows, weights, torch.tensor([3, 3, 7, 7]))

    known = torch.stack([weights[0 if row < 3 else 2] @ rows[row] for row in range(7)])
    torch.testing.assert_close(found, known)
