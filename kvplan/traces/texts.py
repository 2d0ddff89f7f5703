"""Prompts and conversations as text: ShareGPT-style JSON, the JSONL of vLLM's benchmarks, and plain prompts.

A model's tokenizer decides how long they are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvengine.errors import ConfigError
from kvplan.traces.json_text import decode_json
from kvplan.traces.rows import read_lines, read_tokens

_MAX_FILE_BYTES = 2 * 2**30
_USER_NAMES = ("human", "user")
_SYSTEM_NAMES = ("system",)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTurn:
    """What a user asks, and what was answered."""

    user: str
    reply: str = ""
    """Empty if it was not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow:
    """A conversation, or a single prompt."""

    turns: Sequence[TextTurn]
    system: str = ""
    output_tokens: int | None = None
    """Of its only turn, where the file says."""


class _Message(msgspec.Struct):
    value: str
    speaker: str = msgspec.field(name="from")


class _Conversation(msgspec.Struct):
    conversations: list[_Message] = []


class _BenchmarkLine(msgspec.Struct):
    prompt: str
    output_tokens: int | None = None


def read_sharegpt(path: Path) -> Iterator[TextRow]:
    """Read `[{"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}]`.

    Whoever is neither human, user nor system is the assistant. What an assistant says before the first question is left
    out, and so are conversations without a question.

    Raises:
        ConfigError: The file is not JSON of this form.
    """
    decoder = msgspec.json.Decoder(list[_Conversation])
    for conversation in decode_json(decoder, _read_bytes(path), where=str(path)):
        row = _conversation_row(conversation.conversations)
        if row is not None:
            yield row


def read_benchmark_lines(path: Path) -> Iterator[TextRow]:
    """Read `{"prompt": "…", "output_tokens": 100}`, one a line; the number may be missing.

    Raises:
        ConfigError: A line is not of this form.
    """
    decoder = msgspec.json.Decoder(_BenchmarkLine)
    for number, text in read_lines(path):
        if not text.strip():
            continue
        where = f"{path}: line {number}"
        line = decode_json(decoder, text, where=where)
        if not line.prompt:
            raise ConfigError("prompt: expected text that is not empty", where=where)
        tokens = line.output_tokens
        output_tokens = None if tokens is None else read_tokens(tokens, "output_tokens", where, minimum=1)
        yield TextRow(turns=(TextTurn(user=line.prompt),), output_tokens=output_tokens)


def read_prompts(path: Path) -> Iterator[TextRow]:
    """Read a prompt a line; empty lines are skipped.

    Raises:
        ConfigError: There is no such file, or it is not text.
    """
    for _, text in read_lines(path):
        if text.strip():
            yield TextRow(turns=(TextTurn(user=text),))


def _conversation_row(messages: Sequence[_Message]) -> TextRow | None:
    system = "\n".join(message.value for message in messages if message.speaker in _SYSTEM_NAMES)
    turns: list[TextTurn] = []
    for message in messages:
        if message.speaker in _USER_NAMES:
            turns.append(TextTurn(user=message.value))
        elif message.speaker not in _SYSTEM_NAMES and turns:
            last = turns[-1]
            turns[-1] = TextTurn(
                user=last.user, reply=f"{last.reply}\n{message.value}" if last.reply else message.value
            )
    turns = [turn for turn in turns if turn.user]
    return TextRow(turns=tuple(turns), system=system) if turns else None


def _read_bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigError(f"larger than {_MAX_FILE_BYTES // 2**30} GiB", where=str(path))
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError("no such file", where=str(path)) from None
    except OSError as error:
        raise ConfigError(error.strerror or str(error), where=str(path)) from None
