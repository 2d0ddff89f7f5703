"""Runs all cases on the device that the command line names, or every so many-th of them, a line of JSON each.

With `--refusals` it says how wrong inputs are refused instead.
"""

import json
import sys

from tests.differential.kernel_cases.all import CASES
from tests.differential.kernel_cases.attention import fuzz_case
from tests.differential.kernel_cases.case import Case
from tests.differential.kernel_cases.refusals import refusals


def outcome(case: Case, device: str) -> str:
    """Run one case."""
    try:
        case(device)
    except AssertionError as error:
        return str(error) or "an assertion without words failed"
    return "ok"


def outcome_or_fault(case: Case, device: str) -> str:
    """Run one case among many whose outcomes count whatever becomes of it."""
    try:
        return outcome(case, device)
    except Exception as error:  # noqa: BLE001 - a fault of a device is an outcome too
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def main() -> None:
    """Write what each case came to."""
    device, *fuzz = sys.argv[1:]
    if fuzz[:1] == ["--shard"]:
        first, count = int(fuzz[1]), int(fuzz[2])
        for name, case in list(CASES.items())[first::count]:
            sys.stdout.write(json.dumps({name: outcome_or_fault(case, device)}) + "\n")
            sys.stdout.flush()
        return
    if fuzz[:1] == ["--refusals"]:
        sys.stdout.write(json.dumps(refusals(device)))
        return
    cases = CASES
    if fuzz:
        cases = {f"random batch {seed}": fuzz_case(seed) for seed in range(int(fuzz[1]))}
    outcomes = {name: outcome(case, device) for name, case in cases.items()}
    sys.stdout.write(json.dumps({"cases": outcomes}))


if __name__ == "__main__":
    main()
