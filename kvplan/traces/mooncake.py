"""Mooncake JSONL: a request a line, its prompt as numbers of blocks.

    {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}

Source: github.com/kvcache-ai/Mooncake, FAST25-release/traces: milliseconds and blocks of 512 tokens, the last one cut
short. Other tools write seconds, other block sizes, only full blocks, or no blocks at all.
"""

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from kvengine.errors import ConfigError
from kvengine.units import cdiv
from kvplan.traces.json_text import decode_json
from kvplan.traces.rows import MAX_SECONDS, TraceRow, read_lines, read_tokens

TimeUnit = Literal["ms", "s"]
_PER_SECOND: dict[TimeUnit, float] = {"ms": 1000.0, "s": 1.0}


class _Line(msgspec.Struct):
    input_length: int
    output_length: int
    timestamp: float | None = None
    hash_ids: list[int] = []
    session_id: str | int | None = None


def read_mooncake(path: Path, *, time_unit: TimeUnit, block_tokens: int) -> Iterator[TraceRow]:
    """Read the requests of a file, in its order; fields that are not named above are skipped.

    Args:
        path: The file.
        time_unit: Of `timestamp`.
        block_tokens: Tokens that a number in `hash_ids` stands for.

    Raises:
        ConfigError: A line is not a request, or its blocks do not go with its length.
    """
    decoder = msgspec.json.Decoder(_Line)
    numbers: dict[int, int] = {}
    for line_number, text in read_lines(path):
        if not text.strip():
            continue
        where = f"{path}: line {line_number}"
        line = decode_json(decoder, text, where=where)
        if line.timestamp is not None and not abs(line.timestamp) <= MAX_SECONDS * 1000:
            raise ConfigError(f"timestamp: {line.timestamp} is beyond all measure", where=where)
        input_tokens = read_tokens(line.input_length, "input_length", where, minimum=1)
        _check_blocks(line.hash_ids, input_tokens, block_tokens, where)
        yield TraceRow(
            arrival_s=None if line.timestamp is None else line.timestamp / _PER_SECOND[time_unit],
            input_tokens=input_tokens,
            output_tokens=read_tokens(line.output_length, "output_length", where, minimum=0),
            # Small numbers instead of theirs, which may be hashes of any size.
            block_ids=array("I", [numbers.setdefault(block, len(numbers)) for block in line.hash_ids]),
            session="" if line.session_id is None else str(line.session_id),
        )


def _check_blocks(block_ids: list[int], input_tokens: int, block_tokens: int, where: str) -> None:
    """Numbers of blocks of another size would give wrong hits without anybody noticing."""
    whole, all_blocks = input_tokens // block_tokens, cdiv(input_tokens, block_tokens)
    if block_ids and not whole <= len(block_ids) <= all_blocks:
        raise ConfigError(
            f"{len(block_ids)} hash_ids do not go with {input_tokens} tokens in blocks of {block_tokens}:"
            f" expected {whole} or {all_blocks}",
            where=where,
            hint="set block_tokens of the trace to the tokens that one hash id stands for",
        )
