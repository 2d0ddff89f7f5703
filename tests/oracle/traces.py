"""Reads trace files and compares requests, lengths, arrivals and hit rates with `reference.json` of the same folder."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvengine.errors import ConfigError
from kvengine.units import cdiv
from kvplan.traces.csv_rows import AZURE, BURSTGPT, VIDUR, read_csv_rows
from kvplan.traces.mooncake import read_mooncake
from kvplan.traces.prefix_reuse import PrefixReuse, prefix_reuse
from kvplan.traces.rows import TraceRow
from kvplan.traces.summary import summarize_arrivals, summarize_lengths
from tests.oracle.outcome import Mismatch, OracleInputError, Outcome

MOONCAKE_BLOCK_TOKENS = 512
"""What a hash id stands for where a reference does not say."""


def check(path: Path) -> Iterator[Outcome]:
    """Compare the traces of a folder: for each file an outcome for its rows, and one for each prefix cache."""
    reference = path / "reference.json" if path.is_dir() else path
    try:
        traces = json.loads(reference.read_text())["traces"]
        for name, expected in traces.items():
            yield from _check_trace(reference.parent / name, expected)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OracleInputError(f"{reference}: {error!r}") from error


def _check_trace(path: Path, expected: Mapping[str, Any]) -> Iterator[Outcome]:
    prefix = expected.get("prefix")
    block_tokens = prefix["block_size"] if prefix else MOONCAKE_BLOCK_TOKENS
    try:
        rows = _read(path, expected["format"], block_tokens)
    except ConfigError as error:
        yield Outcome(case=path.name, unsupported=error.message)
        return
    yield _outcome(path.name, expected, _trace_values(rows))
    if prefix is None:
        return
    yield _outcome(f"{path.name} blocks", prefix, _block_values(rows, block_tokens))
    endless = prefix_reuse(rows, block_tokens=block_tokens)
    yield _outcome(f"{path.name} endless cache", prefix["infinite"], _reuse_values(endless))
    for cache in prefix["lru"]:
        capacity = cache["capacity_blocks"]
        reuse = prefix_reuse(rows, block_tokens=block_tokens, capacity=capacity)
        got = {"capacity_blocks": capacity, "evictions": reuse.evictions, **_reuse_values(reuse)}
        yield _outcome(f"{path.name} cache of {capacity} blocks", cache, got)


def _read(path: Path, form: str, block_tokens: int) -> list[TraceRow]:
    match form:
        case "mooncake":
            return list(read_mooncake(path, time_unit="ms", block_tokens=block_tokens))
        case "mooncake_s":
            return list(read_mooncake(path, time_unit="s", block_tokens=block_tokens))
        case "azure":
            return list(read_csv_rows(path, AZURE))
        case "burstgpt":
            return list(read_csv_rows(path, BURSTGPT))
        case "vidur":
            return list(read_csv_rows(path, VIDUR))
    raise OracleInputError(f"{path.name}: unknown format {form!r}")


def _trace_values(rows: Sequence[TraceRow]) -> dict[str, Any]:
    times = [row.arrival_s for row in rows if row.arrival_s is not None]
    arrivals = summarize_arrivals(times)
    return {
        "requests": len(rows),
        "input": _length_values([row.input_tokens for row in rows]),
        "output": _length_values([row.output_tokens for row in rows]),
        "arrivals": arrivals
        and {
            "duration_s": round(arrivals.duration_s, 6),
            "rate_rps": round(arrivals.rate_per_s, 6),
            "cv_interarrival": round(arrivals.cv_gap, 4),
            "mean_gap_s": round(arrivals.mean_gap_s, 6),
            "zero_gaps": arrivals.zero_gaps,
            "peak_requests_in_one_minute": arrivals.peak_in_one_minute,
            "peak_requests_in_one_second": arrivals.peak_in_one_second,
            "in_file_order_sorted": times == sorted(times),
        },
    }


def _length_values(lengths: Sequence[int]) -> dict[str, float]:
    summary = summarize_lengths(lengths)
    ranks = {name: getattr(summary, name) for name in ("p50", "p90", "p95", "p99", "min", "max", "sum")}
    return {"mean": round(summary.mean, 4), "std": round(summary.std, 4), **ranks}


def _block_values(rows: Sequence[TraceRow], block_tokens: int) -> dict[str, int]:
    return {
        "ids_equal_ceil_of_input": sum(len(row.block_ids) == cdiv(row.input_tokens, block_tokens) for row in rows),
        "ids_equal_floor_of_input": sum(len(row.block_ids) == row.input_tokens // block_tokens for row in rows),
    }


def _reuse_values(reuse: PrefixReuse) -> dict[str, float]:
    return {
        "block_hit_rate": round(reuse.block_hit_rate, 6),
        "token_hit_rate": round(reuse.hit_tokens / reuse.input_tokens, 6),
        "token_hit_rate_full_blocks": round(reuse.full_block_hit_tokens / reuse.input_tokens, 6),
        "token_hit_rate_vllm": round(reuse.usable_hit_rate, 6),
        # Ids stand for all that is before them too, so a known id behind an unknown one cannot be.
        "any_hit_rate": round(reuse.block_hit_rate, 6),
        "requests_with_a_hit": round(reuse.requests_with_a_hit / reuse.requests, 6),
        "total_blocks": reuse.total_blocks,
        "unique_blocks": reuse.unique_blocks,
        "hit_blocks": reuse.hit_blocks,
    }


def _outcome(case: str, expected: Mapping[str, Any], got: Mapping[str, Any]) -> Outcome:
    """Compare what both sides name; caches, names and formats have no counterpart."""
    return Outcome(case=case, mismatches=tuple(_differences("", expected, got)))


def _differences(where: str, expected: Mapping[str, Any], got: Mapping[str, Any]) -> Iterator[Mismatch]:
    for key, value in expected.items():
        if key in ("file", "format", "prefix", "infinite", "lru", "block_size"):
            continue
        what, found = f"{where}{key}", got.get(key, "nothing")
        if isinstance(value, Mapping) and isinstance(found, Mapping):
            yield from _differences(f"{what}.", value, found)
        elif value != found:
            yield Mismatch(what, value, found)
