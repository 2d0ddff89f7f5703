"""The schedule: which request is due when."""

from kvengine.request import RequestId
from kvplan.requests.prompts import TokenPrompt
from kvplan.requests.schedule import Schedule
from kvplan.requests.spec import RequestSpec


def a_spec(name: str, *, after: str | None = None, **keys: object) -> RequestSpec:
    return RequestSpec(
        request_id=RequestId(name),
        prompt=TokenPrompt([1]),
        max_tokens=1,
        after=RequestId(after) if after else None,
        **keys,  # type: ignore[arg-type]
    )


def due(schedule: Schedule, *, step: int = 0, now_s: float = 0.0) -> list[str]:
    return [due.spec.request_id for due in schedule.take(step=step, now_s=now_s)]


def test_requests_come_at_their_steps_and_times_in_order() -> None:
    schedule = Schedule([a_spec("a"), a_spec("b", arrival_step=3), a_spec("c", arrival_step=3)])
    assert [due(schedule, step=step) for step in (0, 2, 3)] == [["a"], [], ["b", "c"]]

    timed = Schedule([a_spec("a", arrival_s=1.5), a_spec("b", arrival_s=0.5)])
    assert timed.next_s == 0.5
    assert [due(timed, now_s=now_s) for now_s in (0.4, 1.0, 2.0)] == [[], ["b"], ["a"]]
    assert timed.is_empty


def test_a_turn_waits_for_the_reply_and_then_thinks() -> None:
    schedule = Schedule([a_spec("a"), a_spec("b", after="a", think_s=2, history_tokens=9)])
    assert due(schedule) == ["a"]
    assert schedule.next_s is None
    assert not schedule.is_empty

    schedule.ended(RequestId("a"), 5.0, tokens=[4, 5])

    assert schedule.next_s == 7.0
    (second,) = schedule.take(step=0, now_s=9.0)
    assert (second.spec.request_id, second.time_s, second.history) == ("b", 7.0, [4, 5])


def test_a_turn_with_a_time_of_its_own_comes_at_the_later_of_both() -> None:
    schedule = Schedule([a_spec("a"), a_spec("b", after="a", arrival_s=9)])
    due(schedule)
    schedule.ended(RequestId("a"), 5.0)

    assert schedule.next_s == 9


def test_users_of_a_closed_loop_have_one_session_at_a_time() -> None:
    specs = [
        *(a_spec("a1", session=0), a_spec("a2", session=0, after="a1"), a_spec("b", session=1)),
        *(a_spec("c", session=2), a_spec("d", session=3)),
    ]
    schedule = Schedule(specs, users=2, think_s=1)
    assert due(schedule) == ["a1", "b"]

    schedule.ended(RequestId("a1"), 1.0)
    assert due(schedule, now_s=9.0) == ["a2"]  # the session goes on, so nobody is free
    schedule.ended(RequestId("b"), 2.0)
    assert due(schedule, now_s=2.9) == []
    assert due(schedule, now_s=3.0) == ["c"]
    schedule.ended(RequestId("a2"), 4.0)
    assert due(schedule, now_s=5.0) == ["d"]
    assert schedule.is_empty


def test_all_samples_of_a_session_must_end_before_its_user_goes_on() -> None:
    specs = [a_spec("a", session=0), a_spec("a#2", session=0), a_spec("b", session=1)]
    schedule = Schedule(specs, users=1)
    assert due(schedule) == ["a", "a#2"]

    schedule.ended(RequestId("a"), 1.0)
    assert due(schedule, now_s=1.0) == []
    schedule.ended(RequestId("a#2"), 2.0)
    assert due(schedule, now_s=2.0) == ["b"]


def test_a_user_more_than_there_are_sessions_changes_nothing() -> None:
    assert due(Schedule([a_spec("a")], users=5)) == ["a"]
