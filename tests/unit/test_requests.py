"""Workloads to requests: what they share, when they come, who gives up."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from kvengine.errors import ConfigError
from kvplan.loading import decode
from kvplan.requests.build import request_specs
from kvplan.requests.spec import RequestSpec
from kvplan.workload import Workload, file_digest


def specs_of(folder: Path | None = None, *, seed: int = 0, **keys: object) -> list[RequestSpec]:
    """Requests of a workload; texts have one token a character, a trace lies in `folder`."""
    trace = keys.get("trace")
    if folder is not None and isinstance(trace, dict):
        keys["trace"] = {**trace, "file": str(folder / trace["file"])}
    workload = decode({"about": "test", **keys}, Workload, source="w.yaml")
    workload.check(where="w.yaml")
    return request_specs(workload, seed=seed, vocab_size=50_000, tokenize=lambda text: [ord(letter) for letter in text])


def gaps_of(specs: list[RequestSpec]) -> list[float]:
    times = [spec.arrival_s for spec in specs]
    return [later - earlier for earlier, later in pairwise(times)]


def some(requests: int, prompt_tokens: object = 5, **keys: object) -> dict[str, object]:
    return {"requests": requests, "prompt_tokens": prompt_tokens, **keys}


def test_a_prefix_tree_shares_level_by_level() -> None:
    tree = [{"tokens": 6, "branches": 2}, {"tokens": {"low": 3, "high": 9}, "branches": 3}]
    specs = specs_of(synthetic=some(300, shared_prefix_tokens=4, prefix_tree=tree), max_tokens=1)
    prompts = [tuple(spec.prompt_token_ids) for spec in specs]

    assert len({prompt[:4] for prompt in prompts}) == 1
    assert len({prompt[:10] for prompt in prompts}) == 2
    # Two branches and three below each: six ways down, and the same way has the same length each time.
    ways = {prompt[:-5] for prompt in prompts}
    assert len(ways) == 6
    assert len(set(prompts)) == 300


def test_a_later_turn_repeats_all_that_was_said_and_waits_for_it() -> None:
    (first, second, third) = specs_of(synthetic=some(1, 10, turns=3, turn_tokens=4), max_tokens=6)

    assert [spec.request_id for spec in (first, second, third)] == ["random-1.1", "random-1.2", "random-1.3"]
    assert (first.after, second.after, third.after) == (None, "random-1.1", "random-1.2")
    # 10; then 10 + 6 + 4; then 20 + 6 + 4.
    assert [spec.num_prompt_tokens for spec in (first, second, third)] == [10, 20, 30]
    request = second.build(history=[1, 2, 3])
    assert request.prompt_token_ids == [1, 2, 3, *second.prompt_token_ids]


def test_text_conversations_wait_for_replies_once_time_counts() -> None:
    chat = [[{"user": "a", "reply": "b"}, {"user": "c"}]]

    by_steps = specs_of(conversations=chat, max_tokens=1, turn_gap_steps=7)
    by_time = specs_of(conversations=chat, max_tokens=1, arrivals="poisson", rate=1, think_s=3)

    assert [(spec.arrival_step, spec.after) for spec in by_steps] == [(0, None), (7, None)]
    assert [(spec.after, spec.think_s) for spec in by_time] == [(None, 3), ("chat-1.1", 3)]
    assert by_time[1].history_tokens == 0  # the recorded reply is in its prompt already


def test_samples_are_requests_of_the_same_prompt() -> None:
    specs = specs_of(synthetic=some(2), max_tokens={"low": 1, "high": 1000}, samples=3)

    assert [spec.request_id for spec in specs] == [
        *("random-1", "random-1#2", "random-1#3"),
        *("random-2", "random-2#2", "random-2#3"),
    ]
    assert len({(tuple(spec.prompt_token_ids), spec.max_tokens, spec.session) for spec in specs}) == 2


def test_constant_arrivals_are_evenly_spaced() -> None:
    specs = specs_of(synthetic=some(5), max_tokens=1, arrivals="constant", rate=4)

    assert [spec.arrival_s for spec in specs] == [0, 0.25, 0.5, 0.75, 1.0]


def test_poisson_gaps_have_the_mean_of_their_rate_and_a_deviation_as_large() -> None:
    gaps = gaps_of(specs_of(synthetic=some(5000), max_tokens=1, arrivals="poisson", rate=4))

    assert fmean(gaps) == pytest.approx(0.25, rel=0.05)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(1, abs=0.06)


def test_gamma_gaps_have_their_coefficient_of_variation() -> None:
    gaps = gaps_of(specs_of(synthetic=some(20_000), max_tokens=1, arrivals="gamma", rate=10, cv=3))

    assert fmean(gaps) == pytest.approx(0.1, rel=0.1)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(3, rel=0.12)


def test_priorities_and_cancellations_have_their_shares() -> None:
    specs = specs_of(
        synthetic=some(4000),
        max_tokens=1,
        priorities=[{"value": 0, "share": 3}, {"value": 10, "share": 1}],
        cancel={"share": 0.1, "after_tokens": {"low": 2, "high": 3}},
    )

    # A quarter of 4,000 with a deviation of 27, a tenth with one of 19.
    assert Counter(spec.priority for spec in specs)[10] == pytest.approx(1000, abs=120)
    cancelled = [spec.cancel_after_tokens for spec in specs if spec.cancel_after_tokens is not None]
    assert len(cancelled) == pytest.approx(400, abs=80)
    assert set(cancelled) == {2, 3}
    assert specs[0].build().priority == specs[0].priority


def test_one_thing_that_is_drawn_does_not_change_the_others() -> None:
    plain = specs_of(synthetic=some(50, {"low": 1, "high": 99}), max_tokens={"low": 1, "high": 99})
    full = specs_of(
        synthetic=some(50, {"low": 1, "high": 99}),
        max_tokens={"low": 1, "high": 99},
        priorities=[{"value": 0, "share": 1}, {"value": 1, "share": 1}],
        cancel={"share": 0.5},
        arrivals="poisson",
        rate=3,
    )

    def lengths(specs: list[RequestSpec]) -> list[tuple[list[int], int]]:
        return [(spec.prompt_token_ids, spec.max_tokens) for spec in specs]

    assert lengths(plain) == lengths(full)


MOONCAKE = """\
{"timestamp": 27000, "input_length": 10, "output_length": 2, "hash_ids": [0, 1, 2]}
{"timestamp": 30000, "input_length": 8, "output_length": 3, "hash_ids": [0, 1]}

