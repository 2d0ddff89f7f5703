"""Which format a trace file has, from its first line and its keys."""

import csv
import json
from pathlib import Path

from kvengine.errors import ConfigError
from kvengine.units import cdiv
from kvplan.workload import TraceFormat

_COLUMNS: dict[TraceFormat, frozenset[str]] = {
    "azure": frozenset(("TIMESTAMP", "ContextTokens", "GeneratedTokens")),
    "burstgpt": frozenset(("Timestamp", "Model", "Request tokens", "Response tokens")),
    "vidur": frozenset(("num_prefill_tokens", "num_decode_tokens")),
}
_MAX_LINE = 2**24
_BLOCK_TOKENS = (512, 16, 32, 64, 128, 256, 1024, 2048)


def guess_format(path: Path) -> TraceFormat:
    """Tell the format of a trace: a folder of ServeGen, a CSV file by its columns, JSON by its keys.

    Raises:
        ConfigError: It cannot be read, or is of no format that is known.
    """
    if path.is_dir():
        if any(path.glob("chunk-*-trace.csv")):
            return "servegen"
        raise _unknown(path, "a folder without chunk-*-trace.csv")
    first = _first_line(path)
    if path.suffix == ".csv":
        return _of_columns(path, first)
    return "sharegpt" if first.startswith("[") else _of_keys(path, first)


def guess_block_tokens(path: Path) -> int | None:
    """Tell how many tokens a hash id stands for, from the first line of a mooncake trace: 512, or another power of two.

    None: the line does not say.
    """
    try:
        row = json.loads(_first_line(path))
        tokens, num_ids = int(row["input_length"]), len(row["hash_ids"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return next((size for size in _BLOCK_TOKENS if num_ids in (tokens // size, cdiv(tokens, size))), None)


def _first_line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.readline(_MAX_LINE).decode(errors="replace").lstrip("\ufeff").strip()
    except OSError as error:
        raise ConfigError((error.strerror or str(error)).lower(), where=str(path)) from None


def _of_columns(path: Path, header: str) -> TraceFormat:
    columns = {cell.strip() for cell in next(csv.reader([header]), [])}
    for name, needed in _COLUMNS.items():
        if needed <= columns:
            return name
    raise _unknown(path, f"columns {', '.join(sorted(columns))[:80] or 'none'}")


def _of_keys(path: Path, line: str) -> TraceFormat:
    try:
        keys = json.loads(line)
    except (ValueError, RecursionError):
        keys = None
    if isinstance(keys, str):
        return "prompts"
    if not isinstance(keys, dict):
        raise _unknown(path, "a first line that is no JSON object")
    if "input_length" in keys:
        return "mooncake"
    if "conversations" in keys:
        return "sharegpt"
    if "prompt" in keys:
        return "vllm"
    raise _unknown(path, f"keys {', '.join(map(str, keys))[:80] or 'none'}")


def _unknown(path: Path, found: str) -> ConfigError:
    return ConfigError(
        f"no trace format is known by {found}",
        where=str(path),
        hint="a YAML workload can name it: trace: {file: FILE, format: mooncake|azure|burstgpt|vidur|servegen|...}",
    )
