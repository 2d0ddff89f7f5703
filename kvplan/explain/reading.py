"""One engine start as read: its figures, settings and card, how it ended, and what can be inferred."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kvplan.explain.events import Clue, Statement
from kvplan.explain.findings import SGLANG, VLLM, Finding
from kvplan.explain.outcome import ErrorReading, Verdict, read_outcome
from kvplan.explain.ranks import RankCount, count_ranks, rank_order
from kvplan.explain.settings import Setting
from kvplan.explain.spans import printed, printed_gib
from kvplan.explain.starts import Start
from kvplan.explain.versions import VersionRange, infer_versions

_PER_WORKER_LINES = ("kv_cache_tokens", "concurrency")
"""Printed once per worker by the engine core in some releases: the position of the line is then the rank."""
_LOAD_FIGURES = frozenset({"weights_gb", "avail_before_load_gb", "avail_after_load_gb"})
_POOL_FIGURES = frozenset({"kv_tokens", "k_size_gb", "v_size_gb", "kv_size_gb", "avail_after_pool_gb"})
_NOT_SETTINGS = frozenset({"model", "model_path", "architecture"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of the log."""

    name: str
    text: str
    """As printed."""
    value: int | float
    unit: str = ""
    rank: str | None = None
    line: int
    """1-based line of the log."""
    speaker: str = ""
    """The process that printed it: figures of one speaker belong together."""
    is_draft: bool = False
    """It belongs to the draft model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """What the log says of the cards; None where it does not."""

    count: int | None = None
    count_at_least: int | None = None
    name: str | None = None
    total_gib: float | None = None
    free_at_start_gib: float | None = None
    budget_gib: float | None = None
    total_gib_derived: float | None = None
    """From two utilization figures and the graph estimate between them."""
    total_gib_error: float | None = None
    """How far that may be off, by the rounding of the three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReading:
    """Everything that one engine start says."""

    engine: str
    generation: str | None
    version: str | None
    inferred_versions: VersionRange
    model: str | None
    architecture: str | None
    gpu: GpuReading
    settings: dict[str, Setting]
    """With the engine's own names; those in `inferred_settings` are not printed but follow from the ranks."""
    inferred_settings: tuple[str, ...]
    figures: tuple[Figure, ...]
    verdict: Verdict
    error: ErrorReading | None
    events: frozenset[str] = field(default_factory=frozenset)
    replica: int | None = None
    num_replicas: int = 1
    has_arguments: bool = False
    """Whether the log shows what the engine was started with: what is not in it has its default."""

    def all(self, name: str) -> list[Figure]:
        """The figures of that name, in the order of the log; those of a draft model are left out."""
        return [figure for figure in self.figures if figure.name == name and not figure.is_draft]

    def first(self, *names: str) -> Figure | None:
        """The first figure of the first of these names that the log has."""
        return next((figure for name in names for figure in self.all(name)), None)

    def share_free_at_start(self) -> float | None:
        """The share of the fullest card that was free, in whole hundredths; None where the log leaves it open."""
        total, free = self.smallest("total_gib"), self.smallest("free_at_start_gib")
        if total is None or free is None or not 0 < free.value <= total.value:
            return None
        return int(100 * free.value / total.value) / 100

    def beside(self, name: str, figure: Figure) -> Figure | None:
        """The figure of that name in the same line."""
        return next((other for other in self.all(name) if other.line == figure.line), None)

    def value(self, name: str) -> int | float | None:
        """The first such figure's number; None where the log has none."""
        return next((figure.value for figure in self.all(name)), None)

    def smallest(self, name: str) -> Figure | None:
        """The smallest such figure: the pool is that of the smallest rank. Of equal ones the first rank's."""
        return min(self.all(name), key=lambda figure: (figure.value, rank_order(figure.rank or "")), default=None)


def read_start(start: Start) -> EngineReading:
    """Put one start's events together."""
    statements = [event for event in start.events if isinstance(event, Statement)]
    findings = [event for event in start.events if isinstance(event, Finding)]
    clues = [event for event in start.events if isinstance(event, Clue)]
    settings = _settings(statements, findings)
    ranks = count_ranks(start, settings)
    figures = _figures(start, findings, ranks)
    verdict, error = read_outcome(findings, clues)
    inferred = {} if ranks.stated else {key: value for key, value in ranks.settings.items() if key not in settings}
    utilization = next((figure.value for figure in figures if figure.name == "utilization"), None)
    if utilization is not None:
        settings.setdefault("gpu_memory_utilization", utilization)
    model = settings.get("model") or settings.get("model_path") or _clue(clues, "model") or _clue(clues, "loaded_model")
    architecture = settings.get("architecture")
    generation = _generation(start, statements, findings, clues)
    stated = next((statement.version for statement in statements if statement.version), None)
    version = stated or _clue(clues, "version") or _clue(clues, "installed_version")
    return EngineReading(
        engine=start.engine,
        generation=generation,
        version=version,
        inferred_versions=infer_versions(findings, generation),
        model=str(model) if model else None,
        architecture=str(architecture) if architecture else None,
        gpu=_gpu(figures, ranks, _clue(clues, "device_name"), on_cpu=str(settings.get("device_config")) == "cpu"),
        settings={key: value for key, value in (settings | inferred).items() if key not in _NOT_SETTINGS},
        inferred_settings=tuple(inferred),
        figures=tuple(figures),
        verdict=verdict,
        error=error,
        events=frozenset(finding.line.event for finding in findings if finding.line.event),
        replica=start.replica,
        num_replicas=start.num_replicas,
        has_arguments=any(statement.kind == "arguments" for statement in statements),
    )


