"""Rows of a trace to sessions: lengths, times and shared blocks as they were recorded."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from math import inf
from pathlib import Path

from kvengine.errors import ConfigError
from kvplan.requests.prompts import BlockPrompt, stream
from kvplan.requests.sessions import Ask, Session
from kvplan.traces.csv_rows import AZURE, BURSTGPT, VIDUR, read_csv_rows
from kvplan.traces.mooncake import read_mooncake
from kvplan.traces.rows import TraceRow
from kvplan.traces.servegen import servegen_rows
from kvplan.workload import TraceSource

MAX_REQUESTS = 2_000_000
"""More than are run at once; a trace of months must be told which part."""
DEFAULT_BLOCK_TOKENS = 512
_CSV_FORMATS = {"azure": AZURE, "burstgpt": BURSTGPT, "vidur": VIDUR}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCut:
    """The part of a trace that is asked for."""

    rows: Sequence[TraceRow]
    num_without_output: int
    """Requests in it that came to nothing, and so are left out."""


def block_tokens(trace: TraceSource) -> int:
    """Tokens that a block number of the trace stands for."""
    return trace.block_tokens or DEFAULT_BLOCK_TOKENS


def cut_trace(trace: TraceSource, *, seed: int, needs_times: bool = False) -> TraceCut:
    """Read the part of a trace that is asked for, in order of arrival; times start at 0.

    Args:
        trace: The file and the part.
        seed: Decides what ServeGen draws, and the order of a shuffled trace.
        needs_times: Whether a trace without times is of no use.

    Raises:
        ConfigError: The trace cannot be read, has no times where they are needed, or nothing is in this part.
    """
    where = trace.file
    rows = _window(_read(trace, Path(trace.file), seed), trace, where, needs_times=needs_times)
    if trace.shuffle:
        listed = list(rows)
        random.Random(f"{seed}/shuffle").shuffle(listed)
        rows = iter(listed)
    taken = list(islice(rows, trace.requests or MAX_REQUESTS + 1))
    if len(taken) > MAX_REQUESTS:
        raise ConfigError(f"more than {MAX_REQUESTS:,} requests", where=where, hint="set requests or duration_s")
    kept = [row for row in taken if row.output_tokens and row.input_tokens]
    if not kept:
        raise ConfigError("no request in this part of the trace", where=where)
    return TraceCut(rows=kept, num_without_output=len(taken) - len(kept))


def traced_sessions(cut: TraceCut, trace: TraceSource, *, seed: int, vocab_size: int) -> Iterator[Session]:
    """Make sessions of the rows: one a row, or one a recorded conversation if its requests wait for replies."""
    asks = [_ask(row, number, trace, seed, vocab_size) for number, row in enumerate(cut.rows, start=1)]
    if not trace.wait_for_reply:
        yield from (Session(asks=(ask,)) for ask in asks)
        return
    conversations: dict[str, list[Ask]] = {}
    for number, (row, ask) in enumerate(zip(cut.rows, asks, strict=True)):
        conversations.setdefault(row.session or f"request {number}", []).append(ask)
    yield from (Session(asks=turns, waits_for_replies=True) for turns in conversations.values())


def _ask(row: TraceRow, number: int, trace: TraceSource, seed: int, vocab_size: int) -> Ask:
    prompt = BlockPrompt(
        block_ids=row.block_ids,
        block_tokens=block_tokens(trace),
        num_tokens=row.input_tokens,
        own_stream=stream(seed, "trace", number),
        seed_stream=stream(seed, "blocks") % 2**63,  # a block number can be added without going beyond 64 bits
        vocab_size=vocab_size,
    )
    return Ask(name=f"trace-{number}", prompt=prompt, max_tokens=row.output_tokens, arrival_s=row.arrival_s or 0.0)


def _read(trace: TraceSource, path: Path, seed: int) -> Iterator[TraceRow]:
    if trace.format == "mooncake":
        return read_mooncake(path, time_unit=trace.time_unit or "ms", block_tokens=block_tokens(trace))
    if trace.format == "servegen":
        if trace.requests is None and trace.duration_s is None:
            raise ConfigError(
                "ServeGen's files stand for weeks of requests: set duration_s or requests", where=str(path)
            )
        return servegen_rows(path, seed=seed, start_s=trace.start_s, duration_s=trace.duration_s)
    return read_csv_rows(path, _CSV_FORMATS[trace.format], model=trace.model)


def _window(rows: Iterator[TraceRow], trace: TraceSource, where: str, *, needs_times: bool) -> Iterator[TraceRow]:
    """Take the requests between two times of the trace, counted from its first request; sorted by time."""
    if trace.format == "servegen":
        return (_moved(row, trace.start_s) for row in rows)
    first = next(rows, None)
    if first is None:
        return iter(())
    rows = chain((first,), rows)
    if first.arrival_s is None:
        if trace.start_s or trace.duration_s or needs_times:
            raise ConfigError("has no times, which start_s, duration_s and arrivals: trace need", where=where)
        return rows
    ordered = sorted(_timed(rows, where), key=lambda row: row.arrival_s or 0.0)
    begin_s = (ordered[0].arrival_s or 0.0) + trace.start_s
    return _between(ordered, begin_s, inf if trace.duration_s is None else trace.duration_s)


def _between(rows: Iterable[TraceRow], begin_s: float, duration_s: float) -> Iterator[TraceRow]:
    for row in rows:
        moved = _moved(row, begin_s)
        if 0 <= (moved.arrival_s or 0.0) < duration_s:
            yield moved


def _timed(rows: Iterable[TraceRow], where: str) -> Iterator[TraceRow]:
    for number, row in enumerate(rows, start=1):
        if row.arrival_s is None:
            raise ConfigError(f"request {number} has no time, though the first one has", where=where)
        if number > 10 * MAX_REQUESTS:
            raise ConfigError(f"more than {10 * MAX_REQUESTS:,} requests", where=where)
        yield row


def _moved(row: TraceRow, begin_s: float) -> TraceRow:
    return TraceRow(
        arrival_s=(row.arrival_s or 0.0) - begin_s,
        input_tokens=row.input_tokens,
        output_tokens=row.output_tokens,
        block_ids=row.block_ids,
        session=row.session,
    )
