"""An engine that is steered over its socket, as a viewer does it."""

import socket
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from kvengine.clock import RealClock
from kvengine.control import EngineControl
from kvengine.engine import Engine
from kvengine.observer import TelemetryPublisher, engine_facts
from kvengine.runner import SyntheticRunner
from kvengine.telemetry.commands import (
    AbortRequest,
    Command,
    NextScene,
    Pause,
    PreemptRequest,
    ResizePool,
    Resume,
    SetSpeed,
    TakeSteps,
)
from kvengine.telemetry.framing import LENGTH
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.schema import ControlState, Delta, Hello, Reply, Snapshot
from tests.builders import a_request, an_engine_config

PATIENCE_S = 10.0


class SteeredEngine:
    """A small engine on a thread that takes a step whenever its control lets it, and a viewer of it."""

    def __init__(self, path: Path, *, accepts: bool = True) -> None:
        config = an_engine_config(num_blocks=13)
        clock = RealClock()
        self.control = EngineControl(clock=clock)
        facts = engine_facts(config, model="tiny", accepts=self.control.accepts if accepts else ())
        self.publisher = TelemetryPublisher.open(facts, clock=clock, socket=path)
        self.engine = Engine(config, SyntheticRunner(), clock=clock, publisher=self.publisher)
        self.control.steer(self.engine, self.publisher)
        self.control._is_paused = True
        self.num_steps = 0
        self.is_over = False
        for name in ("a", "b", "c"):
            # 6 prompt tokens and 25 output, the last of which is never computed: 30 tokens in 8 blocks of 4.
            self.engine.add_request(a_request(name, prompt=f"{name}bcdef", max_tokens=25))
        self.thread = Thread(target=self.drive)
        self.thread.start()
        self.viewer = Attachment.open(path)
        self.frames: list[object] = []
        self.unread: deque[object] = deque()

    def drive(self) -> None:
        while not self.is_over and self.control.wait_for_turn(is_idle=not self.engine.has_unfinished):
            self.engine.step()
            self.num_steps += 1
            self.control.stepped()

    def ask(self, command: Command) -> Reply:
        """Send a command and wait for what came of it."""
        assert self.viewer.send(command)
        return self.wait_for(Reply)

    def wait_for(self, kind: type) -> object:
        give_up_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up_s:
            while self.unread:
                frame = self.unread.popleft()
                self.frames.append(frame)
                if isinstance(frame, kind):
                    return frame
            self.unread += self.viewer.receive(0.05) or ()
        raise AssertionError(f"no {kind.__name__} came")

    def wait_until_stopped(self) -> ControlState:
        give_up_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up_s:
            state = self.wait_for(ControlState)
            if state.is_paused:
                return state
        raise AssertionError("it went on")

    def close(self) -> None:
        self.is_over = True
        self.viewer.send(Resume())
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        self.viewer.close()
        self.engine.close("done")


@pytest.fixture
def steered(tmp_path) -> Iterator[SteeredEngine]:
    engine = SteeredEngine(tmp_path / "engine.sock")
    yield engine
    engine.close()


def test_a_viewer_is_told_what_is_obeyed_and_how_the_engine_stands(steered):
    hello = steered.wait_for(Hello)
    assert hello.accepts == ["block", "pause", "resume", "steps", "speed", "resize", "abort", "preempt"]
    assert steered.wait_for(ControlState).is_paused


def test_a_paused_engine_takes_the_steps_it_is_told_and_stops_again(steered):
    assert steered.num_steps == 0
    assert steered.ask(TakeSteps(3)).is_done
    steered.wait_until_stopped()
    assert steered.num_steps == 3
    assert steered.ask(TakeSteps(1)).is_done
    steered.wait_until_stopped()
    assert steered.num_steps == 4


def test_a_resumed_engine_goes_on_until_it_is_paused(steered):
    steered.ask(SetSpeed(50.0))
    steered.ask(Resume())
    steered.wait_for(Snapshot)
    steered.wait_for(Delta)
    steered.wait_for(Delta)
    assert steered.ask(Pause()).is_done
    stopped_at = steered.num_steps
    time.sleep(0.2)
    assert steered.num_steps == stopped_at > 1


def test_a_speed_is_a_most(steered):
    steered.ask(SetSpeed(10.0))
    steered.ask(Resume())
    time.sleep(0.55)
    steered.ask(Pause())
    # Half a second has room for five steps and the first.
    assert 1 <= steered.num_steps <= 7


