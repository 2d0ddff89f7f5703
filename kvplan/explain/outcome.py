"""How a start ended: ready, still starting, failed and why."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kvplan.explain.events import Clue
from kvplan.explain.findings import Finding
from kvplan.explain.starts import FAILURES, POOL_FIGURES

_GRAPH_FRAMES = frozenset(
    {
        "_capture_cudagraphs",
        "_capture_graphs",
        "capture_cuda_graphs",
        "capture_graphs",
        "capture_model",
        "capture_one_batch_size",
        "compile_or_warm_up_model",
        "init_cuda_graphs",
        "init_device_graphs",
    }
)
_GENERIC = "failed"
_SPECIFIC_FIRST = (
    "max_len_exceeds_pool",
    "free_memory_below_budget",
    "no_kv_memory",
    "state_blocks_below_max_num_seqs",
    "profiling_disturbed",
    "free_memory_unbalanced",
    "crash_in_graph_capture",
    "out_of_memory",
)
_FIELDS = {
    "free_memory_below_budget": {"free_gib": "free_at_start_gib", "budget_gib": "budget_gib"},
    "profiling_disturbed": {"free_gib": "free_at_start_gib", "free_after_gib": "free_after_profile_gib"},
    "no_kv_memory": {
        "available_kv_gib": "available_kv_gib",
        "kv_tokens_profiled": "kv_tokens_profiled",
        "minimum_mem_fraction_static": "minimum_mem_fraction_static",
    },
    "state_blocks_below_max_num_seqs": {"num_gpu_blocks": "num_gpu_blocks"},
}
_LENGTH_FIELDS = ("max_model_len", "needed_kv_gib", "available_kv_gib", "estimated_max_model_len")
_OLD_LENGTH_FIELDS = ("max_model_len", "max_kv_tokens")


class Verdict(StrEnum):
    """How far the log shows the start to have come."""

    READY = "ready"
    STARTING = "starting"
    """A pool was sized; the end is not in the log."""
    FAILED = "failed"
    UNKNOWN = "unknown"
    """No pool yet, and no error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReading:
    """Why a start failed."""

    kind: str
    type: str | None = None
    """The exception's class, where the log has it."""
    figures: dict[str, int | float | None] = field(default_factory=dict)
    after_pool: bool = False
    """The pool had its size already when it came."""
    line: int | None = None


def read_outcome(findings: Sequence[Finding], clues: Sequence[Clue]) -> tuple[Verdict, ErrorReading | None]:
    """Tell how a start ended. What comes after it was ready is no part of the start."""
    if any(finding.line.event == "ready" for finding in findings):
        return Verdict.READY, None
    error = _named_error(findings) or _negative_pool(findings) or _unnamed_error(findings, clues)
    if error is not None:
        return Verdict.FAILED, error
    return (Verdict.STARTING if any(map(_sizes_pool, findings)) else Verdict.UNKNOWN), None


def _named_error(findings: Sequence[Finding]) -> ErrorReading | None:
    kinds = {finding.line.event for finding in findings}
    kind = next((kind for kind in _SPECIFIC_FIRST if kind in kinds), None)
    if kind is None:
        return None
    causes = [finding for finding in findings if finding.line.event == kind]
    first = causes[0]
    near = [finding for finding in findings if finding.record in [cause.record for cause in causes]]
    return ErrorReading(
        kind=kind,
        type=next((finding.exception for finding in causes if finding.exception), None),
        figures=_length_figures(near) if kind == "max_len_exceeds_pool" else _error_figures(kind, near, findings),
        after_pool=_pool_before(findings, first.record.line),
        line=first.record.line,
    )


def _length_figures(near: Iterable[Finding]) -> dict[str, int | float | None]:
    values = _values(near)
    fields = _OLD_LENGTH_FIELDS if "max_kv_tokens" in values else _LENGTH_FIELDS
    return {name: values.get(name) for name in fields}


def _error_figures(kind: str, near: Sequence[Finding], findings: Sequence[Finding]) -> dict[str, int | float | None]:
    values = _values(findings) | _values(near)
    return {name: values[figure] for name, figure in _FIELDS.get(kind, {}).items() if figure in values}


def _values(findings: Iterable[Finding]) -> dict[str, int | float]:
    values: dict[str, int | float] = {}
    for finding in findings:
        for figure in finding.figures:
            values.setdefault(figure.name, figure.number)
    return values


def _negative_pool(findings: Sequence[Finding]) -> ErrorReading | None:
    """A pool of nothing ends the start, even where the log lacks the line that says so."""
    for finding in findings:
        for figure in finding.figures:
            if figure.name in ("available_kv_gib", "kv_tokens_profiled") and figure.number < 0:
                return ErrorReading(kind="no_kv_memory", figures={figure.name: figure.number}, line=finding.record.line)
            if figure.name == "num_gpu_blocks" and figure.number == 0:
                return ErrorReading(kind="no_kv_memory", figures={figure.name: 0}, line=finding.record.line)
    return None


def _unnamed_error(findings: Sequence[Finding], clues: Sequence[Clue]) -> ErrorReading | None:
    """A failure whose cause line is missing: the traceback may still tell where it happened."""
    failed = next((finding for finding in findings if finding.line.event == _GENERIC), None)
    if failed is None:
        return None
    line = failed.record.line
    after_pool = _pool_before(findings, line)
    in_graphs = any(clue.kind == "frame" and clue.value in _GRAPH_FRAMES for clue in clues)
    exceptions = [clue.value for clue in clues if clue.kind == "exception" and not _is_generic(clue)]
    return ErrorReading(
        kind="crash_in_graph_capture" if in_graphs and after_pool else "unknown",
        type=exceptions[0] if exceptions else None,
        after_pool=after_pool,
        line=line,
    )


def _is_generic(clue: Clue) -> bool:
    return "Engine core initialization failed" in clue.record.text


def _pool_before(findings: Iterable[Finding], line: int) -> bool:
    return any(_sizes_pool(finding) and finding.record.line < line for finding in findings)


def _sizes_pool(finding: Finding) -> bool:
    if finding.line.event in FAILURES:
        return False
    return any(figure.name in POOL_FIGURES and figure.number > 0 for figure in finding.figures)
