"""One comparison of printed figures, with both sides."""

from dataclasses import dataclass
from enum import StrEnum

from kvplan.explain.spans import Span


class CheckVerdict(StrEnum):
    """What a comparison came to."""

    OK = "ok"
    DIFFERS = "differs"
    FAILS = "fails"
    """A condition that the engine itself found broken: the reason of its refusal."""
    NOTE = "note"
    """A difference that is no contradiction: something else takes memory too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison, with both sides."""

    name: str
    verdict: CheckVerdict
    left: str
    right: str
    by_version_rule: bool = False
    """The sides differ, and the counting rule of the version explains it."""


def compare(name: str, left: Span, right: Span, *, decimals: int = 2, by_version_rule: bool = False) -> Check:
    """Compare two sides as intervals: they agree where one value can be both."""
    agrees = left.meets(right)
    return Check(
        name=name,
        verdict=CheckVerdict.OK if agrees else CheckVerdict.DIFFERS,
        left=f"{left.middle:,.{decimals}f}",
        right=f"{right.middle:,.{decimals}f}",
        by_version_rule=by_version_rule and not agrees,
    )
