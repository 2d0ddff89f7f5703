"""Lines to records: who printed a message, where in the engine, and the message itself.

    name-1  | (Worker_TP1 pid=7) INFO 05-01 10:00:00 [gpu_worker.py:298] Available KV cache memory: 22.78 GiB
    label      process           level and time       source             message

Any number of foreign prefixes may stand in front, and a record may start in the middle of a line, behind a progress
bar. Lines without a prefix follow the record above them: they may be the rest of a message that a terminal wrapped.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_PROCESS = re.compile(
    r"\((?P<name>[A-Za-z]\w*(?:[-.]\w+)*)(?:\s+rank=(?P<rank>\d+))?\s+pid=(?P<pid>\d+)(?:,\s*ip=(?P<ip>[^)]+))?\)"
)
_VLLM_HEADER = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+(?:\d\d-\d\d\s+\d\d:\d\d:\d\d(?:[.,]\d+)?)\s+"
    r"\[?(?P<source>[\w./\\-]+\.py):\d+\]\s?"
)
_BARE_SOURCE = re.compile(r"\[(?P<source>[\w./\\-]+\.py):\d+\]\s?")
_SGLANG_HEADER = re.compile(
    r"\[(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d+)?"
    r"(?P<ranks>(?: (?:DP|PP|ATTN_CP|ATTN_TP|MOE_DP|CP|TP|EP)\d+)*)\]\s?"
)
_OTHER_HEADER = re.compile(
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d"
    r"|^[IWEF]\d{4} \d\d:\d\d:\d\d"
    r"|^[A-Z]+:\s{2,}"
    r"|^\S+\s+\d{1,2} \d\d:\d\d:\d\d \S+ [^\s:]+: "
    r"|^\d{1,3}(?:\.\d{1,3}){3} "
)
"""Another logger's line (a date, glog, uvicorn, journald in any language, an access log): no part of the one above."""
_LABEL = re.compile(r"^(?:(?P<compose>[\w.-]+)\s+\|\s|\[(?P<pod>pod/[^\]]+)\]\s)|\[(?P<stage>Stage-\d+)\]")
_DECORATION = re.compile(r"^\s*(?:[>#│|]\s?|//\s?)+")
_SGLANG_RANK = re.compile(r"([A-Z_]+)(\d+)")
_RANK_PARTS = re.compile(r"_(?P<name>DP|PP|PCP|TP)(?P<index>\d+)")
_KEPT_RANKS = {"DP", "PP", "PCP", "TP"}
_MAX_JOINED_LINES = 12
_MAX_JOINED_CHARS = 4000
_WHITESPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The process that printed a record, as its prefix names it."""

    process: str = ""
    """`EngineCore_DP0`, `Worker_TP1_EP1`, `APIServer`; empty where the line names none."""
    pid: int | None = None
    ip: str = ""
    rank: str | None = None
    """`TP1`, `DP0 TP1`; None where the line carries no rank."""
    data_rank: int | None = None
    """Index of the data-parallel replica, where the line carries one."""
    expert_rank: int | None = None
    label: str = ""
    """What a container or stage put in front."""
    sglang: bool = False


@dataclass(slots=True, kw_only=True)
class Record:
    """One message; `continuation` holds the lines without prefix below it."""

    line: int
    """1-based line of the log."""
    text: str
    origin: Origin = field(default_factory=Origin)
    source: str = ""
    """File name of the engine's code that printed it."""
    has_header: bool = False
    ends_log: bool = False
    """The log ends right behind this record, without a line end: its last word or number may be cut."""
    joined_ends_log: bool = False
    """The log ends so behind its continuation."""
    continuation: str = ""
    """The lines without prefix below it, as one piece without white space."""
    raw_continuation: str = ""
    next_line: str = ""
    """The first of them, as it stands."""


def compact(text: str) -> str:
    """The text without white space, so that a wrapped line reads like a whole one."""
    return _WHITESPACE.sub("", text)


def read_records(lines: Sequence[str], *, ends_open: bool = False) -> list[Record]:
    """Split lines into records.

    Args:
        lines: Plain text lines, colours taken out.
        ends_open: The log does not end with a line end.
    """
    records = [record for number, line in enumerate(lines, start=1) for record in _line_records(number, line)]
    if records and ends_open:
        records[-1].ends_log = records[-1].joined_ends_log = True
    _attach_continuations(records)
    return records


def _line_records(number: int, line: str) -> Iterator[Record]:
    if line.startswith("{"):
        unwrapped = _from_json(line)
        if unwrapped is not None:
            process, text = unwrapped
            for part in text.splitlines():
                yield from _plain_line_records(number, part, process=process)
            return
    yield from _plain_line_records(number, line)


