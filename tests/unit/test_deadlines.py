"""Requests that are ended when their time is up, waiting or running."""

from hypothesis import given
from hypothesis import strategies as st

from kvengine.clock import VirtualClock
from kvengine.config import SchedulerConfig
from kvengine.deadlines import Deadlines
from kvengine.engine import Engine
from kvengine.request import FinishReason, Request, RequestId, RequestStatus, SamplingParams
from kvengine.runner import SyntheticRunner
from tests.builders import an_engine_config


def a_request(name: str, **deadline: float | int) -> Request:
    return Request(RequestId(name), [1, 2, 3, 4], SamplingParams(max_tokens=9), **deadline)  # type: ignore[arg-type]


def an_engine(clock: VirtualClock, *, max_num_seqs: int = 8) -> Engine:
    config = an_engine_config(limits=SchedulerConfig(max_num_seqs=max_num_seqs))
    return Engine(config, SyntheticRunner(), clock=clock, debug=True)


def test_a_running_request_is_ended_at_its_time_and_frees_its_blocks() -> None:
    clock = VirtualClock(100.0)
    engine = an_engine(clock)
    late, patient = a_request("late", deadline_s=102.0), a_request("patient")
    engine.add_request(late)
    engine.add_request(patient)
    engine.step()
    clock.advance(1.9)
    assert engine.step().expired == []
    clock.advance(0.1)
    result = engine.step()
    assert result.expired == [late]
    assert (late.status, late.finish_reason) == (RequestStatus.FINISHED, FinishReason.DEADLINE)
    assert late.num_output_tokens == 2
    # What is left of the pool's eight blocks are the other one's two, the second for its 7th token.
    assert engine.kv_cache.pool.num_used == 2
    assert engine.run_until_done() == [patient]
    assert (engine.stats.expired, engine.stats.finished, engine.stats.aborted) == (1, 1, 0)


def test_a_waiting_request_is_ended_before_a_step_and_never_admitted() -> None:
    engine = an_engine(VirtualClock(), max_num_seqs=1)
    first, late = a_request("first"), a_request("late", deadline_step=3)
    engine.add_request(first)
    engine.add_request(late)
    results = [engine.step() for _ in range(4)]
    assert [[request.request_id for request in result.expired] for result in results] == [[], [], [], ["late"]]
    assert results[3].num_waiting == 0
    assert late.num_computed_tokens == 0


def test_the_last_request_may_run_out_of_time_too() -> None:
    engine = an_engine(VirtualClock())
    engine.add_request(a_request("only", deadline_step=2))
    assert engine.run_until_done() == []
    assert not engine.has_unfinished
    assert engine.stats.expired == 1


@given(st.lists(st.tuples(st.sampled_from([None, 1.0, 2.0, 3.0]), st.sampled_from([None, 1, 2, 3])), max_size=12))
def test_whoever_is_due_is_taken_out_once(deadlines: list[tuple[float | None, int | None]]) -> None:
    book, requests = Deadlines(), []
    for index, (deadline_s, deadline_step) in enumerate(deadlines):
        request = Request(
            RequestId(str(index)), [1], SamplingParams(max_tokens=1), deadline_s=deadline_s, deadline_step=deadline_step
        )
        requests.append(request)
        book.add(request)
    for now in range(5):
        due = [
            request
            for request in requests
            if (request.deadline_s is not None and request.deadline_s <= now)
            or (request.deadline_step is not None and request.deadline_step <= now)
        ]
        expired = book.take_expired(now_s=float(now), step=now)
        assert sorted(request.request_id for request in expired) == sorted(
            request.request_id for request in due if request.status is not RequestStatus.FINISHED
        )
        for request in expired:
            request.status = RequestStatus.FINISHED
