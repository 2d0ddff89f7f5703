"""Workloads: what is asked of the engine, and when; from YAML to tokens."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from kvengine.request import Request, RequestId, SamplingParams
from kvplan.loading import FileSchema

Count = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
Steps = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
Tokenize = Callable[[str], list[int]]


class Range(FileSchema, frozen=True, kw_only=True):
    """A whole number drawn evenly from `low` to `high`, both included."""

    low: Count
    high: Count

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"expected low <= high, got {self.low} and {self.high}")


class Turn(FileSchema, frozen=True, kw_only=True):
    """One turn of a conversation."""

    user: Text
    reply: str = ""
    """What the assistant said, as recorded; it is part of the prompts of the later turns."""


class Synthetic(FileSchema, frozen=True, kw_only=True):
    """Random tokens instead of text."""

    requests: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    shared_prefix_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**24)] = 0
    """All prompts begin with these same tokens."""
    prompt_tokens: Count | Range
    """Tokens of a prompt behind the shared prefix."""


class Workload(FileSchema, frozen=True, kw_only=True):
    """The decoded form of a file in `profiles/workloads`."""

    about: str
    source: str = ""
    chat_format: Literal["chatml", "plain"] = "plain"
    """How system, user and assistant are marked in the text."""
    system: str = ""
    """Begins every prompt."""
    prompts: tuple[Text, ...] = ()
    """One request each."""
    conversations: tuple[Annotated[tuple[Turn, ...], msgspec.Meta(min_length=1)], ...] = ()
    """One request for each turn; its prompt holds all that was said before."""
    synthetic: Synthetic | None = None
    max_tokens: Count | Range
    """Most output tokens of a request."""
    stop_at_eos: bool = False
    """Whether an end-of-sequence token ends the output before `max_tokens`."""
    arrival_gap_steps: Steps = 0
    """Engine steps between one request, or conversation, and the next; 0: all are there at once."""
    turn_gap_steps: Steps = 0
    """Engine steps between the turns of a conversation."""

    def __post_init__(self) -> None:
        texts = bool(self.prompts or self.conversations)
        if texts == (self.synthetic is not None):
            raise ValueError("expected either prompts or conversations, or synthetic")
        for number, turns in enumerate(self.conversations):
            for turn_number, turn in enumerate(turns[:-1]):
                if not turn.reply:
                    raise ValueError(f"conversations[{number}][{turn_number}] needs a reply, as another turn follows")

    def content(self) -> dict[str, object]:
        """All that decides the requests, as plain values; descriptions are left out."""
        content: dict[str, object] = msgspec.to_builtins(self)
        del content["about"], content["source"]
        return content

    @property
    def needs_tokenizer(self) -> bool:
        """Whether it is text, which only a model's tokenizer turns into tokens."""
        return self.synthetic is None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec:
    """One request of a workload, ready to be built as often as the workload is run."""

    request_id: RequestId
    prompt_token_ids: Sequence[int]
    max_tokens: int
    arrival_step: int

    def build(self, *, stop_token_ids: frozenset[int] = frozenset()) -> Request:
        """Make a fresh request; with stop tokens its output may end early."""
        sampling = SamplingParams(max_tokens=self.max_tokens, stop_token_ids=stop_token_ids)
        return Request(self.request_id, self.prompt_token_ids, sampling)


def request_specs(
    workload: Workload, *, seed: int, vocab_size: int, tokenize: Tokenize | None = None
) -> list[RequestSpec]:
    """Turn a workload into requests, in order of arrival; the same seed gives the same requests.

    Args:
        workload: What is asked.
        seed: Decides every random length and token.
        vocab_size: Random tokens are below it.
        tokenize: Turns text into token ids; needed if `workload.needs_tokenizer`.
    """
    lengths = random.Random(f"{seed}/max_tokens")
    specs = [
        RequestSpec(
            request_id=RequestId(name),
            prompt_token_ids=token_ids,
            max_tokens=_draw(workload.max_tokens, lengths),
            arrival_step=arrival_step,
        )
        for arrival_step, name, token_ids in _prompts(workload, seed, vocab_size, tokenize)
    ]
    return sorted(specs, key=lambda spec: spec.arrival_step)


def _prompts(
    workload: Workload, seed: int, vocab_size: int, tokenize: Tokenize | None
) -> Iterator[tuple[int, str, list[int]]]:
    """Arrival step, name and tokens of each prompt, in the order of the file."""
    gap = workload.arrival_gap_steps
    if workload.synthetic is not None:
        for number, token_ids in enumerate(_random_prompts(workload.synthetic, seed, vocab_size)):
            yield number * gap, f"random-{number + 1}", token_ids
        return
    assert tokenize is not None, "a workload of text was given no tokenizer"
    chat = _CHAT_FORMATS[workload.chat_format]
    for number, prompt in enumerate(workload.prompts):
        yield number * gap, f"prompt-{number + 1}", tokenize(chat.prompt(workload.system, [Turn(user=prompt)]))
    for number, turns in enumerate(workload.conversations):
        started = (len(workload.prompts) + number) * gap
        for turn in range(len(turns)):
            text = chat.prompt(workload.system, turns[: turn + 1])
            yield started + turn * workload.turn_gap_steps, f"chat-{number + 1}.{turn + 1}", tokenize(text)


def _random_prompts(synthetic: Synthetic, seed: int, vocab_size: int) -> Iterator[list[int]]:
    # Lengths have a source of their own, so that they are the same for every vocabulary.
    tokens, lengths = random.Random(f"{seed}/tokens"), random.Random(f"{seed}/prompt_tokens")
    prefix = [tokens.randrange(vocab_size) for _ in range(synthetic.shared_prefix_tokens)]
    for _ in range(synthetic.requests):
        length = _draw(synthetic.prompt_tokens, lengths)
        yield prefix + [tokens.randrange(vocab_size) for _ in range(length)]


def _draw(length: int | Range, chance: random.Random) -> int:
    return length if isinstance(length, int) else chance.randint(length.low, length.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChatFormat:
    system: str
    user: str
    assistant: str
    """Ends a prompt, and stands before a recorded reply."""
    reply: str

    def prompt(self, system: str, turns: Sequence[Turn]) -> str:
        """All that was said, up to where the assistant is to answer the last turn."""
        parts = [self.system.format(system)] if system else []
        for number, turn in enumerate(turns):
            parts += [self.user.format(turn.user), self.assistant]
            if number < len(turns) - 1:
                parts.append(self.reply.format(turn.reply))
        return "".join(parts)


_CHAT_FORMATS = {
    "plain": _ChatFormat(system="{}\n", user="User: {}\n", assistant="Assistant:", reply=" {}\n"),
    "chatml": _ChatFormat(
        system="<|im_start|>system\n{}<|im_end|>\n",
        user="<|im_start|>user\n{}<|im_end|>\n",
        assistant="<|im_start|>assistant\n",
        reply="{}<|im_end|>\n",
    ),
}
