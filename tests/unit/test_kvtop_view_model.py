from msgspec import structs

from kvengine.telemetry.history import Event, EventKind
from kvengine.telemetry.state import StreamState
from kvtop.view_model import Phase, SourceStatus, ViewModel
from tests.watched_engine import frames_of_a_run


def a_model(*, is_recording: bool = False, steps: int = 3) -> ViewModel:
    """A view of two running requests after some steps."""
    facts, frames = frames_of_a_run(steps)
    state = StreamState(facts)
    for frame in frames:
        state.apply(frame)
    model = ViewModel(source_name="test", is_recording=is_recording)
    model.status = SourceStatus(phase=Phase.REPLAY if is_recording else Phase.LIVE)
    model.take_update(state.take_update(), now_s=100.0)
    return model


def an_event(step: int, kind: EventKind = EventKind.PREEMPT, amount: int = 1) -> Event:
    return Event(step=step, time_s=0.0, kind=kind, request_id="a", amount=amount)


def test_a_live_picture_ages_and_is_stale_after_two_seconds():
    model = a_model()
    assert model.age_s(101.5) == 1.5
    assert not model.is_stale(101.9)
    assert model.is_stale(102.1)


def test_a_recording_has_no_age_and_is_never_stale():
    model = a_model(is_recording=True)
    assert model.age_s(1e6) is None
    assert not model.is_stale(1e6)


def test_the_last_picture_of_a_source_that_is_gone_is_stale_at_once():
    model = a_model()
    model.status = SourceStatus(phase=Phase.GONE)
    assert model.is_stale(100.0)


def test_only_events_up_to_the_step_shown_are_listed():
    model = a_model(steps=3)
    model.take_history([], [an_event(1), an_event(3), an_event(3), an_event(4)])
    assert model.num_events_shown() == 3


def test_the_nearest_other_step_with_a_preemption_is_found_both_ways():
    model = a_model(is_recording=True, steps=3)
    kinds = [(1, EventKind.PREEMPT), (2, EventKind.FINISH), (3, EventKind.PREEMPT), (5, EventKind.PREEMPT)]
    model.take_history([], [an_event(step, kind) for step, kind in kinds])
    assert model.next_incident(forward=True).step == 5
    assert model.next_incident(forward=False).step == 1


def test_many_evictions_in_one_step_are_an_incident_and_few_are_not():
    model = a_model(is_recording=True, steps=3)
    model.take_history([], [an_event(4, EventKind.EVICT, amount=7), an_event(6, EventKind.EVICT, amount=8)])
    assert model.next_incident(forward=True).step == 6
    assert model.next_incident(forward=False) is None


def test_in_a_live_log_the_search_goes_on_from_what_it_found_last():
    model = a_model(steps=3)
    model.take_history([], [an_event(step) for step in (1, 2, 3)])
    for step in (3, 2, 1):
        model.incident = model.next_incident(forward=False)
        assert model.incident.step == step
    assert model.next_incident(forward=False) is None
    assert model.next_incident(forward=True).step == 2


def test_requests_are_filtered_by_id_and_status():
    model = a_model()
    assert [request.request_id for request in model.listed_requests()] == ["a", "b"]
    model.filter_text = "B"
    assert [request.request_id for request in model.listed_requests()] == ["b"]
    model.filter_text = "waiting"
    assert model.listed_requests() == []
    model.filter_text = "run"
    assert len(model.listed_requests()) == 2


def test_a_selected_request_that_has_finished_is_no_longer_selected():
    model = a_model()
    model.selected_id = "a"
    assert model.selected is not None
    model.selected_id = "gone"
    assert model.selected is None


def test_a_recording_of_an_engine_that_was_steered_obeys_nothing():
    facts = structs.replace(a_model().facts, accepts=["pause", "resize"])
    live, recording = (ViewModel(source_name="x", is_recording=is_recording) for is_recording in (False, True))
    live.facts = recording.facts = facts
    assert live.accepts("resize")
    assert not recording.accepts("resize")
