"""Workloads: what is asked of the engine, and when. The YAML; `kvplan.requests` makes requests of it."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from kvengine.errors import ConfigError
from kvplan.lengths import Count, Tokens
from kvplan.loading import FileSchema

Steps = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
Requests = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Tokenize = Callable[[str], list[int]]

Arrivals = Literal["steps", "closed_loop", "constant", "poisson", "gamma", "trace"]
"""Open loop: requests come whether or not the engine keeps up. Closed loop: each user waits for a reply first."""
TraceFormat = Literal["mooncake", "azure", "burstgpt", "vidur", "servegen", "sharegpt", "vllm", "prompts"]
TEXT_FORMATS: tuple[TraceFormat, ...] = ("sharegpt", "vllm", "prompts")
"""Traces that hold text, which only a model's tokenizer turns into tokens."""


class Turn(FileSchema, frozen=True, kw_only=True):
    """One turn of a conversation."""

    user: Text
    reply: str = ""
    """What the assistant said, as recorded; it is part of the prompts of the later turns."""


class PrefixLevel(FileSchema, frozen=True, kw_only=True):
    """One level of a tree of shared prefixes: behind each prefix so far, several ways to go on."""

    tokens: Tokens
    branches: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    """Ways to go on behind each prefix of the level above; a request takes one of them, each as likely."""


class Synthetic(FileSchema, frozen=True, kw_only=True):
    """Random tokens instead of text."""

    requests: Requests
    """Conversations, where they have several turns."""
    shared_prefix_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**24)] = 0
    """All prompts begin with these same tokens, such as a system prompt."""
    prefix_tree: Annotated[tuple[PrefixLevel, ...], msgspec.Meta(max_length=16)] = ()
    """What prompts share behind that, level by level: few-shot examples, documents, tools."""
    prompt_tokens: Tokens
    """Tokens of a prompt behind what it shares."""
    turns: Tokens = 1
    """Requests of a conversation; each repeats all that was said before, the engine's own outputs included."""
    turn_tokens: Tokens | None = None
    """Tokens that a later turn adds; as many as `prompt_tokens` if not given."""


class TraceSource(FileSchema, frozen=True, kw_only=True):
    """A file of recorded requests, in one of several formats."""

    file: Text
    """The file, or the folder of a ServeGen model; relative to the workload."""
    format: TraceFormat
    time_unit: Literal["ms", "s"] | None = None
    """Of mooncake timestamps; milliseconds if not given."""
    block_tokens: Count | None = None
    """Tokens that a mooncake hash id stands for; 512 if not given."""
    model: Text | None = None
    """Only BurstGPT's requests to this model."""
    conversations: Literal["first", "all"] | None = None
    """Which turns of a ShareGPT conversation become requests; the first if not given."""
    start_s: Seconds = 0.0
    """Where to begin, in seconds of the trace."""
    duration_s: Rate | None = None
    """How much of it, in seconds of the trace."""
    requests: Requests | None = None
    """Only so many, from where it begins."""
    shuffle: bool = False
    """In a random order, from the seed; not with the trace's own times."""
    wait_for_reply: bool = False
    """A request of a session does not come before the one before it has ended."""

    def __post_init__(self) -> None:
        for key, formats in _FORMATS_OF_KEY.items():
            if getattr(self, key) is not None and self.format not in formats:
                raise ValueError(f"{key} is not for format {self.format}, only for {', '.join(formats)}")

    @property
    def is_text(self) -> bool:
        """Whether it holds text, and not lengths."""
        return self.format in TEXT_FORMATS


_FORMATS_OF_KEY = {
    "time_unit": ("mooncake",),
    "block_tokens": ("mooncake",),
    "model": ("burstgpt",),
    "conversations": ("sharegpt",),
}


class PriorityShare(FileSchema, frozen=True, kw_only=True):
    """Part of the requests, and their priority."""

    value: Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)]
    """Lower is served first, where the scheduling policy heeds it."""
    share: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    """In any unit: fractions, percent."""


class Cancellations(FileSchema, frozen=True, kw_only=True):
    """Requests whose users lose patience."""

    share: Share
    """Of all requests."""
    after_tokens: Tokens | Literal[0] = 0
    """Output tokens until a request is cancelled; 0: at once, whether or not it has begun."""


