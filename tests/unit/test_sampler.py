"""The sampler against a plain float64 computation, token by token, and against probabilities worked out by hand."""

import math
import random

import pytest
import torch
from torch import Tensor

from kvengine.batch import SampledRow
from kvengine.request import Request, RequestId
from kvengine.sampler import draw, kept_weights, sample
from kvengine.sampling_params import SamplingParams


def a_row(
    name: str = "a", *, prompt: tuple[int, ...] = (1, 2, 3), output: tuple[int, ...] = (), **sampling: object
) -> SampledRow:
    params = SamplingParams(max_tokens=100, **sampling)  # type: ignore[arg-type]
    request = Request(RequestId(name), prompt, params)
    for token in output:
        request.append_output(token)
    return SampledRow(request.request_id, request)


def some_logits(num_rows: int, vocab_size: int, *, seed: int = 0) -> Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


def plainly_kept(logits: list[float], params: SamplingParams) -> dict[int, float]:
    """Probability of each kept token: one Python float after the other, in vLLM's order of filters."""
    highest = max(logits)
    weights = {token: math.exp((x - highest) / params.temperature) for token, x in enumerate(logits)}
    weights = {token: weight for token, weight in weights.items() if weight >= params.min_p}
    by_weight = sorted(weights, key=lambda token: -logits[token])
    if params.top_k and params.top_k < len(by_weight):
        least = logits[by_weight[params.top_k - 1]]
        weights = {token: weight for token, weight in weights.items() if logits[token] >= least}
    if params.top_p < 1:
        wanted, reached, least = params.top_p * math.fsum(weights.values()), 0.0, highest
        for token in sorted(weights, key=lambda token: -logits[token]):
            least, reached = logits[token], reached + weights[token]
            if reached >= wanted:
                break
        weights = {token: weight for token, weight in weights.items() if logits[token] >= least}
    total = math.fsum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def kept(logits: Tensor, params: list[SamplingParams]) -> Tensor:
    return kept_weights(
        logits,
        temperature=torch.tensor([each.temperature for each in params]),
        top_k=torch.tensor([each.top_k for each in params]),
        top_p=torch.tensor([each.top_p for each in params]),
        min_p=torch.tensor([each.min_p for each in params]),
    )


def random_params(chance: random.Random) -> SamplingParams:
    return SamplingParams(
        max_tokens=9,
        temperature=chance.choice([0.3, 0.7, 1.0, 1.5, 3.0]),
        top_k=chance.choice([0, 0, 1, 2, 7, 50, 5000]),
        top_p=chance.choice([1.0, 1.0, 0.999, 0.9, 0.5, 0.01]),
        min_p=chance.choice([0.0, 0.0, 0.001, 0.05, 0.4, 1.0]),
    )


@pytest.mark.parametrize("vocab_size", [1, 2, 17, 1000])
def test_exactly_the_tokens_that_the_parameters_keep_are_kept_in_mixed_batches(vocab_size: int) -> None:
    chance = random.Random(vocab_size)
    params = [random_params(chance) for _ in range(60)]
    logits = some_logits(60, vocab_size)
    logits[::5] = logits[::5].round()  # many equal ones

    weights = kept(logits, params)

    for row, each in enumerate(params):
        expected = plainly_kept(logits[row].tolist(), each)
        got = weights[row].double() / weights[row].double().sum()
        assert got.nonzero()[:, 0].tolist() == sorted(expected), each
        torch.testing.assert_close(
            got[sorted(expected)],
            torch.tensor([expected[token] for token in sorted(expected)], dtype=torch.float64),
            rtol=2e-5,
            atol=1e-9,
        )


