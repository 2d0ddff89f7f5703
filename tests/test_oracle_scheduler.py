import copy
import json
from pathlib import Path
from typing import Any

import pytest

from kvengine.request import RequestId
from tests.fake_device import FakeDevice
from tests.oracle.outcome import Outcome
from tests.oracle.scheduler import Replay, check, compare
from tests.oracle.scheduler_case import Case, CaseRequest, Scenario, load_case
from tests.plain_scheduler import PlainRequest, PlainScheduler
from tests.support import ROOT, SHARED, shared_path

GOLDEN = ROOT / "tests" / "golden" / "scheduler"
OWN_CASES = sorted(GOLDEN.glob("*.json"))
SHARED_CASES = sorted((SHARED / "oracle" / "vllm").glob("*.json"))


def name_of(path: Path) -> str:
    return path.stem


def outcome_of(path: Path) -> Outcome:
    (outcome,) = check(path)
    return outcome


@pytest.mark.parametrize("path", OWN_CASES, ids=name_of)
def test_the_projects_own_cases_pass_to_the_block_id(path: Path) -> None:
    assert list(outcome_of(path).lines()) == []


def test_all_shared_cases_pass_to_the_block_id() -> None:
    shared_path("oracle/vllm")
    assert SHARED_CASES, "no case was found"
    lines = [line for path in SHARED_CASES for line in outcome_of(path).lines()]
    assert lines == []


def test_no_token_of_a_shared_case_reads_a_slot_that_was_not_written_for_it() -> None:
    shared_path("oracle/vllm")
    for path in SHARED_CASES:
        scenario = load_case(path).scenario
        Replay(scenario, on_schedule=FakeDevice(scenario.engine_config()).execute).run()


def test_the_plain_rules_agree_with_the_shared_cases_too() -> None:
    """The model that property tests compare with is itself held to the real scheduler's answers."""
    shared_path("oracle/vllm")
    cases = [load_case(path) for path in SHARED_CASES]
    followed = [case for case in cases if case.golden.detail == "full"]
    assert len(followed) > 40
    for case in followed:
        _follow_plainly(case)


def _follow_plainly(case: Case) -> None:
    scenario = case.scenario
    plain = PlainScheduler(scenario.engine_config())
    outputs = {item.id: item.outputs() for item in scenario.requests}
    draft_steps = dict.fromkeys(outputs, 0)
    for expected in case.golden.steps or []:
        for item in scenario.requests:
            if item.id in expected["arrived"]:
                plain.add(plain_request(item))
        for name in expected.get("aborted", []):
            plain.abort(name)
        step = plain.schedule()
        where = f"{scenario.name} step {expected['step']}"
        assert [list(pair) for pair in step.scheduled] == expected["scheduled"], where
        taken = [[name, blocks if len(blocks) > 1 else blocks[0]] for name, blocks in step.new_blocks.items()]
        assert [[name, blocks] for name, blocks in taken if any(blocks)] == expected["new_blocks"], where
        assert step.preempted == expected["preempted"], where
        assert list(map(list, step.copies)) == expected.get("block_copies", []), where
        assert list(map(list, step.drafts.items())) == expected.get("drafts", []), where
        lengths = {request.name: (request.computed, len(request.tokens)) for request in plain.running}
        sampled = [name for name, count in step.scheduled if sum((lengths[name][0], count)) >= lengths[name][1]]
        accepted: dict[RequestId, int] = {}
        if scenario.spec is not None:
            for name, count in step.drafts.items():
                right = scenario.spec.accept[draft_steps[name] % len(scenario.spec.accept)]
                accepted[RequestId(name)] = min(right, count)
                draft_steps[name] += 1
        numbers = {name: lengths[name][1] - plain_prompt(scenario, name) for name in sampled}
        tokens = {
            RequestId(name): output_at(outputs[name], numbers[name] + accepted.get(RequestId(name), 0))
            for name in sampled
        }
        assert plain.update(step, tokens, accepted) == expected["finished"], where
        for name in sampled if scenario.spec is not None else []:
            done = numbers[name] + accepted.get(RequestId(name), 0) + 1
            plain.propose(name, [output_at(outputs[name], done + ahead) for ahead in range(scenario.spec.k)])
        assert plain.free_queue == expected["free_queue"], where
        assert plain.cached_blocks() == expected["hashed_blocks"], where
        if "cache_entries" in expected:
            assert list(map(list, plain.cache_entries())) == expected["cache_entries"], where


def plain_request(item: CaseRequest) -> PlainRequest:
    return PlainRequest(
        item.id,
        item.prompt(),
        len(item.outputs()),
        priority=item.priority,
        salt=item.cache_salt or "",
        encoder_tokens=item.encoder_tokens,
    )


def plain_prompt(scenario: Scenario, name: str) -> int:
    return next(len(item.prompt()) for item in scenario.requests if item.id == name)


def output_at(outputs: list[int], index: int) -> int:
    """Past the last one it does not matter."""
    return outputs[min(index, len(outputs) - 1)]


def altered(path: Path, change: Any) -> Outcome:
    """The outcome of a case whose answers were changed."""
    document = json.loads(path.read_text())
    change(document["golden"])
    return compare(_case(document))


def _case(document: dict[str, Any]) -> Case:
    import msgspec

    return msgspec.convert(copy.deepcopy(document), Case)


@pytest.mark.parametrize("key", ["scheduled", "hits", "new_blocks", "preempted", "finished", "free_after_schedule",
                                 "free_after_update", "waiting_after_schedule", "block_tables", "free_queue",
                                 "hashed_blocks", "arrived", "step"])  # fmt: skip
def test_a_wrong_value_in_any_field_of_a_step_is_noticed(key: str) -> None:
    def change(golden: dict[str, Any]) -> None:
        golden["steps"][2][key] = 99 if isinstance(golden["steps"][2][key], int) else ["nobody"]

    outcome = altered(GOLDEN / "victim_blocks_leave_the_cache.json", change)
    assert any(mismatch.what.endswith(key) for mismatch in outcome.mismatches)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda golden: golden["totals"].update(recomputed_tokens=1), "totals recomputed_tokens"),
        (lambda golden: golden["totals"].update(invented=0), "totals invented"),
        (lambda golden: golden.update(status="stalled"), "golden status"),
        (lambda golden: golden.update(unfinished=["low"]), "golden unfinished"),
        (lambda golden: golden.update(step_digest="00"), "step_digest"),
        (lambda golden: golden["requests"]["low"].update(finish_step=3), "requests low"),
        (lambda golden: golden["requests"].pop("high"), "requests"),
        (lambda golden: golden["steps"].pop(), "number of steps"),
        (lambda golden: golden["steps"][0].update(cache_entries=[]), "step 0 cache_entries"),
        (lambda golden: golden["steps"][0].update(block_copies=[[1, 2]]), "step 0 block_copies"),
    ],
)
def test_a_wrong_total_or_a_field_the_run_does_not_report_is_noticed(change: Any, what: str) -> None:
    outcome = altered(GOLDEN / "victim_blocks_leave_the_cache.json", change)
    assert what in [mismatch.what for mismatch in outcome.mismatches]


def test_an_abort_that_is_not_in_the_answers_is_noticed() -> None:
    outcome = altered(GOLDEN / "aborted_head_lets_the_next_in.json", lambda golden: golden["steps"][2].pop("aborted"))
    assert [mismatch.what for mismatch in outcome.mismatches] == ["step 2 aborted"]
