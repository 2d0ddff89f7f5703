"""`kvplan explain`: the start-up log of a serving engine, read and checked, and kept as a calibration."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from kvengine.errors import ConfigError
from kvplan.cli.options import FormatOption, JsonOption, read_fraction
from kvplan.cli.output import Format, chosen_format, print_csv, print_json, print_note

if TYPE_CHECKING:
    from kvplan.calibration.capture import Known
    from kvplan.calibration.record import Calibration
    from kvplan.explain.reading import EngineReading

_MAX_LOG_BYTES = 64 * 2**20
"""A start-up is a few hundred lines; reading takes time and memory for each line."""
_UNSAID = "What the log does not say, for --save"


def explain_log(
    log: Annotated[
        str, typer.Argument(metavar="LOG", help="A start-up log of vLLM or SGLang, whole or in part; - reads stdin.")
    ],
    save: Annotated[
        bool, typer.Option("--save", help="Keep what it says of the memory, for budgets of the same start.")
    ] = False,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="As a budget has it.", rich_help_panel=_UNSAID)
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="NAME|auto", help="A GPU profile.", rich_help_panel=_UNSAID)
    ] = None,
    engine_version: Annotated[
        str | None, typer.Option("--engine-version", metavar="V", help="The release.", rich_help_panel=_UNSAID)
    ] = None,
    gpu_memory_utilization: Annotated[
        str | None,
        typer.Option(
            "--gpu-memory-utilization", metavar="F", help="vLLM's share of the card.", rich_help_panel=_UNSAID
        ),
    ] = None,
    mem_fraction_static: Annotated[
        str | None,
        typer.Option("--mem-fraction-static", metavar="F", help="SGLang's share of it.", rich_help_panel=_UNSAID),
    ] = None,
    output_format: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain a start-up log: where the memory went, whether the figures agree, why, and what to change."""
    from kvplan.explain.report import explained, read_log

    form, where = chosen_format(output_format, as_json), "stdin" if log == "-" else log
    utilization = read_fraction("--gpu-memory-utilization", gpu_memory_utilization)
    static = read_fraction("--mem-fraction-static", mem_fraction_static)
    added = (model, gpu, engine_version, utilization, static)
    if not save and any(value is not None for value in added):
        raise ConfigError(
            "what the log does not say counts for a calibration only", hint=f"kvplan explain {log} --save"
        )
    readings = read_log(_read(log), where=where)
    document = explained(readings, where=where)
    if not save:
        _show(document, form)
        return
    known = _known(model, gpu, engine_version, utilization if utilization is not None else static)
    document["saved"] = []
    try:
        document["saved"] = _save(readings, known, log=where if log == "-" else str(Path(log).resolve()))
    finally:
        _show(document, form)


def _show(document: dict[str, Any], form: Format) -> None:
    from kvplan.explain.report import csv_rows

    match form:
        case Format.JSON:
            print_json(document)
        case Format.CSV:
            print_csv(csv_rows(document))
        case Format.TABLE:
            from kvplan.cli.explain_table import print_explanation

            print_explanation(document)


def _known(model: str | None, gpu: str | None, version: str | None, utilization: float | None) -> "Known":
    from kvplan.calibration.capture import Known
    from kvplan.gpu_spec import load_gpu
    from kvplan.kv_layout.rules import parse_version

    if version is not None and parse_version(version) is None:
        raise ConfigError(f"expected a version such as 0.21.0, got {version[:40]!r}", where="--engine-version")
    card = None
    if gpu == "auto":
        from kvplan.probe import probe_gpu

        card = probe_gpu()
    elif gpu is not None:
        card = load_gpu(gpu)
    return Known(model=model, gpu=card, version=version, utilization=utilization)


def _save(readings: "list[EngineReading]", known: "Known", *, log: str) -> list[dict[str, object]]:
    """Keep each start that can be, and say where; of two of one key the later one stays.

    Raises:
        ConfigError: None can be kept.
    """
    from datetime import date

    from kvplan.calibration.capture import assumptions_of, calibration_of
    from kvplan.calibration.store import file_name

    kept: dict[str, Calibration] = {}
    refusals = []
    for reading in readings:
        try:
            calibration = calibration_of(reading, known, log=log, saved=date.today().isoformat())
        except ConfigError as error:
            refusals.append(error)
            continue
        if kept.pop(file_name(calibration), None) is not None:
            print_note("the log has several starts of the same settings; the last one counts")
        kept[file_name(calibration)] = calibration
        if assumed := assumptions_of(reading):
            print_note(assumed)
    if not kept:
        raise refusals[0]
    return [_keep(calibration) for calibration in kept.values()]


def _keep(calibration: "Calibration") -> dict[str, object]:
    from kvplan.calibration.store import save_calibration

    path, replaced = save_calibration(calibration)
    print_note(f"saved: {path}")
    if replaced is None:
        return {"file": str(path), "replaced": None}
    print_note(f"it replaces the one of the same start from {replaced.log}, saved on {replaced.saved}")
    return {"file": str(path), "replaced": {"log": replaced.log, "saved": replaced.saved}}


def _read_limited(file: BinaryIO, log: str) -> bytes:
    data = file.read(_MAX_LOG_BYTES + 1)
    if len(data) > _MAX_LOG_BYTES:
        name, source = ("stdin", "...") if log == "-" else (log, log)
        size = _MAX_LOG_BYTES // 2**20
        hint = f"its start is enough: head -n 5000 {source} | kvplan explain -"
        raise ConfigError(f"larger than {size} MiB", where=name, hint=hint)
    return data


def _read(log: str) -> bytes:
    if log == "-":
        return _read_limited(sys.stdin.buffer, log)
    path = Path(log)
    try:
        if path.is_dir():
            raise ConfigError("is a folder, not a log", where=log)
        with path.open("rb") as file:
            return _read_limited(file, log)
    except FileNotFoundError:
        raise ConfigError("no such file", where=log) from None
    except (OSError, ValueError) as error:
        raise ConfigError(getattr(error, "strerror", None) or str(error), where=log) from None
