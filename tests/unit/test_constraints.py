"""Conditions between keys: what they mean, and what they cannot do."""

import pytest

from kvengine.errors import ConfigError
from kvplan.constraints import parse_constraint

SETTINGS = {
    "block_size": 16,
    "num_blocks": 100,
    "available_kv": None,
    "prefix_caching": True,
    "model": "llama",
    "workload.rate": 2.5,
}


def holds(text: str) -> bool:
    return parse_constraint(text, where="s.yaml: where[0]").holds(SETTINGS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("block_size * num_blocks <= 1600", True),
        ("block_size * num_blocks < 1600", False),
        ("block_size + 1 == 17 and num_blocks - 1 == 99", True),
        ("8 < block_size < 16", False),
        ("8 < block_size <= 16", True),
        ("block_size % 8 == 0 and num_blocks // 3 == 33 and num_blocks / 8 == 12.5", True),
        ("prefix_caching", True),
        ("not prefix_caching or block_size == 1", False),
        ("prefix_caching == true", True),
        ("model == 'llama'", True),
        ("model in ['gpt', 'opt']", False),
        ("model not in ('gpt', 'opt')", True),
        ("block_size in [8, 16]", True),
        ("workload.rate > 2 and -workload.rate < 0", True),
        ("num_blocks * KiB == 102400", True),
        ("block_size != 16 and available_kv > 3", False),  # what follows a false part is not looked at
    ],
)
def test_conditions_mean_what_they_say(text: str, expected: bool) -> None:
    assert holds(text) is expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("blok_size > 3", r"s\.yaml: where\[0\]: unknown key 'blok_size'; did you mean 'block_size'\?"),
        ("available_kv > 3", "available_kv has no value in this sweep in 'available_kv > 3'"),
        ("model > 3", "not supported between"),
        ("model * 3 == 9", "expected a number, got 'llama'"),
        ("block_size / 0 > 3", "division by zero"),
        ("block_size ** 2 > 3", "is not allowed here"),
        ("__import__('os').getcwd()", "is not allowed here"),
        ("model.upper.x == 3", r"unknown key 'model\.upper\.x'"),
        ("[x for x in model]", "is not allowed here"),
        ("block_size is 16", "is not allowed here"),
        ("f'{model}' == 'llama'", "is not allowed here"),
        ("(lambda: 1)()", "is not allowed here"),
    ],
)
def test_conditions_that_make_no_sense_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        holds(text)


@pytest.mark.parametrize("text", ["", "block_size >", "a = 3", "1; 2", "(" * 500, "x" * 2000])
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"s\.yaml: where\[0\]: expected a condition such as"):
        parse_constraint(text, where="s.yaml: where[0]")
