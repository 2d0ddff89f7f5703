"""The Prometheus text format (0.0.4), read so that no bytes whatever raise.

What is malformed is dropped and counted, never guessed at; a last line without its newline was cut and is dropped too.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Labels = Mapping[str, str]

_SAMPLE = re.compile(
    r"""(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*+)
        (?: [ \t]*+ \{ (?P<labels> (?: [^"{}\\] | "(?:[^"\\]|\\.)*+" )*+ ) \} [ \t]*+ | [ \t]++ )
        (?P<value> [+-]? (?: (?: \d++ (?:\.\d*+)? | \.\d++ ) (?:[eE][+-]?\d++)? | (?i:nan|inf(?:inity)?) ) )
        (?: [ \t]++ -?\d++ )?            # timestamp
        (?: [ \t]++ \# [ \t].*+ )?       # exemplar
        [ \t\r]*+""",
    re.VERBOSE | re.ASCII,
)
_NAME = re.compile(r"[a-zA-Z0-9_:]*", re.ASCII)
_LABEL = re.compile(r'[ \t]*+([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\]|\\.)*+)"[ \t]*+(?:,|$)', re.ASCII)
_COMMENT = re.compile(
    r"# ?(?P<keyword>HELP|TYPE)[ \t]++(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*+)(?:[ \t]++(?P<rest>.*))?", re.ASCII
)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}
_PART_OF_FAMILY = re.compile(r"_(?:bucket|count|sum|total|created)$")


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: the value of one series; NaN where the text says NaN or contradicts itself."""

    labels: Labels
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsText:
    """All that a text says, by metric name."""

    samples: Mapping[str, Sequence[Sample]]
    help: Mapping[str, str]
    """HELP texts; a name without one may still be in `declared`."""
    declared: frozenset[str]
    """Names with a HELP or TYPE line."""
    num_good_lines: int
    num_bad_lines: int
    """Lines dropped because they are no sample and no comment; the one cut at the end is not counted."""
    truncated: bool
    """The text ends in the middle."""
    unfinished_family: str | None
    """The metric in which a truncated text ends, so that series of it may be missing."""

    def names(self) -> set[str]:
        """All names that are declared or have a sample."""
        return {*self.samples, *self.declared}

    def has(self, name: str) -> bool:
        """Whether the metric is declared or has a sample."""
        return name in self.samples or name in self.declared

    def is_unfinished(self, name: str) -> bool:
        """Whether series of this metric may be missing because the text was cut there."""
        return self.unfinished_family is not None and _family(name, self.declared) == self.unfinished_family


def parse_text(body: bytes, *, truncated: bool = False) -> MetricsText:
    """Read a metrics text of any origin.

    Args:
        truncated: The body is known to be cut, for instance shorter than its Content-Length. A cut inside a line is
            noticed without.
    """
    lines = body.decode("utf-8", errors="surrogateescape").removeprefix("\ufeff").split("\n")
    cut_line = lines.pop()
    reader = _Reader()
    for line in lines:
        reader.take(line)
    truncated = truncated or bool(cut_line.strip())
    return MetricsText(
        samples={name: _samples(series) for name, series in reader.series.items()},
        help=reader.help,
        declared=frozenset(reader.declared),
        num_good_lines=reader.num_good_lines,
        num_bad_lines=reader.num_bad_lines,
        truncated=truncated,
        unfinished_family=reader.family_in_which_it_ends(cut_line) if truncated else None,
    )


class _Reader:
    """Takes line after line."""

    def __init__(self) -> None:
        self.series: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        self.help: dict[str, str] = {}
        self.declared: set[str] = set()
        self.num_good_lines = 0
        self.num_bad_lines = 0
        self.last_name: str | None = None

    def take(self, line: str) -> None:
        stripped = line.strip(" \t\r")
        if not stripped:
            return
        understood = self._comment(stripped) if stripped.startswith("#") else self._sample(stripped)
        if understood:
            self.num_good_lines += 1
        else:
            self.num_bad_lines += 1

    def family_in_which_it_ends(self, cut_line: str) -> str | None:
        if self.last_name is None or cut_line.startswith("#"):
            return None
        name_so_far = _NAME.match(cut_line)[0]  # type: ignore[index]  # matches the empty string
        family = _family(self.last_name, self.declared)
        if name_so_far and len(name_so_far) < len(cut_line):
            return _family(name_so_far, self.declared)
        goes_on = family.startswith(name_so_far) or name_so_far.startswith(family)
        return family if goes_on or self.last_name.startswith(name_so_far) else None

    def _comment(self, line: str) -> bool:
        if _has_broken_text(line):
            return False
        match = _COMMENT.match(line)
        if match:
            self.last_name = match["name"]
            self.declared.add(self.last_name)
            if match["keyword"] == "HELP":
                self.help[self.last_name] = match["rest"] or ""
        return True

    def _sample(self, line: str) -> bool:
        match = _SAMPLE.fullmatch(line)
        if match is None or _has_broken_text(line):
            return False
        labels = _parse_labels(match["labels"] or "")
        if labels is None:
            return False
        self.last_name = match["name"]
        series = self.series.setdefault(self.last_name, {})
        value = float(match["value"])
        # Two values for one series: neither can be trusted.
        series[labels] = value if series.get(labels, value) == value else math.nan
        return True


def _parse_labels(text: str) -> tuple[tuple[str, str], ...] | None:
    labels: list[tuple[str, str]] = []
    position = 0
    end = len(text.rstrip(" \t"))
    while position < end:
        match = _LABEL.match(text, position)
        if match is None:
            return None
        labels.append((match[1], _ESCAPE.sub(_unescape, match[2]) if "\\" in match[2] else match[2]))
        position = match.end()
    if max(Counter(name for name, _ in labels).values(), default=1) > 1:
        return None
    return tuple(sorted(labels))


def _unescape(match: re.Match[str]) -> str:
    return _ESCAPED.get(match[1], match[0])


def _has_broken_text(line: str) -> bool:
    """Whether bytes of the line were not UTF-8."""
    return not line.isascii() and any("\ud800" <= character <= "\udfff" for character in line)


def _samples(series: Mapping[tuple[tuple[str, str], ...], float]) -> tuple[Sample, ...]:
    return tuple(Sample(dict(labels), value) for labels, value in series.items())


def _family(name: str, declared: set[str] | frozenset[str]) -> str:
    if name in declared:
        return name
    base = _PART_OF_FAMILY.sub("", name)
    return base if base in declared else name
