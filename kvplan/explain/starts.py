"""Sorts what was found by engine start: restarts, replicas and neighbours in one log are never mixed.

A new start begins where a process repeats what a start says only once (its configuration, its arguments), where a
process of the same name comes back with another number, where loading begins again after the end of a start, or where
a pool line names another `max_model_len`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from kvplan.explain.events import Clue, Event, Statement, read_events
from kvplan.explain.findings import SGLANG, VLLM, Finding
from kvplan.explain.records import Origin, Record

_UNIQUE_PROCESS = re.compile(r"(?:EngineCore|APIServer|Worker)(?:_\w+)?")
_VLLM_PROCESS = re.compile(r"EngineCore|APIServer|ApiServer|Worker|VllmWorker|RayWorker")
_LEVELS = {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}
_LOADED_FIGURES = {"weights_gib", "weights_gb", "avail_before_load_gb"}
_LENGTH_COMPANIONS = {"concurrency", "needed_kv_gib", "max_kv_tokens"}
"""A line with one of these names the length that the start really asks for."""
POOL_FIGURES = frozenset(
    {
        "num_gpu_blocks",
        "kv_cache_tokens",
        "concurrency",
        "kv_tokens",
        "k_size_gb",
        "kv_size_gb",
        "mamba_cache_slots",
        "conv_state_gb",
        "max_total_num_tokens",
    }
)
"""Figures that are printed once the pool has its size."""
FAILURES = frozenset(
    {
        "failed",
        "max_len_exceeds_pool",
        "free_memory_below_budget",
        "no_kv_memory",
        "profiling_disturbed",
        "state_blocks_below_max_num_seqs",
        "out_of_memory",
        "free_memory_unbalanced",
        "crash_in_graph_capture",
    }
)
"""Events that end a start before it is ready."""


class Phase(IntEnum):
    """How far a start came."""

    BEGUN = 0
    SIZED = 1
    FAILED = 2
    READY = 3


_LOADING_IS_OVER = {VLLM: Phase.SIZED, SGLANG: Phase.FAILED}
"""From this phase on loading means another start; SGLang loads a draft model after the first pool."""


@dataclass(slots=True, kw_only=True)
class Start:
    """One start of one engine; replicas of one server are starts of their own."""

    engine: str
    events: list[Event] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    replica: int | None = None
    num_replicas: int = 1


def split_starts(records: Sequence[Record]) -> list[Start]:
    """Find the engine starts of a log, in the order in which they appear; none for a log of something else."""
    splitter = _Splitter(labels_matter=_labels_matter(records))
    for record in records:
        splitter.take(record)
    return [start for server in splitter.servers if server.is_recognised for start in server.starts()]


def _labels_matter(records: Sequence[Record]) -> bool:
    """Whether several containers or stages wrote engine lines into this log."""
    labels = {record.origin.label for record in records if record.source or record.origin.sglang}
    return len(labels - {""} - _LEVELS) > 1


@dataclass(slots=True, kw_only=True)
class _Server:
    """One launch: an API server with its engine, or with several replicas of it."""

    engine: str
    events: list[Event] = field(default_factory=list)
    origins: dict[Origin, None] = field(default_factory=dict)
    phases: dict[int | None, Phase] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)

    @property
    def is_recognised(self) -> bool:
        """Whether only a serving engine's start-up says this."""
        return any(
            event.kind != "fragment" if isinstance(event, Statement) else bool(event.engine)
            for event in self.events
            if not isinstance(event, Clue)
        )

    @property
    def has_engine_events(self) -> bool:
        return any(
            event.kind == "config" if isinstance(event, Statement) else bool(event.figures)
            for event in self.events
            if not isinstance(event, Clue)
        )

    def phase(self, replica: int | None) -> Phase:
        if replica is None:
            return max(self.phases.values(), default=Phase.BEGUN)
        return max(self.phases.get(replica, Phase.BEGUN), self.phases.get(None, Phase.BEGUN))

    def add(self, event: Event) -> None:
        self.events.append(event)
        reached = _phase_of(event)
        replica = event.record.origin.data_rank
        self.phases[replica] = max(reached, self.phases.get(replica, Phase.BEGUN))

    def add_origin(self, origin: Origin) -> None:
        self.origins[origin] = None
        if origin.pid is not None and _UNIQUE_PROCESS.fullmatch(origin.process):
            self.pids.setdefault(origin.process, origin.pid)

    def begins_anew(self, event: Event) -> bool:
        """Whether the event says again what this start has said, or has left behind."""
        if isinstance(event, Clue):
            return event.kind == "version" and self.has_engine_events
        if isinstance(event, Statement):
            return self._is_stated(event) or (event.kind == "config" and any(map(_loads, self.events)))
        if event.line.event == "sized":
            return any(isinstance(other, Finding) and _sizes_again(other, event) for other in self.events)
        if _loads(event) and self.phase(event.record.origin.data_rank) >= _LOADING_IS_OVER[self.engine]:
            return any(_loads(earlier) and earlier.record.origin == event.record.origin for earlier in self.events)
        length, earlier = _length(event), {_length(other) for other in self.events} - {None}
        return length is not None and bool(earlier) and length not in earlier

    def _is_stated(self, statement: Statement) -> bool:
        if statement.kind == "arguments" and self.has_engine_events:
            return True
        replica = statement.record.origin.data_rank
        return any(
            isinstance(event, Statement)
            and event.kind == statement.kind
            and (event.kind != "config" or event.record.origin.data_rank == replica)
            for event in self.events
        )

    def starts(self) -> Iterator[Start]:
        """Replicas apart; what the whole server said belongs to each of them."""
        replicas = self._replicas()
        if len(replicas) < 2:
            yield Start(engine=self.engine, events=self.events, origins=list(self.origins))
            return
        for replica in replicas:
            yield Start(
                engine=self.engine,
                events=[event for event in self.events if event.record.origin.data_rank in (replica, None)],
                origins=[origin for origin in self.origins if origin.data_rank == replica],
                replica=replica,
                num_replicas=len(replicas),
            )

    def _replicas(self) -> list[int]:
        """Data-parallel ranks with a pool of their own; SGLang's data-parallel attention splits one engine instead."""
        if self.engine == SGLANG and self._shares_one_pool():
            return []
        return sorted({origin.data_rank for origin in self.origins if origin.data_rank is not None})

    def _shares_one_pool(self) -> bool:
        """Whether no tensor rank occurs under two data-parallel ranks: then they are parts of one engine."""
        for event in self.events:
            if isinstance(event, Statement) and event.settings.get("enable_dp_attention") is True:
                return True
        ranks = [origin.rank.rpartition("TP")[2] for origin in self.origins if origin.rank and "TP" in origin.rank]
        return bool(ranks) and len(ranks) == len(set(ranks))


