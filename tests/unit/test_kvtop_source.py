"""The live source against a socket that says what the test wants."""

import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from textual.message import Message

from kvengine.telemetry.framing import PREAMBLE, encode_frame
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.schema import End
from kvtop.source import HistoryArrived, LiveSource, SnapshotArrived, StatusChanged
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


def posted_after(*pieces: bytes) -> list[Message]:
    """What the source posts when an engine says these things and hangs up."""
    engine, viewer = socket.socketpair()
    posted: list[Message] = []
    source = LiveSource(Attachment(viewer, Path("test.sock")))
    thread = Thread(target=source.run, args=(posted.append,))
    thread.start()
    with engine:
        for piece in pieces:
            engine.sendall(piece)
    thread.join(10)
    assert not thread.is_alive()
    return posted


def phases(posted: list[Message]) -> Iterator[Phase]:
    return (message.status.phase for message in posted if isinstance(message, StatusChanged))


def test_history_comes_whole_and_the_last_picture_is_the_newest(stream):
    greeting, frames = stream
    posted = posted_after(greeting, *frames, encode_frame(End(seq=6, reason="done")))
    steps = [sample.step for message in posted if isinstance(message, HistoryArrived) for sample in message.samples]
    assert steps == [0, 1, 2, 3, 4, 5, 6]
    assert [message for message in posted if isinstance(message, SnapshotArrived)][-1].snapshot.step == 6
    assert list(phases(posted))[-1] is Phase.ENDED


def test_after_a_gap_the_last_whole_state_stays_and_the_gap_is_named(stream):
    greeting, frames = stream
    posted = posted_after(greeting, *frames[:3], *frames[4:])
    lost = [message.status.detail for message in posted if isinstance(message, StatusChanged) and message.status.detail]
    assert lost[0] == "delta 3 is missing, waiting for a snapshot"
    assert all(message.snapshot.step <= 2 for message in posted if isinstance(message, SnapshotArrived))
    assert list(phases(posted))[-1] is Phase.GONE


def test_a_snapshot_mends_the_gap(stream):
    greeting, frames = stream
    posted = posted_after(greeting, *frames[:3], frames[4], frames[0], frames[1])
    assert [message for message in posted if isinstance(message, SnapshotArrived)][-1].snapshot.step == 1
    assert Phase.LIVE in phases(posted)


def test_garbage_is_a_state_of_the_screen(stream):
    greeting, frames = stream
    posted = posted_after(greeting, frames[0], b"\x03\x00\x00\x00\xc1\xc1\xc1")
    (status,) = [message.status for message in posted if isinstance(message, StatusChanged)][-1:]
    assert status.phase is Phase.GONE
    assert "not a telemetry frame" in status.detail
