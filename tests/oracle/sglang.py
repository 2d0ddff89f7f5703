"""Compares the token-level and paged pool, the radix tree and the scheduler's decisions with SGLang's own."""

from collections.abc import Iterator
from pathlib import Path

from tests.oracle import sglang_decisions, sglang_memory
from tests.oracle.outcome import OracleInputError, Outcome
from tests.oracle.sglang_case import Decisions, load


def check(path: Path) -> Iterator[Outcome]:
    """Run the cases of one file, or of each `*.json` in a folder."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise OracleInputError(f"{path}: holds no .json file")
    for file in files:
        case = load(file)
        if isinstance(case, Decisions):
            yield from map(sglang_decisions.compare, case.cases)
        else:
            yield sglang_memory.compare(case)
