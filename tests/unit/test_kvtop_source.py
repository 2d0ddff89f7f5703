"""The live source against a socket that says what the test wants."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import pytest
from textual.message import Message

from kvengine.telemetry.framing import PREAMBLE, encode_frame
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.schema import End
from kvtop.sources.base import NewsArrived, StatusChanged
from kvtop.sources.live import LiveSource
from kvtop.view_model import Phase
from tests.watched_engine import FrameList, WatchedEngine


@pytest.fixture
def stream() -> tuple[bytes, list[bytes]]:
    """The greeting, and the frames of six steps: a snapshot and the deltas 1 to 6."""
    sink = FrameList()
    watched = WatchedEngine(sink)
    watched.add("a", "b", max_tokens=9)
    watched.step(6)
    return PREAMBLE + encode_frame(watched.facts), [encode_frame(frame) for frame in sink.frames]


@dataclass
class Told:
    """What a source said, and what a view that took each picture at once has seen."""

    posted: list[Message] = field(default_factory=list)
    steps_shown: list[int] = field(default_factory=list)
    steps_counted: list[int] = field(default_factory=list)


def told_after(*pieces: bytes, is_paused: bool = False) -> Told:
    """What comes of it when an engine says these things and hangs up."""
    engine, viewer = socket.socketpair()
    told = Told()
    source = LiveSource(Attachment(viewer, Path("test.sock")))

    def take(message: Message) -> None:
        told.posted.append(message)
        if isinstance(message, NewsArrived) and not is_paused:
            take_pictures()

    def take_pictures() -> None:
        while (update := source.news.take_update()) is not None:
            told.steps_shown.append(update.step)

    thread = Thread(target=source.run, args=(take,))
    thread.start()
    with engine:
        for piece in pieces:
            engine.sendall(piece)
    thread.join(10)
    assert not thread.is_alive()
    take_pictures()
    told.steps_counted = [sample.step for sample in source.news.take_history()[0]]
    return told


def phases(posted: list[Message]) -> Iterator[Phase]:
    return (message.status.phase for message in posted if isinstance(message, StatusChanged))


def test_history_comes_whole_and_the_last_picture_is_the_newest(stream):
    greeting, frames = stream
    told = told_after(greeting, *frames, encode_frame(End(seq=6, reason="done")))
    assert told.steps_counted == [0, 1, 2, 3, 4, 5, 6]
    assert told.steps_shown[-1] == 6
    assert list(phases(told.posted))[-1] is Phase.ENDED


def test_a_view_that_took_nothing_meanwhile_still_gets_the_last_picture(stream):
    greeting, frames = stream
    told = told_after(greeting, *frames, is_paused=True)
    assert told.steps_shown[-1] == 6


def test_after_a_gap_the_last_whole_state_stays_and_the_gap_is_named(stream):
    greeting, frames = stream
    told = told_after(greeting, *frames[:3], *frames[4:])
    lost = [
        message.status.detail for message in told.posted if isinstance(message, StatusChanged) and message.status.detail
    ]
    assert lost[0] == "delta 3 is missing, waiting for a snapshot"
    assert max(told.steps_shown) == 2
    assert list(phases(told.posted))[-1] is Phase.GONE


def test_a_snapshot_mends_the_gap(stream):
    greeting, frames = stream
    told = told_after(greeting, *frames[:3], frames[4], frames[0], frames[1])
    assert told.steps_shown[-1] == 1
    assert Phase.LIVE in phases(told.posted)


def test_garbage_is_a_state_of_the_screen(stream):
    greeting, frames = stream
    told = told_after(greeting, frames[0], b"\x03\x00\x00\x00\xc1\xc1\xc1")
    (status,) = [message.status for message in told.posted if isinstance(message, StatusChanged)][-1:]
    assert status.phase is Phase.GONE
    assert "not a telemetry frame" in status.detail
