"""What happened over the steps of a stream: a sample of the totals for each, and the events worth a line."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvengine.telemetry.schema import Counters, Delta, DeltaHead, SnapshotHead, Totals


class EventKind(StrEnum):
    """What can happen to a request or the pool in a step."""

    ARRIVE = "arrive"
    ADMIT = "admit"
    RESUME = "resume"
    PREEMPT = "preempt"
    FINISH = "finish"
    EVICT = "evict"
    NOTE = "note"
    """The engine said something in words."""
    CLEAR = "clear"
    """The whole prefix cache was reset."""
    SOURCE = "source"
    """Something happened to the connection with what is watched, or to its process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened."""

    step: int
    time_s: float
    kind: EventKind
    request_id: str
    """Empty for an eviction, since the blocks had no owner, and for a note."""
    amount: int
    """Prompt tokens of an arrival, cached tokens of an admission, blocks given up by a preemption or evicted, output
    tokens of a finished request."""
    reason: str = ""
    """Why a request finished, or the words of a note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The totals after one step."""

    step: int
    time_s: float
    totals: Totals
    counters: Counters
    first_tokens_s: Sequence[float] = ()
    """Seconds from the queue to the first output token, of the requests that got it in this step."""
    token_gaps_s: Sequence[float] = ()
    """A gap between two output tokens of a request in seconds, and how many had it, in turn."""


class History:
    """Names the requests of a stream, so that each frame becomes a sample and its events.

    It needs the first fields of a frame only, so a recording is gone through without decoding what each step changed.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def read(self, frame: SnapshotHead | DeltaHead | Delta) -> tuple[Sample, list[Event]]:
        """Take the next frame of the stream."""
        if isinstance(frame, SnapshotHead):
            self._names = {state.handle: state.request_id for state in frame.requests}
            sample = Sample(step=frame.step, time_s=frame.time_s, totals=frame.totals, counters=frame.counters)
            return sample, []
        sample = Sample(
            step=frame.step,
            time_s=frame.time_s,
            totals=frame.totals,
            counters=frame.counters,
            first_tokens_s=frame.first_tokens_s,
            token_gaps_s=frame.token_gaps_s,
        )
        return sample, self._events(frame)

    def _events(self, delta: DeltaHead | Delta) -> list[Event]:
        events: list[Event] = []

        def add(kind: EventKind, request_id: str, amount: int, reason: str = "") -> None:
            events.append(
                Event(
                    step=delta.step,
                    time_s=delta.time_s,
                    kind=kind,
                    request_id=request_id,
                    amount=amount,
                    reason=reason,
                )
            )

        for state in delta.arrived:
            self._names[state.handle] = state.request_id
            add(EventKind.ARRIVE, state.request_id, state.num_prompt_tokens)
        for preempted in delta.preempted:
            add(EventKind.PREEMPT, self._name(preempted.handle), preempted.num_blocks)
        for admitted in delta.admitted:
            kind = EventKind.RESUME if admitted.resumed else EventKind.ADMIT
            add(kind, self._name(admitted.handle), admitted.num_cached_tokens)
        if delta.num_evicted:
            add(EventKind.EVICT, "", delta.num_evicted)
        for finished in delta.finished:
            add(EventKind.FINISH, self._names.pop(finished.handle, "?"), finished.num_output_tokens, finished.reason)
        if delta.note:
            add(EventKind.NOTE, "", 0, delta.note)
        return events

    def _name(self, handle: int) -> str:
        return self._names.get(handle, "?")
