"""`kvplan explain`: the start-up log of a serving engine, read and checked."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvengine.errors import ConfigError
from kvplan.cli.options import FormatOption, JsonOption
from kvplan.cli.output import Format, chosen_format, print_csv, print_json

_MAX_LOG_BYTES = 512 * 2**20


def explain_log(
    log: Annotated[
        str, typer.Argument(metavar="LOG", help="A start-up log of vLLM or SGLang, whole or in part; - reads stdin.")
    ],
    output_format: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain a start-up log: where the memory went, whether the figures agree, why, and what to change."""
    from kvplan.explain.report import csv_rows, explain

    document = explain(_read(log), where="stdin" if log == "-" else log)
    match chosen_format(output_format, as_json):
        case Format.JSON:
            print_json(document)
        case Format.CSV:
            print_csv(csv_rows(document))
        case Format.TABLE:
            from kvplan.cli.explain_table import print_explanation

            print_explanation(document)


def _read(log: str) -> bytes:
    if log == "-":
        return sys.stdin.buffer.read()
    path = Path(log)
    try:
        if path.is_dir():
            raise ConfigError("is a folder, not a log", where=log)
        if path.stat().st_size > _MAX_LOG_BYTES:
            size = _MAX_LOG_BYTES // 2**20
            raise ConfigError(f"larger than {size} MiB", where=log, hint=f"head -n 5000 {log} | kvplan explain -")
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError("no such file", where=log) from None
    except (OSError, ValueError) as error:
        raise ConfigError(getattr(error, "strerror", None) or str(error), where=log) from None
