"""Runs all cases on the device that the command line names."""

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


def main() -> None:
    """Write what each case came to."""
    device, *fuzz = sys.argv[1:]
    cases = CASES
    if fuzz:
        cases = {f"random batch {seed}": fuzz_case(seed) for seed in range(int(fuzz[1]))}
    outcomes = {name: outcome(case, device) for name, case in cases.items()}
    sys.stdout.write(json.dumps({"cases": outcomes, "refusals": refusals(device)}))


if __name__ == "__main__":
    main()
