"""Real traces give the reference figures, and the oracle sees it when they do not."""

import json
from pathlib import Path

import pytest

from tests.oracle.outcome import OracleInputError
from tests.oracle.traces import check
from tests.support import shared_path


def test_every_figure_of_the_real_traces_is_the_reference_figure() -> None:
    outcomes = list(check(shared_path("traces")))

    assert len(outcomes) == 31
    assert [line for outcome in outcomes for line in outcome.lines()] == []


def a_folder(folder: Path, **changes: object) -> Path:
    """Three requests of 8 tokens in blocks of 4; the second one repeats the first block of the first."""
    ids = ([1, 2], [1, 3], [4, 5])
    lines = [
        {"timestamp": 2000 * number, "input_length": 8, "output_length": 3, "hash_ids": blocks}
        for number, blocks in enumerate(ids)
    ]
    (folder / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    lengths = {"mean": 8.0, "std": 0.0, **dict.fromkeys(("p50", "p90", "p95", "p99", "min", "max"), 8), "sum": 24}
    expected = {
        "format": "mooncake",
        "requests": 3,
        "input": lengths,
        "arrivals": {"duration_s": 4.0, "cv_interarrival": 0.0, "zero_gaps": 0, "peak_requests_in_one_second": 1},
        "prefix": {"block_size": 4, "infinite": {"hit_blocks": 1, "block_hit_rate": 0.166667}, "lru": []},
        **changes,
    }
    (folder / "reference.json").write_text(json.dumps({"traces": {"t.jsonl": expected}}))
    return folder


def test_the_oracle_passes_what_is_right(tmp_path: Path) -> None:
    assert all(outcome.passed for outcome in check(a_folder(tmp_path)))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"requests": 4}, "requests"),
        ({"input": {"mean": 8.1}}, "input.mean"),
        ({"arrivals": {"duration_s": 5.0}}, "arrivals.duration_s"),
        ({"arrivals": None}, "arrivals"),
        ({"arrivals": {"fourth_moment": 1}}, "arrivals.fourth_moment"),
        ({"prefix": {"block_size": 4, "infinite": {"hit_blocks": 2}, "lru": []}}, "hit_blocks"),
        (
            {"prefix": {"block_size": 4, "infinite": {}, "lru": [{"capacity_blocks": 1, "evictions": 0}]}},
            "evictions",
        ),
    ],
)
def test_the_oracle_fails_what_is_wrong(tmp_path: Path, changes: dict[str, object], what: str) -> None:
    (failed,) = [outcome for outcome in check(a_folder(tmp_path, **changes)) if not outcome.passed]

    assert [mismatch.what for mismatch in failed.mismatches] == [what]


def test_a_trace_that_cannot_be_read_is_a_failed_case(tmp_path: Path) -> None:
    (tmp_path / "reference.json").write_text(json.dumps({"traces": {"t.jsonl": {"format": "mooncake"}}}))

    (outcome,) = check(tmp_path)
    assert outcome.unsupported == f"{tmp_path / 't.jsonl'}: no such file"


def test_a_reference_that_is_none_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "reference.json").write_text("{}")

    with pytest.raises(OracleInputError):
        list(check(tmp_path))
