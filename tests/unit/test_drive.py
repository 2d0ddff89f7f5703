"""Driving an engine through a schedule: arrivals, follow-ups, cancellations and time limits."""

from collections.abc import Sequence
from pathlib import Path
from threading import Thread

import pytest

from kvengine.clock import RealClock, VirtualClock
from kvengine.config import SchedulerConfig
from kvengine.control import EngineControl
from kvengine.engine import Engine
from kvengine.observer import TelemetryPublisher, engine_facts
from kvengine.runner import SyntheticRunner
from kvengine.scheduler import Scheduler
from kvengine.telemetry.commands import AbortRequest, Command, Pause, ResizePool
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.schema import Reply
from kvplan.drive import Driven, Driver, RealPace, StepPace, TimeLimit
from kvplan.loading import decode
from kvplan.requests.build import request_specs
from kvplan.requests.schedule import Schedule
from kvplan.requests.spec import RequestSpec
from kvplan.workload import Workload
from tests.builders import an_engine_config


def specs_of(**keys: object) -> list[RequestSpec]:
    workload = decode({"about": "test", **keys}, Workload, source="w.yaml")
    workload.check(where="w.yaml")
    return request_specs(workload, seed=0, vocab_size=50_000)


def drive(
    specs: Sequence[RequestSpec], *, step_s: float = 1.0, users: int | None = None, limit_s: float | None = None
) -> tuple[Driven, Engine]:
    clock = VirtualClock()
    engine = Engine(an_engine_config(num_blocks=100), SyntheticRunner(), clock=clock, debug=True)
    driver = Driver(engine, Schedule(specs, users=users), pace=StepPace(clock, step_s))
    return driver.run(time_limit=None if limit_s is None else TimeLimit(limit_s, clock)), engine


def test_time_without_anything_to_do_is_skipped_and_not_stepped_through() -> None:
    specs = specs_of(synthetic={"requests": 3, "prompt_tokens": 4}, max_tokens=2, arrivals="constant", rate=0.001)

    driven, engine = drive(specs)

    # Each request takes two steps; 1,000 s lie between them.
    assert driven == Driven(num_finished=3, num_cancelled=0, out_of_time=False)
    assert engine.stats.steps == 6
    assert engine.stats.peak_running == 1


def test_requests_that_come_faster_than_they_are_done_run_together() -> None:
    specs = specs_of(synthetic={"requests": 4, "prompt_tokens": 4}, max_tokens=5, arrivals="constant", rate=1)

    _, engine = drive(specs, step_s=0.5)

    # One comes every other step and stays for five: at 0 .. 2, 1 .. 3, 2 .. 4 and 3 .. 5 seconds.
    assert engine.stats.peak_running == 3


def test_a_closed_loop_never_has_more_requests_than_users() -> None:
    specs = specs_of(
        synthetic={"requests": 9, "prompt_tokens": 4}, max_tokens={"low": 1, "high": 7}, arrivals="closed_loop", users=2
    )

    driven, engine = drive(specs, users=2)

    assert driven.num_finished == 9
    assert engine.stats.peak_running == 2


def test_later_turns_hit_what_the_engine_itself_has_said() -> None:
    specs = specs_of(synthetic={"requests": 1, "prompt_tokens": 8, "turns": 3, "turn_tokens": 4}, max_tokens=8)

    driven, engine = drive(specs)

    # Blocks of 4. Turn 2 asks 8 + 8 + 4 tokens and finds the 15 computed ones: 12 in full blocks. Turn 3 asks
    # 20 + 8 + 4 and finds 27: 24.
    assert driven.num_finished == 3
    assert engine.stats.prefix_hit_tokens == 12 + 24


def test_cancelled_requests_end_early_and_free_their_blocks() -> None:
    specs = specs_of(
        synthetic={"requests": 3, "prompt_tokens": 4}, max_tokens=10, cancel={"share": 1, "after_tokens": 2}
    )

    driven, engine = drive(specs)

    assert driven == Driven(num_finished=0, num_cancelled=3, out_of_time=False)
    assert (engine.stats.aborted, engine.stats.output_tokens, engine.stats.steps) == (3, 6, 2)


def test_a_request_can_be_cancelled_while_it_waits() -> None:
    specs = specs_of(synthetic={"requests": 2, "prompt_tokens": 4}, max_tokens=3, cancel={"share": 1})

    driven, engine = drive(specs)

    assert driven.num_cancelled == 2
    assert engine.stats.steps == 1


def test_a_turn_behind_a_cancelled_one_still_comes() -> None:
    specs = specs_of(
        synthetic={"requests": 1, "prompt_tokens": 4, "turns": 2}, max_tokens=9, cancel={"share": 1, "after_tokens": 3}
    )

    driven, _ = drive(specs)

    assert driven.num_cancelled == 2


def test_a_request_that_would_be_cancelled_too_late_ends_by_itself() -> None:
    specs = specs_of(
        synthetic={"requests": 1, "prompt_tokens": 4}, max_tokens=3, cancel={"share": 1, "after_tokens": 9}
    )

    assert drive(specs)[0] == Driven(num_finished=1, num_cancelled=0, out_of_time=False)