def test_min_p_comes_before_top_p_as_in_vllm() -> None:
    # 0.4, 0.2, 0.2, 0.1, 0.1: min-p 0.3 keeps what is at least 0.12, renormalised 0.5, 0.25, 0.25. Of these 0.7 is
    # reached with the second, and the third is as likely. With 0.45, the first is enough; of all five it were not.
    logits = torch.tensor([[0.4, 0.2, 0.2, 0.1, 0.1]]).log()
    for top_p, expected in ((0.7, [0, 1, 2]), (0.45, [0])):
        params = SamplingParams(max_tokens=1, temperature=1.0, min_p=0.3, top_p=top_p)
        assert kept(logits, [params])[0].nonzero()[:, 0].tolist() == expected


def test_draws_come_as_often_as_the_analytical_distribution_says() -> None:
    logits = some_logits(1, 30, seed=3) / 2
    params = SamplingParams(max_tokens=1, temperature=0.8, top_k=12, top_p=0.95)
    expected = plainly_kept(logits[0].tolist(), params)
    num_draws = 20_000
    rows = [a_row(str(seed), temperature=0.8, top_k=12, top_p=0.95, seed=seed) for seed in range(200)]
    counts = torch.zeros(30)
    for index in range(num_draws // len(rows)):
        for row in rows:
            if index:
                row.request.append_output(0)
        tokens = sample(logits.expand(len(rows), -1), rows)
        counts += torch.bincount(torch.tensor(list(tokens.values())), minlength=30)

    assert set(counts.nonzero()[:, 0].tolist()) == set(expected)
    chi_square = sum((counts[token].item() - p * num_draws) ** 2 / (p * num_draws) for token, p in expected.items())
    # 10 tokens are kept: with 9 degrees of freedom 27.9 is exceeded once in 1,000 times.
    assert len(expected) == 10
    assert chi_square < 27.9


def test_inversion_takes_the_first_token_past_the_number_and_never_one_of_weight_zero() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0, 1.0, 2.0, 0.0]]).expand(6, -1)
    uniform = torch.tensor([0.0, 0.2499, 0.25, 0.4999, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert draw(weights, uniform).tolist() == [1, 1, 3, 3, 4, 4]


def test_a_rows_choice_does_not_depend_on_its_neighbours() -> None:
    chance = random.Random(5)
    logits = some_logits(40, 500)
    rows = [
        a_row(
            str(index),
            temperature=chance.choice([0.0, 0.7, 2.0]),
            top_k=chance.choice([0, 3, 100]),
            top_p=chance.choice([1.0, 0.9, 0.3]),
            min_p=chance.choice([0.0, 0.1]),
            repetition_penalty=chance.choice([1.0, 1.3]),
            logprobs=chance.choice([None, 2]),
        )
        for index in range(40)
    ]
    together = sample(logits, rows)

    for index, row in enumerate(rows):
        alone = sample(logits[index : index + 1], [row])
        assert alone == {row.request_id: together[row.request_id]}
        assert alone.logprobs.get(row.request_id) == together.logprobs.get(row.request_id)
    order = chance.sample(range(40), 23)
    assert sample(logits[order], [rows[index] for index in order]) == {
        rows[index].request_id: together[rows[index].request_id] for index in order
    }


def test_of_equal_logits_the_lowest_id_is_taken_and_logprobs_list_the_lowest_first() -> None:
    logits = torch.tensor([[1.0, 5.0, 2.0, 5.0, 2.0, 2.0]])
    tokens = sample(logits, [a_row(logprobs=4)])

    assert tokens == {"a": 1}
    (entry,) = tokens.logprobs[RequestId("a")]
    # exp: 2.718, 148.41, 7.389, 148.41, 7.389, 7.389; their sum's logarithm is ln(321.7) = 5.7737.
    assert (entry.token_id, entry.rank) == (1, 1)
    assert [token for token, _ in entry.top] == [1, 3, 2, 4]
    assert [logprob for _, logprob in entry.top] == pytest.approx([-0.7737, -0.7737, -3.7737, -3.7737], abs=1e-4)
    assert entry.logprob == entry.top[0][1]


def test_logprobs_are_those_of_the_raw_logits_whatever_was_done_to_them() -> None:
    logits = torch.tensor([[0.1, 0.5, 0.4]]).log()
    row = a_row(prompt=(1,), output=(1,), temperature=2.0, top_k=1, repetition_penalty=100.0, logprobs=1)
    # The penalty makes of ln 0.5 = -0.69 a logit of -69, so that token 2 is the only one kept.
    (entry,) = sample(logits, [row]).logprobs[RequestId("a")]

    assert (entry.token_id, entry.rank) == (2, 2)
    assert entry.logprob == pytest.approx(math.log(0.4), abs=1e-6)
    assert entry.top == ((1, pytest.approx(math.log(0.5), abs=1e-6)),)


def test_no_alternatives_may_be_asked_for_with_a_logprob() -> None:
    (entry,) = sample(torch.zeros(1, 4), [a_row(logprobs=0)]).logprobs[RequestId("a")]
    assert (entry.top, entry.logprob) == ((), pytest.approx(-math.log(4)))


def test_stop_tokens_are_not_taken_before_the_least_number_of_tokens() -> None:
    logits = torch.tensor([[1.0, 9.0, 2.0, 8.0]])
    for output, expected in (((), 2), ((0,), 2), ((0, 0), 1)):
        row = a_row(output=output, min_tokens=2, stop_token_ids=frozenset({1, 3, 999}))
        assert sample(logits, [row]) == {"a": expected}


def test_penalties_change_the_logits_by_what_their_definitions_say() -> None:
    # Prompt 0, 1; output 1, 2, 2. Repetition 2 halves what is positive of 0, 1, 2 and doubles what is not.
    logits = torch.tensor([[8.0, 7.0, -1.0, 3.9, 0.0]])
    row = a_row(prompt=(0, 1), output=(1, 2, 2), repetition_penalty=2.0)
    assert sample(logits, [row]) == {"a": 0}  # 4, 3.5, -2, 3.9, 0
    row = a_row(prompt=(0, 1), output=(1, 2, 2), repetition_penalty=2.1)
    assert sample(logits, [row]) == {"a": 3}  # 3.81, 3.33, ..

    flat = torch.tensor([[1.0, 1.0, 2.4, 0.95, 0.0]])
    # Of the output only: token 1 once, token 2 twice. Presence 1.5: 1, -0.5, 0.9. Frequency 0.75: 1, 0.25, 0.9.
    assert sample(flat, [a_row(prompt=(0, 1), output=(1, 2, 2), presence_penalty=1.5)]) == {"a": 0}
    assert sample(flat, [a_row(prompt=(0, 1), output=(1, 2, 2), frequency_penalty=0.75)]) == {"a": 0}
    assert sample(flat, [a_row(prompt=(0, 1), output=(1, 2, 2), presence_penalty=1.3)]) == {"a": 2}
    assert sample(flat, [a_row(prompt=(0, 1), output=(1, 2, 2), frequency_penalty=0.65)]) == {"a": 2}


def test_drafts_are_accepted_while_they_are_what_is_drawn_in_their_place() -> None:
    logits = some_logits(4, 50, seed=8)
    row = a_row(output=(5,), temperature=1.0, seed=11, logprobs=0)
    right = []
    for index in range(4):
        alone = a_row(output=(5, *right), temperature=1.0, seed=11)
        right.append(sample(logits[index : index + 1], [alone])[RequestId("a")])
    assert len(set(right)) == 4

    for drafts, num_right in ((right[:3], 3), ([*right[:2], right[2] + 1], 2), ([right[0] + 1, *right[1:3]], 0)):
        row.request.draft_token_ids = drafts
        tokens = sample(logits, [row._replace(num_drafts_before=ahead) for ahead in range(4)])
        assert (tokens, dict(tokens.accepted)) == ({"a": right[num_right]}, {"a": num_right} if num_right else {})
        assert [entry.token_id for entry in tokens.logprobs[RequestId("a")]] == right[: num_right + 1]
