"""A log as one document: what it says, whether it agrees with itself, why, and what to change."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvplan.explain.checks import consistency, run_checks
from kvplan.explain.hints import find_hints
from kvplan.explain.memory import read_memory
from kvplan.explain.reading import EngineReading, Figure, read_start
from kvplan.explain.reasons import find_reasons
from kvplan.explain.records import read_records
from kvplan.explain.starts import split_starts
from kvplan.explain.text import UnreadableLog, decode_log, plain_lines

SCHEMA = "kvplan.explain/1"


def explain(data: bytes, *, where: str) -> dict[str, Any]:
    """Explain a start-up log, whole or in part: `explained` of what is in it.

    Raises:
        UnreadableLog: It is no text, or holds no line of a vLLM or SGLang start-up.
    """
    return explained(read_log(data, where=where), where=where)


def read_log(data: bytes, *, where: str) -> list[EngineReading]:
    """Read a start-up log: one reading per engine start, in the order of the log.

    Args:
        data: The log's bytes.
        where: Its name, for messages.

    Raises:
        UnreadableLog: It is no text, or holds no line of a vLLM or SGLang start-up.
    """
    text = decode_log(data, where=where)
    records = read_records(plain_lines(text), ends_open=not text.endswith(("\n", "\r")))
    readings = [read_start(start) for start in split_starts(records)]
    if not readings:
        raise UnreadableLog(
            "no line of a vLLM or SGLang start-up in it",
            refusal="not_a_startup_log",
            where=where,
            hint="give the server's own output from its start: vllm serve … 2>&1 | tee start.log",
        )
    return readings


def explained(readings: Sequence[EngineReading], *, where: str) -> dict[str, Any]:
    """Explain what a log says.

    Returns:
        A document of schema `kvplan.explain/1`: one entry in `engines` per engine start, in the order of the log.
        Sizes are GiB as printed. What the log does not say is null or absent, never 0.
    """
    return {"schema": SCHEMA, "log": where, "engines": [_engine(reading) for reading in readings]}


def csv_rows(document: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    """One row for each figure, part, setting, check, reason and hint of each engine."""
    for number, engine in enumerate(document["engines"]):
        for row in _engine_rows(engine):
            yield {"engine": number, **row}
    for entry in document.get("saved", ()):
        yield {"engine": None, "section": "saved", "name": "file", "value": entry["file"]}


def _engine_rows(engine: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    for name in ("engine", "generation", "version", "model", "architecture", "verdict", "main_reason"):
        yield {"section": "start", "name": name, "value": engine[name]}
    if engine["error"]:
        for name, value in engine["error"].items():
            yield {"section": "error", "name": name, "value": value}
    for name, value in engine["gpu"].items():
        yield {"section": "gpu", "name": name, "value": value}
    for name, value in engine["flags"].items():
        inferred = "inferred" if name in engine["flags_inferred"] else "printed"
        yield {"section": "flags", "name": name, "value": value, "evidence": inferred}
    for figure in engine["figures"]:
        yield {"section": "figures", **{key: figure[key] for key in ("name", "value", "text", "unit", "rank", "line")}}
    for part in engine["memory"]["parts"]:
        unit, rank = "GiB", engine["memory"]["rank"]
        row = {"name": part["name"], "value": part["gib"], "unit": unit, "rank": rank, "evidence": part["evidence"]}
        yield {"section": "memory", **row}
    yield {"section": "consistency", "name": "verdict", "value": engine["consistency"]["verdict"]}
    for check in engine["consistency"]["checks"]:
        sides = {"left": check["left"], "right": check["right"]}
        yield {"section": "consistency", "name": check["name"], "value": check["verdict"], **sides}
    for reason in engine["reasons"]:
        yield {"section": "reasons", "name": reason["code"], "value": reason["text"]}
    for hint in engine["hints"]:
        yield {"section": "hints", "name": hint["option"], "value": hint["effect"]}


def _engine(reading: EngineReading) -> dict[str, Any]:
    checks = run_checks(reading)
    reasons = find_reasons(reading, checks)
    return {
        "engine": reading.engine,
        "generation": reading.generation,
        "version": reading.version,
        "version_from": "stated" if reading.version else "not stated",
        "version_inferred": None if reading.version else str(reading.inferred_versions) or None,
        "model": reading.model,
        "architecture": reading.architecture,
        "replica": reading.replica,
        "gpu": _gpu(reading),
        "flags": reading.settings,
        "flags_inferred": list(reading.inferred_settings),
        "verdict": reading.verdict.value,
        "error": _error(reading),
        "figures": [_figure(figure) for figure in _distinct(reading)],
        "memory": _memory(reading),
        "consistency": {
            "verdict": consistency(checks).value,
            "checks": [
                {
                    "name": check.name,
                    "verdict": check.verdict.value,
                    "left": check.left,
                    "right": check.right,
                    "by_version_rule": check.by_version_rule,
                }
                for check in checks
            ],
        },
        "main_reason": reasons[0].code,
        "main_reason_text": reasons[0].text,
        "reasons": [{"code": reason.code, "text": reason.text} for reason in reasons],
        "hints": [{"option": hint.option, "effect": hint.effect} for hint in find_hints(reading)],
    }


def _gpu(reading: EngineReading) -> dict[str, object]:
    gpu = reading.gpu
    return {
        "count": gpu.count,
        "count_at_least": gpu.count_at_least,
        "name": gpu.name,
        "total_gib": gpu.total_gib,
        "free_at_start_gib": gpu.free_at_start_gib,
        "budget_gib": gpu.budget_gib,
        "total_gib_derived": gpu.total_gib_derived,
        "total_gib_error": gpu.total_gib_error,
    }


def _error(reading: EngineReading) -> dict[str, object] | None:
    error = reading.error
    if error is None:
        return None
    return {
        "kind": error.kind,
        "type": error.type,
        **error.figures,
        "after_pool": error.after_pool,
        "line": error.line,
    }


def _distinct(reading: EngineReading) -> list[Figure]:
    """A figure that is repeated in the same words for the same rank is listed once."""
    distinct: dict[tuple[str, str, str | None, bool], Figure] = {}
    for figure in reading.figures:
        distinct.setdefault((figure.name, figure.text, figure.rank, figure.is_draft), figure)
    return list(distinct.values())


def _figure(figure: Figure) -> dict[str, object]:
    return {
        "name": figure.name,
        "value": figure.value,
        "text": figure.text,
        "unit": figure.unit or None,
        "rank": figure.rank,
        "line": figure.line,
        "of": "draft model" if figure.is_draft else None,
    }


def _memory(reading: EngineReading) -> dict[str, object]:
    memory = read_memory(reading)
    return {
        "rank": memory.rank,
        "total_gib": memory.total.gib if memory.total else None,
        "total_evidence": memory.total.evidence if memory.total else None,
        "parts": [
            {"name": part.name, "gib": round(part.gib, 4), "evidence": part.evidence, "text": part.text or None}
            for part in memory.parts
        ],
    }