def test_a_time_limit_ends_a_run_between_steps_and_while_idle() -> None:
    busy = specs_of(synthetic={"requests": 1, "prompt_tokens": 4}, max_tokens=100)
    idle = specs_of(synthetic={"requests": 2, "prompt_tokens": 4}, max_tokens=2, arrivals="constant", rate=0.001)

    assert drive(busy, limit_s=5)[0].out_of_time
    assert drive(busy, limit_s=5)[1].stats.steps == 5
    assert drive(idle, limit_s=50)[0] == Driven(num_finished=1, num_cancelled=0, out_of_time=True)


def test_in_real_time_a_request_does_not_come_before_its_time() -> None:
    specs = specs_of(synthetic={"requests": 2, "prompt_tokens": 4}, max_tokens=1, arrivals="constant", rate=20)
    clock = RealClock()
    engine = Engine(an_engine_config(), SyntheticRunner(), clock=clock)

    started_s = clock.now_s()
    driven = Driver(engine, Schedule(specs), pace=RealPace(clock)).run()

    assert driven.num_finished == 2
    assert clock.now_s() - started_s >= 0.05


@pytest.mark.parametrize("samples", [1, 3])
def test_every_sample_of_a_later_turn_repeats_the_same_history(samples: int) -> None:
    specs = specs_of(
        synthetic={"requests": 1, "prompt_tokens": 5, "turns": 2, "turn_tokens": 3}, max_tokens=4, samples=samples
    )

    driven, engine = drive(specs)

    assert driven.num_finished == 2 * samples
    assert engine.stats.prompt_tokens == samples * (5 + (5 + 4 + 3))


def test_requests_past_their_deadline_and_those_of_a_full_queue_are_counted_and_let_the_run_end() -> None:
    specs = specs_of(synthetic={"requests": 6, "prompt_tokens": 4}, max_tokens=10)
    clock = VirtualClock()
    limits = SchedulerConfig(max_num_seqs=1, max_waiting=4)
    engine = Engine(an_engine_config(num_blocks=100, limits=limits), SyntheticRunner(), clock=clock, debug=True)

    driven = Driver(engine, Schedule(specs), pace=StepPace(clock, 1.0), deadline_s=15.0).run()

    # Six come at once, and four may wait. The first takes ten steps, the second runs until second 15, when the other
    # two have waited as long.
    assert driven == Driven(num_finished=1, num_cancelled=0, out_of_time=False)
    assert (engine.stats.finished, engine.stats.expired, engine.stats.rejected) == (1, 3, 2)
    assert engine.stats.steps <= 17


def test_a_viewer_steers_a_run_and_when_it_leaves_the_run_goes_on(tmp_path: Path) -> None:
    specs = specs_of(synthetic={"requests": 2, "prompt_tokens": 4}, max_tokens=1500)
    clock = RealClock()
    config = an_engine_config(num_blocks=1000)
    control = EngineControl(clock=clock, steps_per_s=200.0, lets_go=True)
    facts = engine_facts(config, model="tiny", accepts=control.accepts)
    publisher = TelemetryPublisher.open(facts, clock=clock, socket=tmp_path / "engine.sock")
    engine = Engine(config, SyntheticRunner(), clock=clock, publisher=publisher)
    control.steer(engine, publisher)
    driver = Driver(engine, Schedule(specs), pace=RealPace(clock), control=control)
    driven: list[Driven] = []
    thread = Thread(target=lambda: driven.append(driver.run()))
    thread.start()
    viewer = Attachment.open(tmp_path / "engine.sock")
    try:
        assert ask(viewer, Pause()).is_done
        stopped_at = engine.num_steps
        assert ask(viewer, AbortRequest(specs[0].request_id)).is_done
        assert ask(viewer, ResizePool(700)).is_done
        assert engine.num_steps == stopped_at
    finally:
        viewer.close()
    thread.join(20)
    engine.close("done")
    assert not thread.is_alive()
    # The other request's 1,500 steps would take eight seconds at the speed that was left behind.
    assert driven == [Driven(num_finished=1, num_cancelled=1, out_of_time=False)]
    assert control.num_obeyed == 3


def test_a_run_whose_pool_a_viewer_has_made_too_small_waits_for_the_blocks() -> None:
    clock, config = RealClock(), an_engine_config(num_blocks=9)
    control, publisher = EngineControl(clock=clock), TelemetryPublisher([], clock=clock)
    scheduler = Scheduler(config)
    engine = Engine(config, SyntheticRunner(), clock=clock, publisher=publisher, scheduler=scheduler)
    control.steer(engine, publisher)
    scheduler.resize_pool(1)
    specs = specs_of(synthetic={"requests": 1, "prompt_tokens": 8}, max_tokens=2)
    driver = Driver(engine, Schedule(specs), pace=RealPace(clock), control=control)
    thread = Thread(target=driver.run)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    assert engine.is_stalled
    scheduler.resize_pool(8)
    thread.join(10)
    assert not thread.is_alive()
    assert engine.stats.finished == 1


def ask(viewer: Attachment, command: Command) -> Reply:
    """Send a command and wait for what came of it."""
    assert viewer.send(command)
    for _ in range(200):
        for frame in viewer.receive(0.1) or ():
            if isinstance(frame, Reply):
                return frame
    raise AssertionError("no reply came")