def test_a_smaller_pool_hands_out_fewer_blocks_and_preempts_by_itself(steered):
    steered.ask(TakeSteps(8))
    steered.wait_until_stopped()
    pool = steered.engine._scheduler.kv_cache.pool
    # Each computed 13 tokens: four blocks each, all twelve that there are.
    assert pool.num_used == 12
    assert steered.ask(ResizePool(9)).is_done
    steered.ask(TakeSteps(6))
    state = steered.wait_until_stopped()
    # For its 17th token the first takes a fifth block of the third, which is preempted; the other three are kept back.
    # So the second finds none for its own, and goes too.
    assert (state.usable_blocks, state.withheld_blocks) == (9, 3)
    assert steered.engine.stats.preemptions == 2
    last = next(frame for frame in reversed(steered.frames) if isinstance(frame, Delta))
    # What is kept back is no part of the usable pool any more.
    assert last.totals.free + last.totals.cached_free + last.totals.used + last.totals.shared == 9
    steered.ask(ResizePool(12))
    assert pool.num_free == 12 - pool.num_used
    steered.ask(Resume())
    give_up_s = time.monotonic() + PATIENCE_S
    while steered.engine.has_unfinished and time.monotonic() < give_up_s:
        time.sleep(0.01)
    assert steered.engine.stats.finished == 3


def test_a_pool_too_small_for_a_request_is_refused(steered):
    steered.ask(TakeSteps(1))
    steered.wait_until_stopped()
    # 30 tokens are computed of each: eight blocks of four.
    reply = steered.ask(ResizePool(7))
    assert not reply.is_done
    assert reply.text == "expected 8 (what the largest request needs) to 12 blocks, got 7"
    assert not steered.ask(ResizePool(13)).is_done


def test_a_pool_can_be_resized_before_the_first_step(steered):
    assert steered.wait_for(ControlState).usable_blocks == 12
    assert steered.ask(ResizePool(10)).is_done
    assert steered.num_steps == 0
    assert steered.wait_for(ControlState).usable_blocks == 10
    steered.ask(TakeSteps(2))
    totals = steered.wait_for(Delta).totals
    assert totals.free + totals.cached_free + totals.used + totals.shared == 10


def test_a_pool_that_shrinks_by_force_preempts_at_once(steered):
    steered.ask(TakeSteps(4))
    steered.wait_until_stopped()
    pool = steered.engine._scheduler.kv_cache.pool
    # Each computed 9 tokens: three blocks each, nine of twelve. Down to 8 blocks: one of those in use has to go.
    assert steered.ask(ResizePool(8, True)).is_done
    assert (pool.num_free, pool.num_used, pool.num_withheld, pool.num_to_withhold) == (0, 9, 3, 1)
    steered.ask(TakeSteps(1))
    state = steered.wait_until_stopped()
    assert (state.usable_blocks, state.withheld_blocks) == (8, 4)
    assert [request.request_id for request in steered.engine._scheduler.running] == ["a", "b"]
    steered.engine._scheduler.check_invariants()
    assert steered.ask(ResizePool(12)).is_done
    assert (pool.num_usable, pool.num_withheld) == (12, 0)


def test_a_chosen_request_is_preempted_with_the_next_step(steered):
    steered.ask(TakeSteps(2))
    steered.wait_until_stopped()
    assert steered.ask(PreemptRequest("a")).is_done
    assert steered.ask(PreemptRequest("d")).text == "no running request 'd'"
    steered.ask(TakeSteps(1))
    steered.wait_until_stopped()
    assert [request.request_id for request in steered.engine._scheduler.running] == ["b", "c"]
    # In a step with a preemption nobody is admitted; in the next it comes back, as the last of the running.
    steered.ask(TakeSteps(1))
    steered.wait_until_stopped()
    assert [request.request_id for request in steered.engine._scheduler.running] == ["b", "c", "a"]
    assert steered.engine.stats.preemptions == 1


def test_a_request_is_aborted_by_its_id(steered):
    steered.ask(TakeSteps(2))
    steered.wait_until_stopped()
    assert steered.ask(AbortRequest("b")).is_done
    assert steered.engine.stats.aborted == 1
    assert steered.ask(AbortRequest("b")).text == "no unfinished request 'b'"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (TakeSteps(0), "expected 1 to 10,000 steps, got 0"),
        (TakeSteps(10**9), "got 1000000000"),
        (SetSpeed(-1.0), "expected 0 to 1000 steps a second, got -1"),
        (SetSpeed(float("nan")), "got nan"),
        (NextScene(), "this engine does not obey 'scene'"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(steered, command, words):
    reply = steered.ask(command)
    assert not reply.is_done
    assert words in reply.text


@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 8, LENGTH.pack(3) + b"\xc1\xc1\xc1", LENGTH.pack(2**30), LENGTH.pack(8) + b"\x91\xa6reboot"],
)
def test_a_viewer_that_sends_something_else_is_cut_off_and_the_engine_goes_on(steered, garbage, tmp_path):
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(tmp_path / "engine.sock"))
        stranger.sendall(garbage)
        stranger.settimeout(PATIENCE_S)
        while stranger.recv(2**16):
            pass
    assert steered.ask(TakeSteps(1)).is_done
    steered.wait_until_stopped()
    assert steered.num_steps == 1


def test_an_engine_that_allows_nothing_says_so_and_does_nothing(tmp_path):
    engine = SteeredEngine(tmp_path / "engine.sock", accepts=False)
    assert engine.ask(Resume()) == Reply(is_done=False, text="this engine does not obey 'resume'")
    assert engine.num_steps == 0
    engine.control._is_paused = False
    engine.close()