def _settings(statements: Sequence[Statement], findings: Sequence[Finding]) -> dict[str, Setting]:
    """What was typed, over it what the engine made of it, over that what later lines say."""
    merged: dict[str, Setting] = {}
    for kind in ("fragment", "arguments", "config"):
        for statement in statements:
            if statement.kind == kind:
                merged |= statement.settings
    for finding in findings:
        for key, value in finding.settings.items():
            if key == "architecture":
                merged.setdefault(key, value)  # a draft model's class comes second
            else:
                merged[key] = value
    if merged.get("speculative_config", ...) is None:
        del merged["speculative_config"]
    return merged


def _clue(clues: Iterable[Clue], kind: str) -> str | None:
    return next((clue.value for clue in clues if clue.kind == kind), None)


def _figures(start: Start, findings: Sequence[Finding], ranks: RankCount) -> list[Figure]:
    found = _distinct(figure for finding in findings for figure in _finding_figures(start, finding))
    for name in _PER_WORKER_LINES:
        _rank_by_position(found, name, ranks)
    return _mark_draft(found, start.engine)


def _finding_figures(start: Start, finding: Finding) -> list[Figure]:
    origin = finding.record.origin
    rank = origin.rank
    if rank is None and start.num_replicas > 1 and origin.data_rank is not None:
        rank = f"DP{origin.data_rank}"
    return [
        Figure(
            name=value.name,
            text=value.text,
            value=value.number,
            unit=value.unit,
            rank=rank,
            line=finding.record.line,
            speaker=f"{origin.process} {origin.pid or ''} {origin.ip} {origin.rank or ''}".strip(),
        )
        for value in finding.figures
    ]


def _rank_by_position(figures: list[Figure], name: str, ranks: RankCount) -> None:
    places = [index for index, figure in enumerate(figures) if figure.name == name and _is_unranked(figure)]
    if len(places) < 2 or ranks.count == 1 or (ranks.count is not None and len(places) > ranks.count):
        return
    names = sorted(ranks.seen, key=rank_order) if len(ranks.seen) == len(places) else []
    for position, index in enumerate(places):
        rank = names[position] if names else f"TP{position}"
        figures[index] = replace(figures[index], rank=rank)


def _is_unranked(figure: Figure) -> bool:
    return figure.rank is None or figure.rank.startswith("DP")


def _mark_draft(figures: Sequence[Figure], engine: str) -> list[Figure]:
    """Mark what belongs to a draft model, in SGLang's logs.

    Loading is printed again for the draft, and its pool after the end of the target's pools. A model with sliding
    windows has two pools of its own before that end.
    """
    if engine != SGLANG:
        return list(figures)
    loaded: set[tuple[str, str | None]] = set()
    pools_ended: set[str | None] = set()
    marked = []
    for figure in figures:
        is_draft = figure.name in _LOAD_FIGURES and (figure.name, figure.rank) in loaded
        is_draft |= figure.name in _POOL_FIGURES and figure.rank in pools_ended
        marked.append(replace(figure, is_draft=is_draft))
        loaded.add((figure.name, figure.rank))
        if figure.name == "avail_after_pool_gb":
            pools_ended.add(figure.rank)
    return marked


def _distinct(figures: Iterable[Figure]) -> list[Figure]:
    """Once per line, though several skeletons may have read it."""
    distinct: dict[tuple[str, str, str | None, int], Figure] = {}
    for figure in figures:
        distinct.setdefault((figure.name, figure.text, figure.rank, figure.line), figure)
    return list(distinct.values())


def _generation(
    start: Start, statements: Sequence[Statement], findings: Sequence[Finding], clues: Sequence[Clue]
) -> str | None:
    if start.engine != VLLM:
        return None
    if stated := next((statement.generation for statement in statements if statement.generation), None):
        return stated
    if any(origin.process.startswith(("EngineCore", "Worker_", "VllmWorker-")) for origin in start.origins):
        return "V1"
    if any(origin.process == "VllmWorker" and origin.rank for origin in start.origins):
        return "V1"
    if any(finding.record.source == "kv_cache_utils.py" for finding in findings):
        return "V1"
    printed = next((finding.line.generation for finding in findings if finding.line.generation), None)
    return printed or _clue(clues, "generation")


def _gpu(figures: Sequence[Figure], ranks: RankCount, name: str | None, *, on_cpu: bool) -> GpuReading:
    smallest = {
        wanted: min((figure.value for figure in figures if figure.name == wanted), default=None)
        for wanted in ("total_gib", "free_at_start_gib", "budget_gib")
    }
    derived, error = (None, None) if smallest["total_gib"] is not None else _derived_total(figures)
    return GpuReading(
        count=None if on_cpu else ranks.count,
        count_at_least=ranks.at_least,
        name=name.replace("_", " ") if name else None,
        total_gib_derived=derived,
        total_gib_error=error,
        **smallest,
    )


def _derived_total(figures: Sequence[Figure]) -> tuple[float | None, float | None]:
    """The graph estimate is the difference of the two utilizations times the card; and how exact that is."""
    for estimate in (figure for figure in figures if figure.name == "cuda_graph_estimated_gib"):
        same_rank = {figure.name: figure for figure in reversed(figures) if figure.rank == estimate.rank}
        used, effective = same_rank.get("utilization"), same_rank.get("effective_utilization")
        if used is None or effective is None or estimate.value <= 0:
            continue
        difference = printed(used.text, decimals=4) - printed(effective.text, decimals=4)
        if difference.low > 0:
            card = printed_gib(estimate.text) / difference
            return round(estimate.value / difference.middle, 1), round(float(card.high - card.low) / 2, 1)
    return None, None
