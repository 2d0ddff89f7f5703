"""Do the printed figures agree with each other, at the rounding they are printed with?"""

from collections.abc import Sequence
from enum import StrEnum

from kvplan.explain.comparison import Check, CheckVerdict
from kvplan.explain.findings import SGLANG
from kvplan.explain.reading import EngineReading
from kvplan.explain.sglang_checks import SGLANG_CHECKS
from kvplan.explain.vllm_checks import VLLM_CHECKS


class Consistency(StrEnum):
    """What all comparisons of one start came to."""

    CONSISTENT = "consistent"
    DIFFERS_BY_VERSION_RULE = "differs_by_version_rule"
    INCONSISTENT = "inconsistent"
    NOT_CHECKABLE = "not_checkable"


def run_checks(reading: EngineReading) -> list[Check]:
    """Compare everything that the log prints twice, or that follows from other figures in it."""
    rules = SGLANG_CHECKS if reading.engine == SGLANG else VLLM_CHECKS
    return list(dict.fromkeys(check for rule in rules for check in rule(reading)))


def consistency(checks: Sequence[Check]) -> Consistency:
    """Sum the comparisons up."""
    decisive = [check for check in checks if check.verdict is not CheckVerdict.NOTE]
    if not decisive:
        return Consistency.NOT_CHECKABLE
    differing = [check for check in decisive if check.verdict is CheckVerdict.DIFFERS]
    if any(not check.by_version_rule for check in differing):
        return Consistency.INCONSISTENT
    return Consistency.DIFFERS_BY_VERSION_RULE if differing else Consistency.CONSISTENT
