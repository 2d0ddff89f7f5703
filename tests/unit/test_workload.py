"""Workloads: from YAML to requests."""

from pathlib import Path

import msgspec
import pytest

from kvengine.errors import ConfigError
from kvplan.load_profiles import load_workload
from kvplan.loading import decode
from kvplan.profiles import find_profiles
from kvplan.requests.build import request_specs
from kvplan.requests.spec import RequestSpec
from kvplan.workload import Workload


def letters(text: str) -> list[int]:
    """One token a character."""
    return [ord(letter) for letter in text]


def text_of(spec: RequestSpec) -> str:
    return "".join(map(chr, spec.prompt_token_ids))


def a_workload(**keys: object) -> Workload:
    workload = decode({"about": "test", "max_tokens": 4, **keys}, Workload, source="w.yaml")
    workload.check(where="w.yaml")
    return workload


def specs_of(workload: Workload, *, seed: int = 0) -> list[RequestSpec]:
    return request_specs(workload, seed=seed, vocab_size=100, tokenize=letters)


def test_each_prompt_is_a_request_behind_the_system_text() -> None:
    specs = specs_of(a_workload(system="Be kind.", prompts=["Hi", "Why?"]))

    assert [text_of(spec) for spec in specs] == [
        "Be kind.\nUser: Hi\nAssistant:",
        "Be kind.\nUser: Why?\nAssistant:",
    ]
    assert [spec.request_id for spec in specs] == ["prompt-1", "prompt-2"]
    assert {spec.arrival_step for spec in specs} == {0}


def test_each_turn_is_a_request_that_repeats_what_was_said_before() -> None:
    turns = [{"user": "One?", "reply": "1."}, {"user": "Two?", "reply": "2."}, {"user": "Three?"}]
    specs = specs_of(a_workload(conversations=[turns], turn_gap_steps=5))

    assert text_of(specs[2]) == ("User: One?\nAssistant: 1.\nUser: Two?\nAssistant: 2.\nUser: Three?\nAssistant:")
    assert text_of(specs[2]).startswith(text_of(specs[1]))
    assert [spec.arrival_step for spec in specs] == [0, 5, 10]


def test_chatml_marks_who_speaks() -> None:
    turns = [{"user": "{One}?", "reply": "1."}, {"user": "Two?"}]
    specs = specs_of(a_workload(system="Be kind.", conversations=[turns], chat_format="chatml"))

    assert text_of(specs[1]) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n"
        "<|im_start|>user\n{One}?<|im_end|>\n<|im_start|>assistant\n1.<|im_end|>\n"
        "<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_requests_come_in_order_of_arrival() -> None:
    conversation = [{"user": "a", "reply": "b"}, {"user": "c"}]
    specs = specs_of(
        a_workload(prompts=["x"], conversations=[conversation, conversation], arrival_gap_steps=2, turn_gap_steps=3)
    )

    # The prompt at 0, the conversations at 2 and 4, their second turns 3 steps later.
    assert [(spec.request_id, spec.arrival_step) for spec in specs] == [
        ("prompt-1", 0),
        ("chat-1.1", 2),
        ("chat-2.1", 4),
        ("chat-1.2", 5),
        ("chat-2.2", 7),
    ]


def test_random_prompts_share_their_prefix_and_nothing_else() -> None:
    synthetic = {"requests": 3, "shared_prefix_tokens": 8, "prompt_tokens": {"low": 2, "high": 5}}
    specs = request_specs(a_workload(synthetic=synthetic, arrival_gap_steps=1), seed=7, vocab_size=50_000)

    prefixes = {tuple(spec.prompt_token_ids[:8]) for spec in specs}
    assert len(prefixes) == 1
    assert len({tuple(spec.prompt_token_ids[8:10]) for spec in specs}) == 3
    assert all(10 <= len(spec.prompt_token_ids) <= 13 for spec in specs)
    assert [spec.arrival_step for spec in specs] == [0, 1, 2]


def test_one_seed_gives_one_workload() -> None:
    synthetic = {"requests": 20, "prompt_tokens": {"low": 1, "high": 50}}
    workload = a_workload(synthetic=synthetic, max_tokens={"low": 1, "high": 50})

    assert specs_of(workload, seed=3) == specs_of(workload, seed=3)
    assert specs_of(workload, seed=3) != specs_of(workload, seed=4)


def test_random_lengths_do_not_depend_on_the_vocabulary() -> None:
    workload = a_workload(synthetic={"requests": 20, "prompt_tokens": {"low": 1, "high": 50}})
    small, large = (request_specs(workload, seed=1, vocab_size=size) for size in (10, 100_000))

    assert [len(spec.prompt_token_ids) for spec in small] == [len(spec.prompt_token_ids) for spec in large]


