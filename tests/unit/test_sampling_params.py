import pytest

from kvengine.errors import ConfigError
from kvengine.sampling_params import SamplingParams
from tests.builders import a_request


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": -0.1}, "sampling: temperature: expected from 0 to 100, got -0.1"),
        ({"temperature": float("nan")}, "sampling: temperature: expected from 0 to 100, got nan"),
        ({"top_k": -1}, "sampling: top_k: expected from 0, which keeps all, to 2147483647, got -1"),
        ({"top_p": 0.0}, "sampling: top_p: expected above 0 and up to 1, got 0.0"),
        ({"top_p": 1.01}, "sampling: top_p: expected above 0 and up to 1, got 1.01"),
        ({"min_p": 1.5}, "sampling: min_p: expected from 0 to 1, got 1.5"),
        ({"min_tokens": 5}, "sampling: min_tokens: expected from 0 to max_tokens, 4, got 5"),
        ({"repetition_penalty": 0}, "sampling: repetition_penalty: expected above 0 and up to 100, got 0"),
        ({"presence_penalty": 3}, "sampling: presence_penalty: expected from -2 to 2, got 3"),
        ({"frequency_penalty": -3}, "sampling: frequency_penalty: expected from -2 to 2, got -3"),
        ({"seed": -1}, "sampling: seed: expected from 0 to 18446744073709551615, got -1"),
        ({"logprobs": 1001}, "sampling: logprobs: expected from 0 to 1000, got 1001"),
    ],
)
def test_a_value_out_of_range_is_named_with_what_is_allowed(given: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SamplingParams(max_tokens=4, **given)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_only_a_request_that_asks_for_nothing_else_is_plainly_greedy() -> None:
    assert SamplingParams(max_tokens=4, top_k=5, top_p=0.5, seed=3).is_plain_greedy
    for given in ({"temperature": 0.5}, {"min_tokens": 1}, {"presence_penalty": 0.1}, {"logprobs": 0}):
        assert not SamplingParams(max_tokens=4, **given).is_plain_greedy  # type: ignore[arg-type]


def test_a_request_without_a_seed_draws_by_its_id_and_its_forks_draw_otherwise() -> None:
    a, again, b = a_request("a"), a_request("a"), a_request("b")
    assert a.seed == again.seed != b.seed
    assert [a.fork(b.request_id, index).seed - a.seed for index in (1, 2)] == [1, 2]
