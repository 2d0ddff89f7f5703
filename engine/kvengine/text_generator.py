"""Text in, text out: prompts to requests of an engine, and their tokens to text, as they come or at the end.

from kvengine.model_files import find_demo_model
from kvengine.sampling_params import SamplingParams
from kvengine.text_generator import load_generator

generator = load_generator(find_demo_model())
(completion,) = generator.generate(["The capital of France is"], SamplingParams(max_tokens=16))
print(completion.text)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from kvengine.clock import RealClock
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.drafters import Drafter
from kvengine.engine import Engine, StepResult
from kvengine.errors import ConfigError, KVError
from kvengine.request import FinishReason, Request, RequestId
from kvengine.sampling_params import SamplingParams
from kvengine.spec import KVDtype
from kvengine.step_tokens import TokenLogprobs
from kvengine.text_stream import TextStream
from kvengine.tokenizer import Tokenizer, load_tokenizer
from kvengine.units import cdiv


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """What a step added to one output."""

    request_id: RequestId
    """The request; `a/1` is its second output."""
    text: str
    """New text; empty while a character is not whole, or may belong to a stop string."""
    token_ids: Sequence[int]
    """New tokens."""
    finish_reason: FinishReason | None
    """Set with the last one of an output."""


OnDelta = Callable[[TextDelta], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One finished output."""

    request_id: RequestId
    text: str
    """Without the stop string or stop token that ended it."""
    token_ids: Sequence[int]
    """All tokens that were sampled, those of the stop string and the stop token included."""
    finish_reason: FinishReason
    stop: str | int | None
    """The stop string or stop token that ended it; None if neither did."""
    logprobs: Sequence[TokenLogprobs]
    """One for each token, if they were asked for; else empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A prompt and all of its outputs."""

    request_id: RequestId
    prompt_token_ids: Sequence[int]
    outputs: Sequence[Output]
    """As many as were asked for by `n`; fewer if it was aborted before its first token."""

    @property
    def text(self) -> str:
        """The text of the first output."""
        return self.outputs[0].text


@dataclass(slots=True)
class _Open:
    """An output that grows."""

    request: Request
    stream: TextStream
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    result: Output | None = None
    """Set when it has ended."""


@dataclass(slots=True)
class _Family:
    """A prompt whose outputs have not all ended."""

    prompt_token_ids: Sequence[int]
    stop: Sequence[str]
    on_delta: OnDelta | None
    members: list[_Open]


