"""`python -m tests.oracle KIND PATH... [--json]`: compare the product with files of known answers."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import cast

from tests.oracle.outcome import OracleInputError, Outcome

Check = Callable[[Path], Iterable[Outcome]]

KINDS: dict[str, str] = {
    "scheduler": "tests.oracle.scheduler",
    "sizing": "tests.oracle.sizing",
    "startup-exact": "tests.oracle.startup_exact",
    "startup-predict": "tests.oracle.startup_predict",
    "models": "tests.oracle.models",
    "logs": "tests.oracle.logs",
    "metrics": "tests.oracle.metrics",
    "kv-events": "tests.oracle.kv_events",
    "captures": "tests.oracle.captures",
    "sglang": "tests.oracle.sglang",
    "generate": "tests.oracle.generate",
    "traces": "tests.oracle.traces",
}
"""Module of each kind: its `check(path)` yields one `Outcome` a case and raises `OracleInputError` for a bad file."""


def main(arguments: Sequence[str]) -> int:
    """Run one comparison.

    Returns:
        0 if every counted case passed, 1 if any failed, 2 for an input that cannot be compared.
    """
    options = _parser().parse_args(arguments)
    try:
        outcomes = _run(_load(options.kind), options.paths)
    except OracleInputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _report(outcomes, as_json=options.json)
    return 0 if all(outcome.passed for outcome in outcomes if not outcome.apart) else 1


class _OneLineParser(argparse.ArgumentParser):
    """A parser whose complaint is one line."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(2, f"error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _OneLineParser(prog="python -m tests.oracle", description=__doc__)
    parser.add_argument("kind", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("paths", metavar="PATH", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true", help="outcomes as JSON on stdout, the last line on stderr")
    return parser


def _load(kind: str) -> Check:
    module = KINDS.get(kind)
    if module is None:
        raise OracleInputError(f"unknown kind {kind!r}; known kinds: {', '.join(KINDS)}")
    try:
        return cast(Check, import_module(module).check)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise OracleInputError(f"kind {kind!r} is not built yet") from None


def _run(check: Check, paths: Sequence[Path]) -> list[Outcome]:
    for path in paths:
        if not path.exists():
            raise OracleInputError(f"{path}: no such file or folder")
    return [outcome for path in paths for outcome in check(path)]


def _report(outcomes: Sequence[Outcome], *, as_json: bool) -> None:
    counted = [outcome for outcome in outcomes if not outcome.apart]
    summary = _count(counted)
    if as_json:
        num_passed = sum(outcome.passed for outcome in counted)
        cases = list(map(_record, outcomes))
        print(json.dumps({"passed": num_passed, "failed": len(counted) - num_passed, "cases": cases}))
        print(summary, file=sys.stderr)
        return
    for outcome in outcomes:
        for line in outcome.lines():
            print(line)
    for reason in dict.fromkeys(outcome.apart for outcome in outcomes if outcome.apart):
        print(f"{reason}, counted apart: {_count([outcome for outcome in outcomes if outcome.apart == reason])}")
    print(summary)


def _count(outcomes: Sequence[Outcome]) -> str:
    num_passed = sum(outcome.passed for outcome in outcomes)
    return f"{num_passed} passed, {len(outcomes) - num_passed} failed"


def _record(outcome: Outcome) -> dict[str, object]:
    differences = [
        {"what": mismatch.what, "expected": mismatch.expected, "got": mismatch.got} for mismatch in outcome.mismatches
    ]
    return {
        "case": outcome.case,
        "passed": outcome.passed,
        "note": outcome.note or None,
        "apart": outcome.apart or None,
        "unsupported": outcome.unsupported or None,
        "mismatches": differences,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
