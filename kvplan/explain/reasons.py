"""Why the figure is what it is: the one thing to say first, then what else is worth knowing."""

from collections.abc import Iterable, Sequence

from kvplan.explain.comparison import Check
from kvplan.explain.failure_reasons import failure_reason
from kvplan.explain.findings import SGLANG
from kvplan.explain.reading import EngineReading
from kvplan.explain.sglang_reasons import SGLANG_RULES, sglang_takes_the_rest
from kvplan.explain.shared_reasons import excerpt_partial, smallest_rank_decides
from kvplan.explain.situation import Reason, Situation
from kvplan.explain.vllm_reasons import VLLM_RULES, vllm_takes_the_rest


def find_reasons(reading: EngineReading, checks: Sequence[Check]) -> list[Reason]:
    """All reasons that apply, the one to say first in front; there is always one."""
    situation = Situation(reading=reading, checks=tuple(checks))
    if reading.error is not None:
        return _first_of_each([failure_reason(reading, reading.error), smallest_rank_decides(situation)])
    is_sglang = reading.engine == SGLANG
    found = _first_of_each(rule(situation) for rule in (SGLANG_RULES if is_sglang else VLLM_RULES))
    if found:
        return found
    return [(sglang_takes_the_rest if is_sglang else vllm_takes_the_rest)(situation) or excerpt_partial(situation)]


def _first_of_each(reasons: Iterable[Reason | None]) -> list[Reason]:
    by_code: dict[str, Reason] = {}
    for reason in reasons:
        if reason is not None:
            by_code.setdefault(reason.code, reason)
    return list(by_code.values())
