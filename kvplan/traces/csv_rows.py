"""Traces as CSV: lengths, and mostly times, of requests without their contents.

Each format is known by the columns it needs; others may stand beside them, in any order.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvengine.errors import ConfigError
from kvplan.traces.rows import TraceRow, read_lines, read_seconds, read_tokens

_MAX_CELL = 2**17


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat:
    """Which columns say what."""

    input_tokens: str
    output_tokens: str
    time: str
    read_time: Callable[[object, str, str], float] = read_seconds
    """Turns a cell, given its column and place, into seconds."""
    needs_time: bool = True
    model: str | None = None
    """Column with the model that was asked."""
    session: str | None = None


def _read_date(value: object, name: str, where: str) -> float:
    """Seconds since 1970 of `2023-11-16 18:15:46.6805900`; a time without a zone counts as UTC."""
    try:
        moment = datetime.fromisoformat(str(value))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        allowed = "a date and time such as 2023-11-16 18:15:46.68"
        raise ConfigError(f"{name}: expected {allowed}, got {value!r}", where=where) from None


AZURE = CsvFormat(time="TIMESTAMP", read_time=_read_date, input_tokens="ContextTokens", output_tokens="GeneratedTokens")
"""Source: github.com/Azure/AzurePublicDataset, the LLM inference traces of 2023 and 2024."""
BURSTGPT = CsvFormat(
    time="Timestamp",
    input_tokens="Request tokens",
    output_tokens="Response tokens",
    model="Model",
    session="Session ID",
)
"""Source: github.com/HPMLL/BurstGPT; a request without response tokens has failed."""
VIDUR = CsvFormat(
    time="arrived_at", needs_time=False, input_tokens="num_prefill_tokens", output_tokens="num_decode_tokens"
)
"""Source: github.com/microsoft/vidur, data/processed_traces."""


def read_csv_rows(path: Path, form: CsvFormat, *, model: str | None = None) -> Iterator[TraceRow]:
    """Read the requests of a file, in its order.

    Args:
        path: The file.
        form: Its columns.
        model: Only requests to this model.

    Raises:
        ConfigError: A column is missing, or a line does not hold what it should.
    """
    header: list[str] | None = None
    for line_number, text in read_lines(path):
        where = f"{path}: line {line_number}"
        cells = _split(text, where)
        if header is None:
            header = [cell.strip() for cell in cells]
            _check_header(header, form, str(path), filters_models=model is not None)
        elif any(cells):
            cell_of = _cells_by_column(header, cells, where)
            if model is None or form.model is None or cell_of[form.model] == model:
                yield _row(cell_of, form, where)
    if header is None:
        raise ConfigError("the file is empty", where=str(path))


def _split(text: str, where: str) -> list[str]:
    if len(text) > _MAX_CELL:
        raise ConfigError("a line too long for a table of requests", where=where)
    try:
        return next(csv.reader([text], strict=True), [])
    except csv.Error as error:
        raise ConfigError(f"not valid CSV: {error}", where=where) from None


def _check_header(header: Sequence[str], form: CsvFormat, where: str, *, filters_models: bool) -> None:
    needed = [form.input_tokens, form.output_tokens, *([form.time] if form.needs_time else [])]
    if filters_models and form.model is not None:
        needed.append(form.model)
    missing = [column for column in needed if column not in header]
    if missing:
        found = ", ".join(repr(column) for column in header[:8])
        raise ConfigError(f"column {missing[0]!r} is missing; the columns are {found[:200]}", where=where)


def _cells_by_column(header: Sequence[str], cells: Sequence[str], where: str) -> dict[str, str]:
    if len(cells) != len(header):
        raise ConfigError(f"expected {len(header)} cells, got {len(cells)}", where=where)
    return dict(zip(header, cells, strict=True))


def _row(cell_of: dict[str, str], form: CsvFormat, where: str) -> TraceRow:
    time = cell_of.get(form.time)
    return TraceRow(
        arrival_s=None if time is None else form.read_time(time, form.time, where),
        input_tokens=read_tokens(cell_of[form.input_tokens], form.input_tokens, where, minimum=0),
        output_tokens=read_tokens(cell_of[form.output_tokens], form.output_tokens, where, minimum=0),
        session=cell_of.get(form.session, "") if form.session else "",
    )
