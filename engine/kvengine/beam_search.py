"""Beam search: the likeliest continuations of a prompt, as forks of one request that share their blocks.

    step      each beam gets its token and how likely its best successors are
    choose    the best continuations of all beams; those that end are put aside
    fork      a beam's likeliest token is in it already; its other successors are forks with another last token
    abort     beams without a successor

Sequences share every block that was written before they parted. A beam is preempted and resumed like any request; while
some have their token and others have not, those that have it run ahead on their own likeliest tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from kvengine.engine import Engine, StepResult
from kvengine.errors import ConfigError
from kvengine.request import FinishReason, Request, RequestId, RequestStatus
from kvengine.sampling_params import MAX_LOGPROBS, SamplingParams
from kvengine.step_tokens import TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """One continuation of the prompt."""

    token_ids: tuple[int, ...]
    """Output tokens, the stop token included if one ended it."""
    logprob: float
    """Of all its tokens together."""
    score: float
    """`logprob` over the number of tokens to the power of the length penalty."""
    is_stopped: bool
    """Whether a stop token ended it, and not its length."""


@dataclass(slots=True)
class _Live:
    """A beam that goes on."""

    request: Request
    token_ids: tuple[int, ...]
    logprob: float
    entries: list[TokenLogprobs] = field(default_factory=list)
    """Of the tokens behind `token_ids` that its request has sampled: one, or more if it ran ahead."""


class BeamSearch:
    """One search on an engine that may serve other requests meanwhile; show it every step.

    Continuations are taken in the order of their probability until `width` of them do not end; those that end and come
    before are complete. The search is over when all beams have `max_tokens` tokens, or none that goes on can still
    become one of the best.

    Args:
        engine: Runs it, over blocks.
        request_id: Id of the first beam; those of the others begin with it.
        prompt_token_ids: What is continued.
        width: Sequences that are kept, at least 1.
        max_tokens: Most output tokens.
        stop_token_ids: Tokens that end a sequence.
        length_penalty: 0 compares sums of log-probabilities, 1 means; at least 0.

    Raises:
        ConfigError: A number is out of range, or as for `Engine.add_request`.
        CapacityError: As for `Engine.add_request`.
    """

    def __init__(
        self,
        engine: Engine,
        request_id: RequestId,
        prompt_token_ids: Sequence[int],
        *,
        width: int,
        max_tokens: int,
        stop_token_ids: frozenset[int] = frozenset(),
        length_penalty: float = 1.0,
    ) -> None:
        num_successors = width + len(stop_token_ids)
        if width < 1 or num_successors > MAX_LOGPROBS:
            allowed = MAX_LOGPROBS - len(stop_token_ids)
            raise ConfigError(f"beam search: width: expected from 1 to {allowed}, got {width}")
        if not 0 <= length_penalty <= 10:
            raise ConfigError(f"beam search: length_penalty: expected from 0 to 10, got {length_penalty}")
        self._engine = engine
        self._name = request_id
        self._numbers = count(1)
        self._prompt = list(prompt_token_ids)
        self._width = width
        self._max_tokens = max_tokens
        self._num_successors = num_successors
        self._stop_token_ids = stop_token_ids
        self._length_penalty = length_penalty
        self._ended: list[Beam] = []
        self._live = [self._start(request_id, (), 0.0)]

    @property
    def is_done(self) -> bool:
        """Whether the search is over."""
        return not self._live

    @property
    def beams(self) -> list[Beam]:
        """The best that have ended so far, at most `width`, the best first."""
        return sorted(self._ended, key=lambda beam: (-beam.score, beam.token_ids))[: self._width]

    def advance(self, result: StepResult) -> None:
        """Take in a step of the engine, and fork and abort requests before the next one."""
        for beam in self._live:
            beam.entries += result.logprobs.get(beam.request.request_id, ())
        self._live = [beam for beam in self._live if beam.entries or not _is_lost(beam.request)]
        while self._live and all(beam.entries for beam in self._live):
            self._choose()

    def _choose(self) -> None:
        """Replace the beams by their best continuations."""
        goes_on: list[tuple[float, int, int]] = []
        for negative, index, token in self._candidates():
            if len(goes_on) == self._width:
                break
            if token in self._stop_token_ids:
                self._end((*self._live[index].token_ids, token), -negative, is_stopped=True)
            else:
                goes_on.append((-negative, index, token))
        num_tokens = len(self._live[0].token_ids) + 1
        if num_tokens == self._max_tokens:
            for logprob, index, token in goes_on:
                self._end((*self._live[index].token_ids, token), logprob, is_stopped=False)
            goes_on = []
        if goes_on and self._may_improve(goes_on[0][0]):
            self._go_on(goes_on)
        else:
            self._abort(self._live)
            self._live = []

    def _candidates(self) -> list[tuple[float, int, int]]:
        """The likeliest continuations: negative log-probability, number of the beam, and token, the likeliest first."""
        return sorted(
            (-(beam.logprob + logprob), index, token)
            for index, beam in enumerate(self._live)
            for token, logprob in beam.entries[0].top
        )

    def _may_improve(self, logprob: float) -> bool:
        """Whether a sequence that has come so far can still be among the best: none gets likelier by growing."""
        best = self.beams
        return len(best) < self._width or logprob / self._max_tokens**self._length_penalty > best[-1].score

    def _end(self, token_ids: tuple[int, ...], logprob: float, *, is_stopped: bool) -> None:
        score = logprob / len(token_ids) ** self._length_penalty
        self._ended.append(Beam(token_ids=token_ids, logprob=logprob, score=score, is_stopped=is_stopped))

    def _go_on(self, chosen: Sequence[tuple[float, int, int]]) -> None:
        parents, self._live = self._live, []
        self._abort([parent for index, parent in enumerate(parents) if all(each[1] != index for each in chosen)])
        for index, parent in enumerate(parents):
            successors = {token: logprob for logprob, other, token in chosen if other == index}
            if not successors:
                continue
            own = parent.entries[0].token_id
            self._part(parent, {token: logprob for token, logprob in successors.items() if token != own})
            if own in successors:
                self._live.append(_Live(parent.request, (*parent.token_ids, own), successors[own], parent.entries[1:]))
            else:
                self._abort([parent])

    def _part(self, parent: _Live, successors: dict[int, float]) -> None:
        """Make beams of a parent's continuations besides its own: forks of it, unless it has run ahead or waits."""
        if not successors:
            return
        names = [RequestId(f"{self._name}/{number}") for number, _ in zip(self._numbers, successors, strict=False)]
        if parent.request.status is RequestStatus.RUNNING and len(parent.entries) == 1:
            children = self._engine.fork(parent.request.request_id, names, list(successors))
            self._live += [
                _Live(child, (*parent.token_ids, token), logprob)
                for child, (token, logprob) in zip(children, successors.items(), strict=True)
            ]
        else:
            self._live += [
                self._start(name, (*parent.token_ids, token), logprob)
                for name, (token, logprob) in zip(names, successors.items(), strict=True)
            ]

    def _start(self, name: RequestId, token_ids: tuple[int, ...], logprob: float) -> _Live:
        """Queue a beam as a request of its own; what is cached of it is not computed again."""
        sampling = SamplingParams(max_tokens=self._max_tokens - len(token_ids), logprobs=self._num_successors)
        request = Request(name, [*self._prompt, *token_ids], sampling)
        self._engine.add_request(request)
        return _Live(request, token_ids, logprob)

    def _abort(self, beams: Sequence[_Live]) -> None:
        for beam in beams:
            self._engine.abort(beam.request.request_id)


def beam_search(
    engine: Engine,
    prompt_token_ids: Sequence[int],
    *,
    width: int,
    max_tokens: int,
    stop_token_ids: frozenset[int] = frozenset(),
    length_penalty: float = 1.0,
    request_id: str = "beam",
) -> list[Beam]:
    """Search on an engine that does nothing else, and return the best sequences, the best first; see `BeamSearch`.

    Raises:
        ConfigError: As for `BeamSearch`.
        CapacityError: As for `BeamSearch`, or what is left can never be scheduled.
    """
    search = BeamSearch(
        engine,
        RequestId(request_id),
        prompt_token_ids,
        width=width,
        max_tokens=max_tokens,
        stop_token_ids=stop_token_ids,
        length_penalty=length_penalty,
    )
    while not search.is_done:
        search.advance(engine.step())
        engine.raise_if_stalled()
    return search.beams


def _is_lost(request: Request) -> bool:
    """Whether somebody else ended it."""
    return request.finish_reason in (FinishReason.ABORT, FinishReason.DEADLINE)
