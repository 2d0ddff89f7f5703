"""Reads metrics texts with known contents, and compares every value that a monitor must find in them."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kvengine.telemetry.engine_reading import EngineReading
from kvengine.telemetry.metrics import MetricsReading, read_metrics
from kvengine.telemetry.rates import Window, break_between, window_between
from tests.oracle.outcome import Mismatch, OracleInputError, Outcome


def check(path: Path) -> Iterator[Outcome]:
    """Compare the case of one JSON file, or of each in a folder; its text lies beside it."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise OracleInputError(f"{path}: holds no .json file")
    for file in files:
        yield compare(file)


def compare(file: Path) -> Outcome:
    """Read one text and list all that differs from what its JSON file says."""
    case = _load(file)
    reading = _read(file.parent / case["file"])
    mismatches = list(_differences(case, reading, file.parent))
    return Outcome(case=file.stem, mismatches=tuple(mismatches))


def _load(file: Path) -> dict[str, Any]:
    try:
        case = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise OracleInputError(f"{file}: {error}") from error
    if not isinstance(case, dict) or "file" not in case or "expect" not in case:
        raise OracleInputError(f"{file}: no metrics case: it needs 'file' and 'expect'")
    return case


def _read(text: Path) -> MetricsReading:
    try:
        return read_metrics(text.read_bytes())
    except OSError as error:
        raise OracleInputError(f"{text}: {error}") from error


def _differences(case: Mapping[str, Any], reading: MetricsReading, folder: Path) -> Iterator[Mismatch]:
    expect: dict[str, Any] = dict(case["expect"])
    if case.get("engine") is not None:
        yield from _compare("engine", case["engine"], reading.server)
    got = _values(reading)
    if "rates_since" in expect:
        seconds = expect.get("seconds", 60.0)
        got |= _rates(_read(folder / f"{expect['rates_since']}.txt"), reading, seconds)
        got |= {"rates_since": expect["rates_since"], "seconds": seconds}
    for key, value in expect.items():
        if key != "note":
            yield from _compare(key, value, got.get(key, "nothing of that name"))
    engines = case.get("per_engine")
    if engines is not None:
        yield from _engine_differences(engines, reading)


def _engine_differences(engines: list[dict[str, Any]], reading: MetricsReading) -> Iterator[Mismatch]:
    yield from _compare("per_engine", len(engines), len(reading.engines))
    for expected, engine in zip(engines, reading.engines, strict=False):
        for key, value in expected.items():
            got = _ENGINE_VALUES[key](engine) if key in _ENGINE_VALUES else "nothing of that name"
            yield from _compare(f"per_engine[{engine.rank}].{key}", value, got)


def _values(reading: MetricsReading) -> dict[str, Any]:
    values: dict[str, Any] = {
        "state": str(reading.state),
        "engines": len(reading.engines),
    }
    if reading.total is None:
        return values | {"values": None}
    return values | {key: value(reading.total) for key, value in _ENGINE_VALUES.items()}


_ENGINE_VALUES: dict[str, Callable[[EngineReading], object]] = {
    "engine": lambda engine: engine.rank,
    "dp_rank": lambda engine: engine.rank,
    "model": lambda engine: engine.model,
    "usage": lambda engine: engine.gauges.usage,
    "usage_reported": lambda engine: engine.gauges.usage,
    "usage_max": lambda engine: engine.gauges.usage_max,
    "usage_from": lambda engine: engine.gauges.usage_from,
    "usage_physical": lambda engine: engine.gauges.filled,
    "cpu_usage": lambda engine: engine.gauges.cpu_usage,
    "block_size": lambda engine: engine.gauges.block_size,
    "total_blocks": lambda engine: engine.gauges.num_blocks,
    "total_blocks_inferred": lambda engine: engine.gauges.num_blocks_inferred,
    "usable_blocks": lambda engine: engine.gauges.usable_blocks,
    "used_blocks": lambda engine: engine.gauges.used_blocks,
    "free_blocks": lambda engine: engine.gauges.free_blocks,
    "cached_blocks": lambda engine: engine.gauges.cached_blocks,
    "total_tokens": lambda engine: engine.gauges.capacity_tokens,
    "total_tokens_estimate": lambda engine: engine.gauges.capacity_token_bounds,
    "used_tokens": lambda engine: engine.gauges.used_tokens,
    "cached_tokens": lambda engine: engine.gauges.cached_tokens,
    "evictable_tokens": lambda engine: engine.gauges.cached_tokens,
    "free_tokens": lambda engine: engine.gauges.free_tokens,
    "running": lambda engine: engine.gauges.running,
    "waiting": lambda engine: engine.gauges.waiting,
    "waiting_by_reason": lambda engine: engine.gauges.waiting_by_reason,
    "swapped": lambda engine: engine.gauges.swapped,
    "retracted_now": lambda engine: engine.gauges.retracted_in_last_report,
    "last_batch_hit_rate": lambda engine: engine.gauges.last_batch_hit_rate,
    "preemptions": lambda engine: engine.counters.preemptions,
    "prefix_queries": lambda engine: engine.counters.prefix_queries,
    "prefix_hits": lambda engine: engine.counters.prefix_hits,
    "prefix_unit": lambda engine: engine.counters.prefix_unit,
    "hit_rate": lambda engine: engine.hit_rate,
    "hit_rate_from": lambda engine: engine.hit_rate_from,
    "prompt_tokens": lambda engine: engine.counters.prompt_tokens,
    "generation_tokens": lambda engine: engine.counters.generation_tokens,
    "finished": lambda engine: engine.counters.finished,
}


def _rates(earlier: MetricsReading, later: MetricsReading, seconds: float) -> dict[str, Any]:
    window = window_between(earlier, later, seconds)
    total = window.total if window else Window(seconds=seconds)
    return {
        "counter_reset": break_between(earlier, later) is not None,
        "prompt_tokens_per_s": total.per_second(total.prompt_tokens),
        "generation_tokens_per_s": total.per_second(total.generation_tokens),
        "preemptions_per_s": total.per_second(total.preemptions),
        "window_hit_rate": total.hit_rate,
        "requests_finished": total.num_finished,
    }


def _compare(what: str, expected: object, got: object) -> Iterator[Mismatch]:
    if not equal(_without_remark(expected), _without_remark(got)):
        yield Mismatch(what, expected, got)


def _without_remark(value: object) -> object:
    """A source without the remark in brackets after it."""
    return value.split(" (")[0] if isinstance(value, str) and value.endswith(")") else value


def equal(expected: object, got: object) -> bool:
    """Equal, floats to 12 digits; None equals None alone, so that a missing value is never 0."""
    if isinstance(expected, list):
        return isinstance(got, list | tuple) and len(got) == len(expected) and all(map(equal, expected, got))
    if isinstance(expected, dict):
        return (
            isinstance(got, Mapping)
            and got.keys() == expected.keys()
            and all(equal(v, got[k]) for k, v in expected.items())
        )
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, int | float) and isinstance(got, int | float):
        return math.isclose(expected, got, rel_tol=1e-12, abs_tol=1e-12)
    return expected == got
