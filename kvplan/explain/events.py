"""What a record says of a start: figures found, settings stated, and small clues."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kvplan.explain.findings import Finding, find_in
from kvplan.explain.records import Record
from kvplan.explain.settings import (
    Setting,
    arguments,
    config_line,
    is_sglang_fragment,
    parse_dump,
    sglang_settings,
    vllm_settings,
)

_VERSION = re.compile(r"(?:vLLM API server version|[█▀▄].*\bversion)\s+v?(\d+\.\d+[\w.+-]*)")
_INSTALLED_VERSION = re.compile(r"^\s*vLLM [Vv]ersion\s*:\s*v?(\d+\.\d+[\w.+-]*)")
"""A line of vLLM's `collect_env`, which reports put in front of their logs."""
_BANNER_MODEL = re.compile(r"[█▀▄].*\bmodel\s+(\S+)")
_LOADED_MODEL = re.compile(r"Starting to load model (\S+?)(?:\.{3}|…)")
_DEVICE_NAME = re.compile(r"device_name=((?:NVIDIA|AMD|Tesla|GeForce|Intel)_[\w-]+)")
_FRAME = re.compile(r'File "(?P<path>[^"]*)", line \d+, in (?P<function>\w+)')
_EXCEPTION = re.compile(r"^(?P<type>(?:\w+\.)*\w*(?:Error|Exception)): \S")
_FEWEST_ARGUMENTS = 8
"""Fewer in a full dump are those of a smaller program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The settings of one dump."""

    record: Record
    kind: str
    """`config`, `arguments`, or `fragment` for a dump without its beginning."""
    settings: dict[str, Setting]
    version: str = ""
    generation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clue:
    """A small fact that is no figure: a version, a model, a traceback frame, an exception."""

    record: Record
    kind: str
    value: str


Event = Finding | Statement | Clue


def read_events(record: Record) -> Iterator[Event]:
    """Tell what one record says; nothing for most lines of a log."""
    statement = _statement(record)
    if statement is not None:
        yield statement
        return
    yield from find_in(record)
    yield from _clues(record)


def _statement(record: Record) -> Statement | None:
    if config := config_line(record):
        return Statement(
            record=record,
            kind="config",
            settings=vllm_settings(dict(parse_dump(config["dump"]))),
            version=config["version"] or "",
            generation=f"V{config['generation'] or 0}",
        )
    if settings := _argument_settings(record):
        return Statement(record=record, kind="arguments", settings=settings)
    if not record.has_header and is_sglang_fragment(record):
        settings = dict(parse_dump(record.text, is_fragment=True))
        return Statement(record=record, kind="fragment", settings=sglang_settings(settings))
    return None


def _argument_settings(record: Record) -> dict[str, Setting]:
    """The settings of an argument dump; none for other lines and for the arguments of other programs."""
    dump = arguments(record)
    settings = dict(parse_dump(dump or ""))
    if dump is None or ("non-default" not in record.text and len(settings) < _FEWEST_ARGUMENTS):
        return {}
    if len({"model_path", "mem_fraction_static", "tp_size", "disable_radix_cache"} & settings.keys()) >= 2:
        return sglang_settings(settings)
    return vllm_settings(settings)


def _clues(record: Record) -> Iterator[Clue]:
    for kind, pattern in (
        ("version", _VERSION),
        ("installed_version", _INSTALLED_VERSION),
        ("model", _BANNER_MODEL),
        ("loaded_model", _LOADED_MODEL),
        ("device_name", _DEVICE_NAME),
    ):
        match = pattern.search(record.text)
        if match and not (record.ends_log and match.end() == len(record.text)):  # it may be cut
            yield Clue(record=record, kind=kind, value=match[1])
    if match := _FRAME.search(record.text):
        yield Clue(record=record, kind="frame", value=match["function"])
        if "vllm/v1/" in match["path"].replace("\\", "/"):
            yield Clue(record=record, kind="generation", value="V1")
    elif match := _EXCEPTION.search(record.text.strip()):
        yield Clue(record=record, kind="exception", value=match["type"].rpartition(".")[2])
