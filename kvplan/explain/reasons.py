"""Why the figure is what it is: the one thing to say first, then what else is worth knowing."""

from collections.abc import Sequence

from kvplan.explain.checks import Check
from kvplan.explain.failure_reasons import failure_reason
from kvplan.explain.findings import SGLANG
from kvplan.explain.reading import EngineReading
from kvplan.explain.sglang_reasons import SGLANG_RULES
from kvplan.explain.shared_reasons import excerpt_partial
from kvplan.explain.situation import Reason, Situation
from kvplan.explain.vllm_reasons import VLLM_RULES


def find_reasons(reading: EngineReading, checks: Sequence[Check]) -> list[Reason]:
    """All reasons that apply, the one to say first in front; there is always one."""
    if reading.error is not None:
        return [failure_reason(reading, reading.error)]
    situation = Situation(reading=reading, checks=tuple(checks))
    found: dict[str, Reason] = {}
    for rule in SGLANG_RULES if reading.engine == SGLANG else VLLM_RULES:
        reason = rule(situation)
        if reason is not None:
            found.setdefault(reason.code, reason)
    return list(found.values()) or [excerpt_partial(situation)]