@dataclass(slots=True, kw_only=True)
class _Splitter:
    labels_matter: bool
    servers: list[_Server] = field(default_factory=list)
    current: dict[tuple[str, str], _Server] = field(default_factory=dict)
    by_pid: dict[tuple[str, str, int], _Server] = field(default_factory=dict)
    last_engine: str = ""

    def take(self, record: Record) -> None:
        events = list(read_events(record))
        engine = self._engine(record, events)
        if not engine:
            return
        server = self._server(self._label(record), engine, record, events)
        server.add_origin(record.origin)
        for event in events:
            server.add(event)

    def _label(self, record: Record) -> str:
        label = record.origin.label
        return label if self.labels_matter and label not in _LEVELS else ""

    def _engine(self, record: Record, events: Sequence[Event]) -> str:
        """Which engine a record belongs to; a line that both write belongs to the engine that spoke last."""
        for event in events:
            named = _engine_of(event)
            if named:
                self.last_engine = named
                return named
        if record.origin.sglang:
            return SGLANG
        if _VLLM_PROCESS.match(record.origin.process) or record.source:
            return VLLM
        return self.last_engine if events else ""

    def _server(self, label: str, engine: str, record: Record, events: Sequence[Event]) -> _Server:
        process = record.origin.process
        pid = record.origin.pid if _UNIQUE_PROCESS.fullmatch(process) else None
        server = self.current.get((label, engine)) or self._open(label, engine)
        if pid is not None:
            known = self.by_pid.get((label, process, pid))
            if known is None and server.pids.get(process, pid) != pid:
                server = self._open(label, engine)
            elif known is not None and not self._is_reused(known, server, process, events):
                server = known
        if any(map(server.begins_anew, events)):
            server = self._open(label, engine)
        if pid is not None:
            self.by_pid[(label, process, pid)] = server
        return server

    def _is_reused(self, known: _Server, current: _Server, process: str, events: Sequence[Event]) -> bool:
        """Whether a number seen before is a new process's: containers give the same ones at every start."""
        begins = any(_loads(event) or (isinstance(event, Statement) and event.kind == "config") for event in events)
        return known is not current and begins and process not in current.pids

    def _open(self, label: str, engine: str) -> _Server:
        server = _Server(engine=engine)
        self.servers.append(server)
        self.current[(label, engine)] = server
        return server


def _engine_of(event: Event) -> str:
    if isinstance(event, Finding):
        return event.engine
    if isinstance(event, Statement):
        is_sglang = event.kind == "fragment" or (event.kind == "arguments" and "model_path" in event.settings)
        return SGLANG if is_sglang else VLLM
    return VLLM if event.kind in ("version", "installed_version") else ""


def _phase_of(event: Event) -> Phase:
    if not isinstance(event, Finding):
        return Phase.BEGUN
    if event.line.event in ("ready", "sized"):
        return Phase.READY
    if event.line.event in FAILURES:
        return Phase.FAILED
    return Phase.SIZED if event.figure_names & POOL_FIGURES else Phase.BEGUN


def _loads(event: Event) -> bool:
    """Whether this is a figure of the first phase, the loading of weights."""
    return isinstance(event, Finding) and bool(event.figure_names & _LOADED_FIGURES)


def _sizes_again(earlier: Finding, later: Finding) -> bool:
    """Whether SGLang's summary line is there a second time, for the same replica and with other figures."""
    return (
        earlier.line.event == "sized"
        and earlier.record.origin.data_rank == later.record.origin.data_rank
        and earlier.figures != later.figures
    )


def _length(event: Event) -> int | float | None:
    """The `max_model_len` that a pool line or a refusal names."""
    if not isinstance(event, Finding) or not event.figure_names & _LENGTH_COMPANIONS:
        return None
    return next((figure.number for figure in event.figures if figure.name == "max_model_len"), None)