class Sampling(FileSchema, frozen=True, kw_only=True):
    """How output tokens are chosen; see `kvengine.sampling_params`. Each request draws by a seed of its own."""

    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)]
    """0 is greedy."""
    top_k: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    min_p: Share = 0.0
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=100)] = 1.0
    presence_penalty: Annotated[float, msgspec.Meta(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, msgspec.Meta(ge=-2, le=2)] = 0.0

    def settings(self) -> dict[str, Any]:
        """What is not as it is by default, and the temperature, by name."""
        usual = msgspec.to_builtins(Sampling(temperature=self.temperature))
        given: dict[str, Any] = msgspec.to_builtins(self)
        return {key: value for key, value in given.items() if key == "temperature" or value != usual[key]}


class Workload(FileSchema, frozen=True, kw_only=True):
    """The decoded form of a file in `profiles/workloads`."""

    about: str = ""
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
    trace: TraceSource | None = None
    max_tokens: Tokens | None = None
    """Most output tokens of a request; a trace that knows them may go without."""
    stop_at_eos: bool = False
    """Whether an end-of-sequence token ends the output before `max_tokens`."""
    sampling: Sampling | None = None
    """How output tokens are chosen; greedily if not given. A simulation chooses none."""
    samples: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    """Outputs for each prompt: so many requests of the same prompt that come together."""
    priorities: tuple[PriorityShare, ...] = ()
    """Drawn for each request; without them all have 0."""
    cancel: Cancellations | None = None
    deadline_s: Annotated[float, msgspec.Meta(gt=0, le=1e7)] | None = None
    """A request that has not ended so many seconds after it came is ended; waiting counts."""
    deadline_steps: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """A request that has not ended so many steps of the engine after it came is ended."""
    arrivals: Arrivals = "steps"
    """How requests, or conversations, come one after the other."""
    arrival_gap_steps: Steps = 0
    """Engine steps between one request, or conversation, and the next; 0: all are there at once."""
    turn_gap_steps: Steps = 0
    """Engine steps between the turns of a conversation."""
    rate: Rate | None = None
    """Requests, or conversations, a second; for constant, Poisson and gamma arrivals."""
    cv: Annotated[float, msgspec.Meta(gt=0, le=100)] | None = None
    """Coefficient of variation of the gaps of gamma arrivals: 1 is Poisson, more comes in bursts."""
    users: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    """People in a closed loop; each has one request, or conversation, at a time."""
    think_s: Seconds | None = None
    """Seconds between a reply and what the same user asks next; not with `arrivals: steps`."""
    speed: Rate | None = None
    """Trace times are divided by it: 2 is twice as fast."""

    @property
    def needs_tokenizer(self) -> bool:
        """Whether it is text, which only a model's tokenizer turns into tokens."""
        return bool(self.prompts or self.conversations) or (self.trace is not None and self.trace.is_text)

    @property
    def is_timed(self) -> bool:
        """Whether it depends on seconds, and not only on the order and the steps of the engine."""
        return self.arrivals in ("constant", "poisson", "gamma", "trace") or bool(self.think_s)

    def check(self, *, where: str) -> None:
        """Refuse what does not go together.

        Raises:
            ConfigError: It names the file and the keys.
        """
        for problem in (*_source_problems(self), *_arrival_problems(self)):
            raise ConfigError(problem, where=where)

    def content(self, digest: "Callable[[Path], str]") -> dict[str, Any]:
        """All that decides the requests, as plain values; of a trace its content and not its name.

        Args:
            digest: Stands for the content of a file or folder; `file_digest` does it.

        Raises:
            ConfigError: The trace cannot be read.
        """
        content: dict[str, Any] = msgspec.to_builtins(self)
        del content["about"], content["source"]
        if self.trace is not None:
            content["trace"]["file"] = digest(Path(self.trace.file))
        return content


def _source_problems(workload: Workload) -> "list[str]":
    texts = bool(workload.prompts or workload.conversations)
    problems = []
    if texts + (workload.synthetic is not None) + (workload.trace is not None) != 1:
        problems.append("expected exactly one of prompts and conversations, synthetic, trace")
    for number, turns in enumerate(workload.conversations):
        for turn_number, turn in enumerate(turns[:-1]):
            if not turn.reply:
                problems.append(f"conversations[{number}][{turn_number}] needs a reply, as another turn follows")
    if workload.max_tokens is None and not _knows_outputs(workload.trace):
        problems.append("key 'max_tokens' is missing: the most output tokens of a request")
    if workload.priorities and not any(part.share for part in workload.priorities):
        problems.append("priorities: expected a share above 0")
    return problems


def _knows_outputs(trace: TraceSource | None) -> bool:
    """Whether a trace can say how long outputs are; of vLLM's benchmark lines each may."""
    return trace is not None and trace.format != "prompts"


_KEYS_OF_ARRIVALS: dict[Arrivals, tuple[str, ...]] = {
    "steps": (),
    "closed_loop": ("users",),
    "constant": ("rate",),
    "poisson": ("rate",),
    "gamma": ("rate", "cv"),
    "trace": (),
}
"""What each way of arriving must be told."""


def _arrival_problems(workload: Workload) -> "list[str]":
    arrivals, needed = workload.arrivals, _KEYS_OF_ARRIVALS[workload.arrivals]
    problems = [f"arrivals: {arrivals} needs {key!r}" for key in needed if getattr(workload, key) is None]
    optional = {"steps": (), "trace": ("speed", "think_s")}.get(arrivals, ("think_s",))
    problems += [
        f"{key} has no meaning with arrivals: {arrivals}"
        for key in ("users", "rate", "cv", "think_s", "speed")
        if getattr(workload, key) is not None and key not in (*needed, *optional)
    ]
    if arrivals != "steps" and (workload.arrival_gap_steps or workload.turn_gap_steps):
        problems.append(f"arrival_gap_steps and turn_gap_steps have no meaning with arrivals: {arrivals}")
    trace = workload.trace
    if arrivals == "trace" and (trace is None or trace.is_text):
        problems.append("arrivals: trace needs a trace with times")
    if trace is not None and trace.shuffle and arrivals == "trace":
        problems.append("trace.shuffle has no meaning with arrivals: trace")
    return problems


def file_digest(path: Path) -> str:
    """Tell apart two contents of a file, or of all files of a folder.

    Raises:
        ConfigError: It cannot be read.
    """
    digest = sha256()
    try:
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            digest.update(f"{file.name if path.is_dir() else ''}\n".encode())
            with file.open("rb") as content:
                while chunk := content.read(2**20):
                    digest.update(chunk)
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        raise ConfigError(reason, where=str(path)) from None
    return digest.hexdigest()