def _from_json(line: str) -> tuple[str, str] | None:
    """Take the message out of a line written by a JSON formatter or a container runtime."""
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    if not isinstance(fields, dict):
        return None
    text = next((fields[key] for key in ("message", "log", "msg", "MESSAGE") if isinstance(fields.get(key), str)), None)
    if text is None:
        return None
    name, pid = fields.get("processName"), fields.get("process")
    prefix = f"({name} pid={pid}) " if isinstance(name, str) and isinstance(pid, int) and name != "MainProcess" else ""
    trace = fields.get("exc_info")
    return prefix, f"{text}\n{trace}" if isinstance(trace, str) else text


def _plain_line_records(number: int, line: str, *, process: str = "") -> Iterator[Record]:
    headers = [match for pattern in (_VLLM_HEADER, _SGLANG_HEADER) for match in pattern.finditer(line)]
    headers.sort(key=lambda match: match.start())
    if not headers and (bare := _BARE_SOURCE.search(line)):
        headers = [bare]
    label = _label(line)
    if not headers:
        yield _without_header(number, process + line, label)
        return
    starts = [
        _prefix_start(line, previous, match.start())
        for previous, match in zip([0, *[match.end() for match in headers[:-1]]], headers, strict=True)
    ]
    if line[: starts[0]].strip():
        yield Record(line=number, text=line[: starts[0]].strip(), origin=Origin(label=label), has_header=True)
    for position, header in enumerate(headers):
        end = starts[position + 1] if position + 1 < len(headers) else len(line)
        prefix = process + line[starts[position] : header.start()]
        groups = header.groupdict()
        yield Record(
            line=number,
            text=line[header.end() : end],
            origin=_origin(prefix, groups.get("ranks"), label),
            source=(groups.get("source") or "").replace("\\", "/").rpartition("/")[2],
            has_header=True,
        )


def _prefix_start(line: str, low: int, header: int) -> int:
    """Where the process prefixes in front of a header begin; at the header where there are none."""
    processes = list(_PROCESS.finditer(line, low, header))
    if not processes:
        return header
    first = processes[-1]
    for earlier in reversed(processes[:-1]):  # Ray puts two, one behind the other
        if line[earlier.end() : first.start()].strip():
            break
        first = earlier
    return first.start()


def _without_header(number: int, line: str, label: str) -> Record:
    processes = list(_PROCESS.finditer(line))
    if processes:
        text = line[processes[-1].end() :]
        return Record(line=number, text=text, origin=_origin(line, None, label), has_header=True)
    text = _DECORATION.sub("", _LABEL.sub("", line, count=1) if label else line)
    return Record(line=number, text=text, origin=Origin(label=label), has_header=bool(_OTHER_HEADER.search(line)))


def _origin(prefix: str, sglang_ranks: str | None, label: str) -> Origin:
    if sglang_ranks is not None:
        parts = {name: int(index) for name, index in _SGLANG_RANK.findall(sglang_ranks)}
        kept = [f"{name}{index}" for name, index in parts.items() if name in _KEPT_RANKS]
        return Origin(
            rank=" ".join(kept) or None,
            data_rank=parts.get("DP"),
            expert_rank=parts.get("EP"),
            label=label,
            sglang=True,
        )
    processes = list(_PROCESS.finditer(prefix))
    if not processes:
        return Origin(label=label)
    process = processes[-1]
    name = process["name"]
    indices = {part["name"]: int(part["index"]) for part in _RANK_PARTS.finditer(name)}
    replica = re.search(r"^EngineCore_(?:DP)?(\d+)$", name)
    expert = re.search(r"_EP(\d+)", name)
    ranks = [f"{part}{index}" for part, index in indices.items()] if name.startswith("Worker") else []
    if process["rank"]:
        ranks = [f"TP{process['rank']}"]
    return Origin(
        process=name,
        pid=int(process["pid"]) or None,
        ip=process["ip"] or "",
        rank=" ".join(ranks) or None,
        data_rank=int(replica[1]) if replica else indices.get("DP"),
        expert_rank=int(expert[1]) if expert else None,
        label=label,
    )


def _label(line: str) -> str:
    match = _LABEL.search(line)
    return next((group for group in match.groups() if group), "") if match else ""


def _attach_continuations(records: Sequence[Record]) -> None:
    """Give each record the text of the lines without prefix that follow it."""
    for index, record in enumerate(records):
        pieces: list[str] = []
        for following in records[index + 1 : index + 1 + _MAX_JOINED_LINES]:
            if following.has_header or not following.text.strip() or sum(map(len, pieces)) > _MAX_JOINED_CHARS:
                break
            pieces.append(following.text)
            record.joined_ends_log = following.ends_log
        record.next_line = pieces[0] if pieces else ""
        record.raw_continuation = "".join(pieces)
        record.continuation = compact(record.raw_continuation)
