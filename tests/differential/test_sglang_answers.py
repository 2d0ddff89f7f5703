"""The radix cache and its decisions against the answers of SGLang's own classes."""

import json
from pathlib import Path

import pytest

from tests.oracle.outcome import OracleInputError
from tests.oracle.sglang import check
from tests.support import shared_path


def test_every_memory_case_is_the_same_to_the_slot_number() -> None:
    outcomes = list(check(shared_path("oracle/sglang")))
    assert [line for outcome in outcomes for line in outcome.lines()] == []
    assert len(outcomes) == 15


def test_every_decision_is_the_same() -> None:
    outcomes = list(check(shared_path("oracle/sglang_sched.json")))
    assert [line for outcome in outcomes for line in outcome.lines()] == []
    assert len(outcomes) == 11


def a_case(**changes: object) -> dict[str, object]:
    """Two slots of four taken and one given back; worked out by hand: 1, 2 go out, 1 comes back behind 3, 4."""
    counters = {"evictable": 0, "protected": 0, "tree_tokens": 0, "nodes": 0}
    steps = [
        {"op": "alloc", "slots": [1, 2], "available": 2, **counters},
        {"op": "free", "available": 3, **counters},
    ]
    end = {"available": 3, "free_list": [[3, 4, 1], []], "tree": [], **counters}
    golden = {
        "steps": steps,
        "digest": "no digest at all",
        "chain": [],
        "chain_every": 10,
        "end": end,
        "evicted_tokens": 0,
    }
    ops = [{"op": "alloc", "n": 2, "as": "a"}, {"op": "free", "reg": "a", "to": 1}]
    scenario = {"name": "mine", "page_size": 1, "pool_tokens": 4, "ops": ops}
    return {"scenario": {**scenario, **changes}, "golden": golden}


def what_differs(path: Path, case: dict[str, object]) -> list[str]:
    path.write_text(json.dumps(case))
    (outcome,) = check(path)
    return [mismatch.what for mismatch in outcome.mismatches]


def test_a_wrong_digest_alone_is_a_difference(tmp_path: Path) -> None:
    assert what_differs(tmp_path / "case.json", a_case()) == ["digest"]


def test_another_pool_is_another_answer(tmp_path: Path) -> None:
    found = what_differs(tmp_path / "case.json", a_case(pool_tokens=5))
    assert set(found) >= {"op 0 (alloc) available", "op 1 (free) available", "end available", "end free_list"}


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ({"op": "allocate", "n": 1}, r"ops\[0\]: unknown op 'allocate'"),
        ({"op": "alloc", "n": 1}, r"ops\[0\]: op 'alloc' lacks as"),
    ],
)
def test_an_operation_that_cannot_be_done_is_named(tmp_path: Path, operation: object, message: str) -> None:
    path = tmp_path / "case.json"
    path.write_text(json.dumps(a_case(ops=[operation])))
    with pytest.raises(OracleInputError, match=message):
        list(check(path))


def test_a_file_in_neither_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_text('{"scenario": {}}')
    with pytest.raises(OracleInputError, match=r"case\.json: Object missing required field"):
        list(check(path))
