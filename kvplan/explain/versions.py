"""Which releases word their lines so: an inference, never called more than that."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvplan.explain.findings import Finding
from kvplan.kv_layout.rules import Version, parse_version

_LAST_V0: Version = (0, 10, 2)
_ONE_POOL_LINE_SINCE: Version = (0, 28, 0)
_LAST_OWN_POOL_LINE: Version = (0, 27, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRange:
    """The first and last release that fit; None where nothing bounds that side."""

    first: Version | None = None
    last: Version | None = None

    def __str__(self) -> str:
        if self.first and self.last:
            if self.first == self.last:
                return _text(self.first)
            return f"{_text(self.first)} to {_text(self.last)}" if self.first < self.last else ""
        if self.first:
            return f"{_text(self.first)} or later"
        return f"up to {_text(self.last)}" if self.last else ""


def infer_versions(findings: Sequence[Finding], generation: str | None) -> VersionRange:
    """The releases whose wording this is; a fork may differ, so this is never given as the version."""
    firsts = [version for finding in findings if (version := parse_version(finding.line.first))]
    lasts = [version for finding in findings if (version := parse_version(finding.line.last))]
    if generation == "V0":
        lasts.append(_LAST_V0)
    for first, last in _pool_line_bounds(findings):
        firsts += [first] if first else []
        lasts += [last] if last else []
    return VersionRange(first=max(firsts, default=None), last=min(lasts, default=None))


def _pool_line_bounds(findings: Sequence[Finding]) -> Iterator[tuple[Version | None, Version | None]]:
    """Tokens and concurrency share a line since 0.28, and had one each before."""
    for finding in findings:
        if any(figure.name == "kv_cache_tokens" for figure in finding.figures):
            if "Maximum concurrency" in finding.record.text:
                yield _ONE_POOL_LINE_SINCE, None
            elif not finding.record.ends_log and not finding.record.continuation:
                yield None, _LAST_OWN_POOL_LINE


def _text(version: Version) -> str:
    return ".".join(map(str, version))