{"timestamp": 29000, "input_length": 9, "output_length": 0, "hash_ids": [0, 5, 6]}
{"timestamp": 31000, "input_length": 7, "output_length": 4, "hash_ids": [3, 4], "session_id": "x"}
{"timestamp": 40000, "input_length": 5, "output_length": 5, "hash_ids": [3], "session_id": "x"}
"""


def a_trace(folder: Path, **keys: object) -> dict[str, object]:
    (folder / "t.jsonl").write_text(MOONCAKE)
    return {"file": "t.jsonl", "format": "mooncake", "block_tokens": 4, **keys}


def test_a_trace_gives_lengths_times_and_shared_blocks(tmp_path: Path) -> None:
    specs = specs_of(tmp_path, trace=a_trace(tmp_path), arrivals="trace", speed=2)

    # Sorted by time, from the first one on, at twice the speed; the one without output is left out.
    assert [spec.arrival_s for spec in specs] == [0, 1.5, 2, 6.5]
    assert [(spec.num_prompt_tokens, spec.max_tokens) for spec in specs] == [(10, 2), (8, 3), (7, 4), (5, 5)]
    first, second, third, fourth = (spec.prompt_token_ids for spec in specs)
    assert first[:8] == second
    assert third[:4] == fourth[:4]
    assert third[:4] != first[:4]
    assert third[4:5] != fourth[4:5]  # block 4 is its own, and so is the token behind block 3
    assert {spec.after for spec in specs} == {None}


def test_a_part_of_a_trace_is_cut_by_time_and_number(tmp_path: Path) -> None:
    window = specs_of(tmp_path, trace=a_trace(tmp_path, start_s=3, duration_s=10), arrivals="trace")
    two = specs_of(tmp_path, trace=a_trace(tmp_path, start_s=3, requests=1), arrivals="trace")

    assert [(spec.arrival_s, spec.max_tokens) for spec in window] == [(0, 3), (1, 4)]
    assert [spec.max_tokens for spec in two] == [3]


def test_requests_of_a_session_can_wait_for_each_other(tmp_path: Path) -> None:
    specs = specs_of(tmp_path, trace=a_trace(tmp_path, wait_for_reply=True), arrivals="trace")

    assert [spec.after for spec in specs] == [None, None, None, "trace-3"]
    assert specs[3].arrival_s == 13  # and not before its own time


def test_output_lengths_of_a_trace_can_be_bounded(tmp_path: Path) -> None:
    specs = specs_of(tmp_path, trace=a_trace(tmp_path), max_tokens=3)

    assert [spec.max_tokens for spec in specs] == [2, 3, 3, 3]


def test_a_shuffled_trace_has_the_same_requests_in_an_order_of_the_seed(tmp_path: Path) -> None:
    trace = a_trace(tmp_path, shuffle=True)
    orders = {tuple(spec.max_tokens for spec in specs_of(tmp_path, seed=seed, trace=trace)) for seed in range(20)}

    assert len(orders) > 5
    assert {tuple(sorted(order)) for order in orders} == {(2, 3, 4, 5)}


SHAREGPT = """
[{"id": "1", "conversations": [
    {"from": "system", "value": "Be kind."}, {"from": "gpt", "value": "dropped"},
    {"from": "human", "value": "One?"}, {"from": "gpt", "value": "1."},
    {"from": "user", "value": "Two?"}, {"from": "gpt", "value": "Two."}]},
 {"id": "2", "conversations": []},
 {"id": "3", "conversations": [{"from": "human", "value": "Three?"}]}]
