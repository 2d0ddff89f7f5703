"""One start with its checks, and the questions that several rules ask of it."""

import re
from dataclasses import dataclass

from kvplan.explain.comparison import Check, CheckVerdict
from kvplan.explain.reading import EngineReading, Figure
from kvplan.kv_layout.rules import Version, parse_version

_ONE_RANK_PRINTS_SINCE: Version = (0, 11, 1)
_TOKENS_ARE_CONCURRENCY_SINCE: Version = (0, 20, 1)
_SURELY_NEW: Version = (0, 20, 0)
"""0.20.0 itself still counts blocks, but its wording cannot be told from that of 0.20.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A cause, by a code to match and a sentence to read."""

    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A start as read and checked."""

    reading: EngineReading
    checks: tuple[Check, ...]

    @property
    def differs(self) -> bool:
        """Whether two figures disagree."""
        return any(check.verdict is CheckVerdict.DIFFERS for check in self.checks)

    @property
    def only_one_rank_printed(self) -> bool:
        """Whether the first of several ranks alone printed its memory, as since 0.11.1."""
        gpu, version = self.reading.gpu, parse_version(self.reading.version or "")
        printed = self.reading.all("available_kv_gib")
        if self.reading.generation != "V1" or (gpu.count or gpu.count_at_least or 0) < 2 or not printed:
            return False
        if version is not None and version < _ONE_RANK_PRINTS_SINCE:
            return False
        is_first = not any(int(index) for index in re.findall(r"(?:PP|TP)(\d+)", printed[0].rank or ""))
        return is_first and len({figure.speaker for figure in printed}) == 1

    @property
    def counts_the_new_way(self) -> bool:
        """Whether this version's token figure is concurrency times length."""
        version = parse_version(self.reading.version or "")
        if version is not None:
            return version >= _TOKENS_ARE_CONCURRENCY_SINCE
        first = self.reading.inferred_versions.first
        return first is not None and first >= _SURELY_NEW

    @property
    def graphs_come_on_top(self) -> bool:
        """Whether CUDA graphs take memory beside the budget in this version."""
        if "graphs_not_charged" in self.reading.events:
            return True
        version = parse_version(self.reading.version or "") or self.reading.inferred_versions.last
        return "graphs_charged" not in self.reading.events and version is not None and version < _SURELY_NEW


def of_rank(figure: Figure) -> str:
    """The rank behind a figure, in brackets; nothing where it has none."""
    return f" ({figure.rank})" if figure.rank else ""
