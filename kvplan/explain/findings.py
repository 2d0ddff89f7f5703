"""What the engine's own lines say, one finding for each line that was understood."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kvplan.explain.records import Record, compact
from kvplan.explain.sglang_lines import SGLANG_LINES, SHARED_LINES
from kvplan.explain.skeletons import Skeleton
from kvplan.explain.vllm_lines import VLLM_LINES

VLLM, SGLANG = "vllm", "sglang"
_LINES = [
    *((line, VLLM) for line in VLLM_LINES),
    *((line, SGLANG) for line in SGLANG_LINES),
    *((line, "") for line in SHARED_LINES),
]
_EXCEPTION = re.compile(r"([A-Za-z_.]*(?:Error|Exception)):[^:]{0,40}$")
_NUMBER_GOES_ON = re.compile(r"[.,]?\d[\d,]*\s*(?:$|[,)])")
"""A next line that may begin with the rest of a number; a progress bar does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One number as printed."""

    name: str
    text: str
    unit: str = ""

    @property
    def number(self) -> int | float:
        """The number itself."""
        return to_number(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one skeleton matched in one record."""

    record: Record
    engine: str
    """`vllm`, `sglang`, or empty for lines that both write."""
    line: Skeleton
    figures: tuple[Value, ...]
    settings: dict[str, int | float | str]
    exception: str = ""
    """The exception type that stands in front of an error message."""

    @property
    def figure_names(self) -> frozenset[str]:
        """The names of its figures."""
        return frozenset(figure.name for figure in self.figures)


def to_number(text: str) -> int | float:
    """Read a printed number: `28,752`, `-2.28`, `131072`."""
    digits = text.replace(",", "")
    return float(digits) if "." in digits else int(digits)


def find_in(record: Record) -> Iterator[Finding]:
    """Match one record with every line that an engine prints."""
    alone = compact(record.text)
    joined = alone + record.continuation
    for line, engine in _LINES:
        if line.opener in joined and (match := _best_match(record, line, alone, joined)):
            yield _finding(record, line, engine, match)


def _best_match(record: Record, line: Skeleton, alone: str, joined: str) -> re.Match[str] | None:
    """Match the record's own line, or the message that begins in it if that says more.

    A message counts for the record in which it begins. What may be cut, by the end of the log or by the end of a
    wrapped line, is not read.
    """
    best: re.Match[str] | None = None
    for text, reaches_end in ((alone, record.ends_log), (joined, record.joined_ends_log)):
        match = line.pattern.search(text)
        if match is None or match.start() >= len(alone):
            continue
        if line.ends_open and match.end() == len(text) and (reaches_end or _may_go_on(record, match)):
            continue
        if best is None or _filled(match) > _filled(best):
            best = match
    return best


def _may_go_on(record: Record, match: re.Match[str]) -> bool:
    """Whether a number at the end of a line may have its last digits on the next."""
    return match.string[-1].isdigit() and bool(_NUMBER_GOES_ON.match(record.next_line))


def _filled(match: re.Match[str]) -> int:
    return sum(group is not None for group in match.groups())


def _finding(record: Record, line: Skeleton, engine: str, match: re.Match[str]) -> Finding:
    figures: list[Value] = []
    settings: dict[str, int | float | str] = {}
    for group, place in line.places.items():
        text = match[group]
        if text is None:
            continue
        if place.kind == "figure":
            figures.append(Value(name=place.name, text=text, unit=_unit(place.name, match.string[match.end(group) :])))
        else:
            settings[place.name] = text if place.kind == "word" else to_number(text)
    exception = _EXCEPTION.search(match.string[: match.start()]) if line.event else None
    return Finding(
        record=record,
        engine=engine,
        line=line,
        figures=tuple(figures),
        settings=settings,
        exception=exception[1].rpartition(".")[2] if exception else "",
    )


def _unit(name: str, following: str) -> str:
    if name.endswith(("_gib", "_gb")):
        return "GiB printed as GB" if following.startswith("GB") else "GiB"
    if name.endswith("_bytes"):
        return "B"
    return "%" if name.endswith("_percent") else ""
