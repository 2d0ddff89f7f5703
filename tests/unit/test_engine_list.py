"""Which engines run, and which one comes after another."""

import os
import time
from pathlib import Path

import pytest
from msgspec import structs

from kvengine.observer import TelemetryPublisher
from kvengine.telemetry.engine_list import EngineList
from kvtop.following import FollowEngines, FollowSocket
from tests.watched_engine import WatchedEngine


@pytest.fixture
def folder(tmp_path) -> Path:
    made = tmp_path / "run"
    made.mkdir(mode=0o700)
    return made


def an_engine(path: Path, *, model: str = "tiny", pid: int | None = None, began_s: float | None = None):
    def publisher(facts, clock):
        began = {"started_unix_s": time.time() if began_s is None else began_s}
        facts = structs.replace(facts, model=model, pid=os.getpid() if pid is None else pid, **began)
        return TelemetryPublisher.open(facts, clock=clock, socket=path)

    return WatchedEngine(publisher=publisher)


def num_asked(engine: WatchedEngine) -> int:
    """How many viewers have attached so far, gone ones included."""
    time.sleep(0.1)  # the thread that accepts them takes a moment
    return len(engine.publisher._sinks[0]._greeted)


def test_an_engine_is_asked_once_who_it_is(folder):
    engine = an_engine(folder / "a.sock")
    engines = EngineList(folder)
    names = [[found.path.name for found in engines.look()] for _ in range(3)]
    assert names == [["a.sock"]] * 3
    assert num_asked(engine) == 1
    engine.engine.close("done")
    assert engines.look() == []


def test_another_engine_under_the_same_name_is_asked_again(folder):
    engines = EngineList(folder)
    for model in ("first", "second"):
        engine = an_engine(folder / "a.sock", model=model)
        assert [found.facts.model for found in engines.look()] == [model]
        engine.engine.close("done")


def test_an_engine_whose_process_has_died_is_passed_over(folder):
    engines = EngineList(folder)
    dead = os.fork()
    if dead == 0:
        os._exit(0)
    os.waitpid(dead, 0)
    engine = an_engine(folder / "a.sock", pid=dead)
    assert len(engines.look()) == 1, "it answers, whatever its process id says"
    engine.engine.close("done")
    assert engines.look() == []


def followed(folder: Path, last: WatchedEngine) -> str | None:
    attachment = FollowEngines(EngineList(folder)).attach_next(last.facts)
    if attachment is None:
        return None
    attachment.close()
    return attachment.path.name


def test_the_next_engine_of_the_same_process_comes_before_a_newer_one(folder):
    ended = an_engine(folder / "0.sock", began_s=100.0)
    ended.facts = structs.replace(ended.facts, started_unix_s=100.0)
    ended.engine.close("done")
    others = [
        an_engine(folder / "older.sock", pid=1, began_s=50.0),
        an_engine(folder / "same.sock", began_s=200.0),
        an_engine(folder / "newest.sock", pid=1, began_s=300.0),
    ]
    assert followed(folder, ended) == "same.sock"
    others[1].engine.close("done")
    assert followed(folder, ended) == "newest.sock"
    others[2].engine.close("done")
    assert followed(folder, ended) is None
    others[0].engine.close("done")


def test_a_socket_is_followed_by_whoever_listens_there_next(folder):
    following = FollowSocket(folder / "a.sock")
    assert following.attach_next(None) is None
    engine = an_engine(folder / "a.sock")
    attachment = following.attach_next(engine.facts)
    assert attachment is not None
    attachment.close()
    engine.engine.close("done")
