"""Texts to sessions: chat formats and tokens."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvplan.requests.prompts import TokenPrompt
from kvplan.requests.sessions import Ask, Session
from kvplan.traces.texts import TextRow, TextTurn, read_benchmark_lines, read_prompts, read_sharegpt
from kvplan.workload import Tokenize, TraceSource, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """How the parts of a conversation are marked."""

    system: str
    user: str
    assistant: str
    """Ends a prompt, and stands before a recorded reply."""
    reply: str

    def prompt(self, system: str, turns: Sequence[TextTurn]) -> str:
        """All that was said, up to where the assistant is to answer the last turn."""
        parts = [self.system.format(system)] if system else []
        for number, turn in enumerate(turns):
            parts += [self.user.format(turn.user), self.assistant]
            if number < len(turns) - 1:
                parts.append(self.reply.format(turn.reply))
        return "".join(parts)


CHAT_FORMATS = {
    "plain": ChatFormat(system="{}\n", user="User: {}\n", assistant="Assistant:", reply=" {}\n"),
    "chatml": ChatFormat(
        system="<|im_start|>system\n{}<|im_end|>\n",
        user="<|im_start|>user\n{}<|im_end|>\n",
        assistant="<|im_start|>assistant\n",
        reply="{}<|im_end|>\n",
    ),
}


def text_sessions(workload: Workload, tokenize: Tokenize) -> Iterator[Session]:
    """Sessions of the prompts and conversations that stand in a workload itself."""
    chat = CHAT_FORMATS[workload.chat_format]
    for number, prompt in enumerate(workload.prompts, start=1):
        tokens = tokenize(chat.prompt(workload.system, [TextTurn(user=prompt)]))
        yield Session(asks=(Ask(name=f"prompt-{number}", prompt=TokenPrompt(tokens)),))
    for number, turns in enumerate(workload.conversations, start=1):
        said = [TextTurn(user=turn.user, reply=turn.reply) for turn in turns]
        prompts = [TokenPrompt(tokenize(chat.prompt(workload.system, said[: end + 1]))) for end in range(len(said))]
        yield Session(asks=[Ask(name=f"chat-{number}.{turn}", prompt=prompt) for turn, prompt in enumerate(prompts, 1)])


def text_rows(trace: TraceSource) -> list[TextRow]:
    """Read the file of a trace of texts.

    Raises:
        ConfigError: It cannot be read.
    """
    return list(_TEXT_READERS[trace.format](Path(trace.file)))


def traced_text_sessions(rows: Iterable[TextRow], workload: Workload, tokenize: Tokenize) -> Iterator[Session]:
    """Sessions of recorded texts; an output is as long as the reply that was recorded, if one was."""
    chat = CHAT_FORMATS[workload.chat_format]
    all_turns = workload.trace is not None and workload.trace.conversations == "all"
    for number, row in enumerate(rows, start=1):
        system = "\n".join(filter(None, (workload.system, row.system)))
        asks = []
        for turn in range(1, len(row.turns) + 1 if all_turns else 2):
            tokens = tokenize(chat.prompt(system, row.turns[:turn]))
            reply = row.turns[turn - 1].reply
            asks.append(
                Ask(
                    name=f"text-{number}.{turn}" if all_turns else f"text-{number}",
                    prompt=TokenPrompt(tokens),
                    max_tokens=row.output_tokens or (len(tokenize(reply)) if reply else None) or None,
                )
            )
        yield Session(asks=asks)


_TEXT_READERS: dict[str, Callable[[Path], Iterator[TextRow]]] = {
    "sharegpt": read_sharegpt,
    "vllm": read_benchmark_lines,
    "prompts": read_prompts,
}