class TextGenerator:
    """Generates text on an engine that nobody else steps.

    Args:
        engine: Runs the requests.
        tokenizer: Of the engine's model.
        eos_token_ids: Tokens that end an output, unless a request ignores them.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer, *, eos_token_ids: frozenset[int] = frozenset()) -> None:
        self.engine = engine
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._families: dict[RequestId, _Family] = {}
        self._open: dict[RequestId, tuple[_Family, _Open]] = {}
        self._left_over: list[Completion] = []
        self._numbers = count()

    @property
    def has_unfinished(self) -> bool:
        """Whether any prompt has outputs that have not ended."""
        return bool(self._families)

    def submit(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams,
        *,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        request_id: str | None = None,
        time_limit_s: float | None = None,
        on_delta: OnDelta | None = None,
    ) -> RequestId:
        """Queue a prompt; it is served by the calls of `step`.

        Args:
            prompt: Text, or its tokens.
            sampling: How tokens are chosen.
            stop: Strings that end an output. None is looked for in the text of its first `min_tokens` tokens.
            ignore_eos: Whether the model's end-of-sequence tokens are tokens like any other.
            request_id: Its id; a number if not given.
            time_limit_s: Seconds from now after which its outputs are ended.
            on_delta: Called after each step that added to an output of it; it may call `abort`.

        Returns:
            The id.

        Raises:
            ConfigError: The prompt is empty, the id is in use, or a stop string is empty.
            CapacityError: It can never be served; see `Engine.add_request`.
        """
        if any(not each for each in stop):
            raise ConfigError("stop: expected strings that are not empty, got ''")
        if not ignore_eos:
            sampling = replace(sampling, stop_token_ids=sampling.stop_token_ids | self._eos_token_ids)
        tokens = self._tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        name = RequestId(next(self._free_names()) if request_id is None else request_id)
        now_s = self.engine.now_s()
        deadline_s = None if time_limit_s is None else now_s + time_limit_s
        request = Request(name, tokens, sampling, arrival_s=now_s, deadline_s=deadline_s)
        self.engine.add_request(request)
        family = self._families[name] = _Family(tokens, tuple(stop), on_delta, [])
        self._add_member(family, request)
        return name

    def step(self) -> list[Completion]:
        """Let the engine do one step; returns what has been completed by it.

        Raises:
            CapacityError: What is left can never be scheduled.
        """
        result = self.engine.step()
        for request in result.forked:
            if request.parent_id in self._open:
                self._add_member(self._open[request.parent_id][0], request)
        for name in result.sampled:
            if name in self._open:
                self._advance(*self._open[name], result)
        for request in result.expired:
            if request.request_id in self._open:
                self._end(*self._open[request.request_id], FinishReason.DEADLINE)
        self.engine.raise_if_stalled()
        completed, self._left_over = self._left_over, []
        return completed + self._take_completed(list(self._families))

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        sampling: SamplingParams,
        *,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        on_delta: OnDelta | None = None,
    ) -> list[Completion]:
        """Serve prompts together until all have ended; completions come in the order of the prompts.

        Those of other prompts that end meanwhile are returned by the next `step`.

        Raises:
            ConfigError: As for `submit`.
            CapacityError: As for `submit` and `step`; then none of the prompts is left in the engine.
        """
        names: list[RequestId] = []
        done: dict[RequestId, Completion] = {}
        others: list[Completion] = []
        try:
            for prompt in prompts:
                name = self.submit(prompt, sampling, stop=stop, ignore_eos=ignore_eos, on_delta=on_delta)
                names.append(name)
            while len(done) < len(names):
                for completion in self.step():
                    if completion.request_id in names:
                        done[completion.request_id] = completion
                    else:
                        others.append(completion)
        except KVError:
            for name in names:
                self.abort(name)
            self._take_completed(names)
            raise
        finally:
            self._left_over += others
        return [done[name] for name in names]

    def abort(self, request_id: RequestId) -> None:
        """End all outputs of a prompt at once, if they have not ended; `step` returns what there is of them."""
        family = self._families.get(request_id)
        if family is None:
            return
        self.engine.abort(request_id)
        for member in family.members:
            if member.result is None:
                self._end(family, member, FinishReason.ABORT)

    def _free_names(self) -> "filter[str]":
        return filter(lambda name: name not in self._families, map(str, self._numbers))

    def _add_member(self, family: _Family, request: Request) -> None:
        stream = TextStream(
            self._tokenizer.decode,
            family.prompt_token_ids,
            stop=family.stop,
            min_tokens=request.sampling.min_tokens,
        )
        member = _Open(request, stream)
        family.members.append(member)
        self._open[request.request_id] = (family, member)

    def _advance(self, family: _Family, member: _Open, result: StepResult) -> None:
        """Take in the tokens that a step gave an output, up to a stop string."""
        request, stream = member.request, member.stream
        num_before, text = len(member.token_ids), ""
        for token in request.all_token_ids[request.num_prompt_tokens + num_before :]:
            member.token_ids.append(token)
            if self._ends_with(request, token):
                break
            text += stream.add(token)
            if stream.stop_string is not None:
                break
        num_new = len(member.token_ids) - num_before
        member.logprobs += result.logprobs.get(request.request_id, ())[:num_new]
        reason = request.finish_reason
        if stream.stop_string is not None:
            reason = FinishReason.STOP
            self.engine.finish(request.request_id)
        self._tell(family, member, text, reason, num_new)

    @staticmethod
    def _ends_with(request: Request, token: int) -> bool:
        return request.finish_reason is FinishReason.STOP and token in request.sampling.stop_token_ids

    def _end(self, family: _Family, member: _Open, reason: FinishReason) -> None:
        """End an output that no token ended."""
        self._tell(family, member, "", reason, 0)

    def _tell(self, family: _Family, member: _Open, text: str, reason: FinishReason | None, num_new: int) -> None:
        """Close an output that has ended, and hand on what is new."""
        request = member.request
        if reason is not None:
            text += member.stream.finish()
            member.result = _output(member, reason)
            del self._open[request.request_id]
        if family.on_delta is not None:
            tokens = member.token_ids[len(member.token_ids) - num_new :]
            family.on_delta(TextDelta(request_id=request.request_id, text=text, token_ids=tokens, finish_reason=reason))

    def _take_completed(self, request_ids: Sequence[RequestId]) -> list[Completion]:
        """Give up those prompts all of whose outputs have ended."""
        completed: list[Completion] = []
        for name in request_ids:
            family = self._families.get(name)
            outputs = [member.result for member in family.members if member.result is not None] if family else []
            if family is not None and len(outputs) == len(family.members):
                del self._families[name]
                completed.append(Completion(request_id=name, prompt_token_ids=family.prompt_token_ids, outputs=outputs))
        return completed


def _output(member: _Open, reason: FinishReason) -> Output:
    stop: str | int | None = member.stream.stop_string
    if stop is None and reason is FinishReason.STOP:
        stop = member.token_ids[-1]
    return Output(
        request_id=member.request.request_id,
        text=member.stream.text,
        token_ids=member.token_ids,
        finish_reason=FinishReason.STOP if stop is not None else reason,
        stop=stop,
        logprobs=member.logprobs,
    )


def load_generator(
    path: Path,
    *,
    kv_tokens: int = 4096,
    block_size: int = 16,
    max_num_seqs: int = 32,
    dtype: KVDtype = KVDtype.FLOAT32,
    drafter: Drafter | None = None,
) -> TextGenerator:
    """Load a model with its tokenizer and make an engine for it.

    Args:
        path: A model folder or GGUF file.
        kv_tokens: Tokens that the block pool has room for.
        block_size: Tokens of a block.
        max_num_seqs: Most sequences that run at a time.
        dtype: What weights and KV cache are kept in.
        drafter: Guesses at tokens; see `drafters`.

    Raises:
        ConfigError: The files are missing, broken or of a kind that is not supported.
        CapacityError: The pool does not fit.
        DeviceError: A package that is needed is not installed.
    """
    from kvengine.torch_runner import TorchRunner, load_model

    model = load_model(path, dtype=dtype)
    config = EngineConfig(
        kv_cache=model.config.kv_cache_spec(dtype, block_size),
        num_blocks=cdiv(kv_tokens, block_size) + 1,
        scheduler=SchedulerConfig(max_num_seqs=max_num_seqs, max_model_len=min(model.config.max_model_len, kv_tokens)),
    )
    engine = Engine(config, TorchRunner(model, config), clock=RealClock(), drafter=drafter)
    return TextGenerator(engine, load_tokenizer(path), eos_token_ids=model.config.eos_token_ids)