"""


def text_of(spec: RequestSpec) -> str:
    return "".join(map(chr, spec.prompt_token_ids))


def test_sharegpt_outputs_are_as_long_as_the_recorded_replies(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(SHAREGPT)
    specs = specs_of(tmp_path, trace={"file": "s.json", "format": "sharegpt", "requests": 1})
    turns = specs_of(
        tmp_path, trace={"file": "s.json", "format": "sharegpt", "conversations": "all"}, max_tokens=3, turn_gap_steps=5
    )

    assert [(text_of(spec), spec.max_tokens) for spec in specs] == [("Be kind.\nUser: One?\nAssistant:", 2)]
    assert text_of(turns[1]) == "User: Three?\nAssistant:"
    assert text_of(turns[2]) == "Be kind.\nUser: One?\nAssistant: 1.\nUser: Two?\nAssistant:"
    # Four letters of "Two.", no more than three; no reply was recorded to the last one.
    assert [(spec.max_tokens, spec.arrival_step) for spec in turns] == [(2, 0), (3, 0), (3, 5)]


def test_a_conversation_without_a_reply_needs_an_output_length(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(SHAREGPT)

    with pytest.raises(ConfigError, match=r"s\.json: text-2 does not say how long its output is"):
        specs_of(tmp_path, trace={"file": "s.json", "format": "sharegpt"})


def test_benchmark_lines_and_plain_prompts_are_prompts(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text('{"prompt": "Hi", "output_tokens": 9}\n\n{"prompt": "Ho", "x": 1}\n')
    (tmp_path / "p.txt").write_text("Hi\n\n  \nHo\n")

    lines = specs_of(tmp_path, trace={"file": "b.jsonl", "format": "vllm"}, max_tokens=20)
    plain = specs_of(tmp_path, trace={"file": "p.txt", "format": "prompts"}, max_tokens=20)

    assert [text_of(spec) for spec in lines] == [text_of(spec) for spec in plain]
    assert [spec.max_tokens for spec in lines] == [9, 20]
    assert [spec.max_tokens for spec in plain] == [20, 20]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"start_s": 100}, r"t\.jsonl: no request in this part of the trace"),
        ({"block_tokens": 5}, r"line 1: 3 hash_ids do not go with 10 tokens in blocks of 5: expected 2 or 2"),
        ({"file": "gone.jsonl"}, r"gone\.jsonl: no such file"),
    ],
)
def test_a_trace_that_cannot_be_used_is_named(tmp_path: Path, keys: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        specs_of(tmp_path, trace=a_trace(tmp_path, **keys))


def test_a_trace_without_times_cannot_say_when(tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_text("num_prefill_tokens,num_decode_tokens\n5,6\n")
    trace = {"file": "v.csv", "format": "vidur"}

    assert len(specs_of(tmp_path, trace=trace)) == 1
    for keys in ({"arrivals": "trace", "trace": trace}, {"trace": {**trace, "start_s": 1}}):
        with pytest.raises(ConfigError, match=r"v\.csv: has no times"):
            specs_of(tmp_path, **keys)


def test_the_fingerprint_knows_the_content_of_a_trace_and_not_its_place(tmp_path: Path) -> None:
    def content(folder: Path, text: str) -> dict[str, object]:
        folder.mkdir()
        (folder / "t.jsonl").write_text(text)
        trace = {"file": str(folder / "t.jsonl"), "format": "mooncake"}
        return decode({"trace": trace}, Workload, source="w.yaml").content(file_digest)

    here, there = content(tmp_path / "a", MOONCAKE), content(tmp_path / "b", MOONCAKE)
    changed = content(tmp_path / "c", MOONCAKE.replace("40000", "40001"))

    assert here == there != changed


def test_each_request_and_each_further_sample_draws_by_a_seed_of_its_own() -> None:
    sampling = {"temperature": 0.7, "top_p": 0.9}
    specs = specs_of(synthetic=some(5), max_tokens=3, samples=3, sampling=sampling, seed=4)
    requests = [spec.build(stop_token_ids=frozenset({2})) for spec in specs]

    assert len({request.seed for request in requests}) == 15
    params = requests[0].sampling
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.7, 0.9, 0, 3)
    assert params.stop_token_ids == {2}
    assert specs_of(synthetic=some(5), max_tokens=3, samples=3, sampling=sampling, seed=4) == specs
    # Whether requests draw changes nothing else about them.
    greedy = specs_of(synthetic=some(5), max_tokens=3, samples=3, seed=4)
    assert [spec.prompt_token_ids for spec in greedy] == [spec.prompt_token_ids for spec in specs]
    assert greedy[0].build().sampling.is_plain_greedy


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"top_p": 0.9}, "w.yaml: key 'sampling.temperature' is missing"),
        ({"temperature": -1}, "w.yaml: sampling.temperature: .*-1"),
        ({"temperature": 1, "top_p": 0}, "w.yaml: sampling.top_p: .*0"),
        ({"temperature": 1, "topp": 0.5}, "w.yaml: unknown key 'topp' under sampling; did you mean 'top_p'"),
    ],
)
def test_sampling_that_cannot_be_is_refused_with_its_key(sampling: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        specs_of(synthetic=some(5), max_tokens=3, sampling=sampling)