def test_output_lengths_stay_the_same_when_the_prompts_change() -> None:
    lengths = {"low": 1, "high": 1000}
    one = specs_of(a_workload(prompts=["a", "b", "c"], max_tokens=lengths))
    other = specs_of(a_workload(prompts=["a longer text", "x", "y"], max_tokens=lengths))

    assert [spec.max_tokens for spec in one] == [spec.max_tokens for spec in other]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "expected exactly one of prompts and conversations, synthetic, trace"),
        (
            {"prompts": ["a"], "synthetic": {"requests": 1, "prompt_tokens": 1}},
            "exactly one of prompts and conversations",
        ),
        ({"prompts": [""]}, r"prompts\[0\]"),
        (
            {"prompts": ["a"], "max_tokens": 0},
            "max_tokens: expected a whole number >= 1 and <= 16,777,216 or a mapping or nothing, got 0",
        ),
        ({"prompts": ["a"], "max_tokens": {"low": 5, "high": 4}}, "expected low <= high, got 5 and 4"),
        ({"prompts": ["a"], "max_token": 3}, "unknown key 'max_token'; did you mean 'max_tokens'?"),
        ({"conversations": [[{"user": "a"}, {"user": "b"}]]}, r"conversations\[0\]\[0\] needs a reply"),
        ({"conversations": [[]]}, r"conversations\[0\]"),
        (
            {"prompts": ["a"], "arrival_gap_steps": -1},
            "arrival_gap_steps: expected a whole number >= 0 and <= 10,000, got -1",
        ),
        ({"prompts": ["a"], "chat_format": "chatlm"}, "did you mean 'chatml'"),
        (
            {"synthetic": {"requests": 0, "prompt_tokens": 1}},
            "synthetic.requests: expected a whole number >= 1 and <= 1,000,000, got 0",
        ),
    ],
)
def test_a_workload_that_makes_no_sense_is_refused_by_key(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        a_workload(**keys)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"prompts": ["a"], "max_tokens": None}, "w.yaml: key 'max_tokens' is missing"),
        ({"prompts": ["a"], "arrivals": "poisson"}, "w.yaml: arrivals: poisson needs 'rate'"),
        ({"prompts": ["a"], "arrivals": "gamma", "rate": 2}, "arrivals: gamma needs 'cv'"),
        ({"prompts": ["a"], "arrivals": "closed_loop"}, "arrivals: closed_loop needs 'users'"),
        ({"prompts": ["a"], "rate": 2}, "rate has no meaning with arrivals: steps"),
        (
            {"prompts": ["a"], "arrivals": "poisson", "rate": 2, "users": 3},
            "users has no meaning with arrivals: poisson",
        ),
        (
            {"prompts": ["a"], "arrivals": "poisson", "rate": 0},
            "rate: expected a number > 0 and <= 1,000,000 or nothing, got 0",
        ),
        ({"prompts": ["a"], "arrivals": "poison", "rate": 2}, "did you mean 'poisson'"),
        (
            {"prompts": ["a"], "arrivals": "constant", "rate": 2, "arrival_gap_steps": 1},
            "arrival_gap_steps and turn_gap_steps have no meaning with arrivals: constant",
        ),
        ({"prompts": ["a"], "arrivals": "trace"}, "arrivals: trace needs a trace with times"),
        (
            {"trace": {"file": "x", "format": "prompts"}, "arrivals": "trace"},
            "arrivals: trace needs a trace with times",
        ),
        (
            {"trace": {"file": "x", "format": "azure", "shuffle": True}, "arrivals": "trace"},
            "trace.shuffle has no meaning with arrivals: trace",
        ),
        (
            {"trace": {"file": "x", "format": "azure", "block_tokens": 16}},
            "trace: block_tokens is not for format azure, only for mooncake",
        ),
        ({"trace": {"file": "x", "format": "moocake"}}, "trace.format: expected one of .* did you mean 'mooncake'"),
        ({"prompts": ["a"], "priorities": [{"value": 1, "share": 0}]}, "priorities: expected a share above 0"),
        ({"prompts": ["a"], "cancel": {"share": 1.5}}, "cancel.share: expected a number >= 0 and <= 1, got 1.5"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        a_workload(**keys)


@pytest.mark.parametrize("name", sorted(find_profiles("workloads")))
def test_a_shipped_workload_is_valid_and_says_where_it_comes_from(name: str) -> None:
    workload = load_workload(find_profiles("workloads")[name].path)

    assert workload.source
    assert len(specs_of(workload)) >= 20


def test_a_workload_is_a_value_that_can_be_fingerprinted(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text("about: x\nprompts: [hello]\nmax_tokens: {low: 1, high: 2}\n")

    workload = load_workload(file)
    assert msgspec.json.decode(msgspec.json.encode(workload), type=Workload) == workload
