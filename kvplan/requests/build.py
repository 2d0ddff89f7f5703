"""A workload to its requests: what is asked is found first, then when it comes, who cancels, and who goes first."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from kvengine.errors import ConfigError
from kvengine.request import RequestId
from kvplan.lengths import draw_tokens
from kvplan.requests.arrivals import start_times
from kvplan.requests.sessions import Ask, Session
from kvplan.requests.spec import RequestSpec
from kvplan.requests.synthetic import synthetic_sessions
from kvplan.requests.texts import text_rows, text_sessions, traced_text_sessions
from kvplan.requests.traced import cut_trace, traced_sessions
from kvplan.traces.texts import TextRow
from kvplan.workload import Tokenize, TraceSource, Workload


def request_specs(
    workload: Workload,
    *,
    seed: int,
    vocab_size: int,
    tokenize: Tokenize | None = None,
) -> list[RequestSpec]:
    """Turn a workload into requests, in order of arrival; the same seed gives the same requests.

    Args:
        workload: What is asked.
        seed: Decides every random length, token and time.
        vocab_size: Random tokens are below it.
        tokenize: Turns text into token ids; needed if `workload.needs_tokenizer`.

    Raises:
        ConfigError: A trace cannot be read, or does not say how long outputs are.
    """
    draws = _Draws.of(workload, seed)
    sessions = _sessions(workload, seed, vocab_size, tokenize)
    specs: list[RequestSpec] = []
    for number, (session, start_s) in enumerate(zip(sessions, start_times(workload, seed=seed), strict=False)):
        specs += _session_specs(session, number, start_s, workload, draws)
    return sorted(specs, key=lambda spec: (spec.arrival_step, spec.arrival_s))


@dataclass(frozen=True, slots=True)
class _Draws:
    """What is drawn for each request, each from a source of its own: a change of one changes no other."""

    max_tokens: Callable[[], int | None]
    priority: Callable[[], int]
    cancel_after: Callable[[], int | None]
    seed: Callable[[], int]

    @classmethod
    def of(cls, workload: Workload, seed: int) -> "_Draws":
        lengths, ranks = random.Random(f"{seed}/max_tokens"), random.Random(f"{seed}/priorities")
        patience, noise = random.Random(f"{seed}/cancel"), random.Random(f"{seed}/sampling")
        return cls(
            max_tokens=partial(_draw_max_tokens, workload, lengths),
            priority=partial(_draw_priority, workload, ranks),
            cancel_after=partial(_draw_cancel, workload, patience),
            seed=partial(noise.getrandbits, 31),
        )


def _draw_max_tokens(workload: Workload, chance: random.Random) -> int | None:
    return None if workload.max_tokens is None else draw_tokens(workload.max_tokens, chance)


def _draw_priority(workload: Workload, chance: random.Random) -> int:
    if not workload.priorities:
        return 0
    (drawn,) = chance.choices(workload.priorities, [part.share for part in workload.priorities])
    return drawn.value


def _draw_cancel(workload: Workload, chance: random.Random) -> int | None:
    cancel = workload.cancel
    if cancel is None or chance.random() >= cancel.share:
        return None
    return draw_tokens(cancel.after_tokens, chance)


def _sessions(workload: Workload, seed: int, vocab_size: int, tokenize: Tokenize | None) -> Iterator[Session]:
    if workload.synthetic is not None:
        return synthetic_sessions(workload.synthetic, seed=seed, vocab_size=vocab_size)
    if workload.trace is not None and not workload.trace.is_text:
        cut = cut_trace(workload.trace, seed=seed, needs_times=workload.arrivals == "trace")
        return traced_sessions(cut, workload.trace, seed=seed, vocab_size=vocab_size)
    assert tokenize is not None, "a workload of text was given no tokenizer"
    if workload.trace is not None:
        return traced_text_sessions(_cut_texts(workload.trace, seed), workload, tokenize)
    return text_sessions(workload, tokenize)


def _cut_texts(trace: TraceSource, seed: int) -> Sequence[TextRow]:
    if trace.start_s or trace.duration_s:
        raise ConfigError("texts have no times, so start_s and duration_s have no meaning", where=trace.file)
    rows = text_rows(trace)
    if trace.shuffle:
        random.Random(f"{seed}/shuffle").shuffle(rows)
    if not rows:
        raise ConfigError("holds no prompt", where=trace.file)
    return list(islice(rows, trace.requests))


def _session_specs(
    session: Session, number: int, start_s: float, workload: Workload, draws: _Draws
) -> Iterator[RequestSpec]:
    """The requests of one session, each as often as it is sampled."""
    by_steps = workload.arrivals == "steps"
    waits = session.waits_for_replies or not (by_steps or workload.arrivals == "trace")
    before: RequestSpec | None = None
    for turn, ask in enumerate(session.asks):
        max_tokens, priority, cancel_after = draws.max_tokens(), draws.priority(), draws.cancel_after()
        spec = RequestSpec(
            request_id=RequestId(ask.name),
            session=number,
            prompt=ask.prompt,
            max_tokens=_output_tokens(ask, max_tokens, workload),
            arrival_step=number * workload.arrival_gap_steps + turn * workload.turn_gap_steps,
            arrival_s=ask.arrival_s / (workload.speed or 1.0) if workload.arrivals == "trace" else start_s,
            after=before.request_id if before is not None and waits else None,
            think_s=workload.think_s or 0.0,
            history_tokens=before.num_tokens if before is not None and ask.repeats_before else 0,
            priority=priority,
            sampling=workload.sampling,
            seed=draws.seed(),
            cancel_after_tokens=cancel_after,
        )
        yield spec
        yield from _further_samples(spec, workload.samples, draws)
        before = spec


def _output_tokens(ask: Ask, drawn: int | None, workload: Workload) -> int:
    """As recorded, and no more than the workload allows."""
    recorded, limit = ask.max_tokens, drawn
    if recorded is None and limit is None:
        assert workload.trace is not None, "only a trace may go without max_tokens"
        message = f"{ask.name} does not say how long its output is, so the workload needs max_tokens"
        raise ConfigError(message, where=workload.trace.file)
    if recorded is None or limit is None:
        return recorded or limit or 1
    return min(recorded, limit)


def _further_samples(spec: RequestSpec, samples: int, draws: _Draws) -> Iterable[RequestSpec]:
    """More outputs for the same prompt: vLLM runs them as requests of their own, too."""
    for sample in range(2, samples + 1):
        yield RequestSpec(
            request_id=RequestId(f"{spec.request_id}#{sample}"),
            session=spec.session,
            prompt=spec.prompt,
            max_tokens=spec.max_tokens,
            arrival_step=spec.arrival_step,
            arrival_s=spec.arrival_s,
            after=spec.after,
            think_s=spec.think_s,
            history_tokens=spec.history_tokens,
            priority=spec.priority,
            sampling=spec.sampling,
            seed=draws.seed(),
            cancel_after_tokens=spec.cancel_after_tokens,
        )
