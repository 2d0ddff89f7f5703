"""What is known now, once, for scripts."""

import json
import time
from threading import Thread

from kvengine.errors import TelemetryError
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.recording import Recording
from kvengine.telemetry.schema import Delta, Hello, Snapshot
from kvengine.telemetry.state import StepSnapshot, StreamState
from kvtop.places import Place
from kvtop.server_view import ServerPicture
from kvtop.sources.server import ServerSource
from kvtop.sources.server_recorder import server_document
from kvtop.state_json import state_as_json
from kvtop.targets import Opened, Server

FIRST_STEP_WITHIN_S = 30.0
"""How long an engine may take to finish a step."""
ANSWER_WITHIN_S = 5.0
"""How long a server may take to answer, and its events to come."""


def once_as_json(opened: Opened, *, at: Place | None = None) -> str:
    """The last state of a recording, the next of a running engine, or an answer of a server.

    Args:
        opened: What was asked for.
        at: Place in a recording; its end unless given.

    Raises:
        TelemetryError: There is no such state, or the server does not answer.
    """
    match opened:
        case Recording():
            with opened:
                return state_as_json(opened.read(len(opened) - 1 if at is None else at.position_in(opened)))
        case Attachment():
            return state_as_json(_next_state(opened))
        case Server():
            return _server_as_json(opened)


def _next_state(attachment: Attachment) -> StepSnapshot:
    state: StreamState | None = None
    give_up_s = time.monotonic() + FIRST_STEP_WITHIN_S
    with attachment:
        while time.monotonic() < give_up_s:
            frames = attachment.receive(0.5)
            if frames is None:
                raise TelemetryError(f"{attachment.path}: the engine went away before it finished a step")
            for frame in frames:
                if isinstance(frame, Hello):
                    state = StreamState(frame)
                elif state is not None and isinstance(frame, Snapshot | Delta):
                    state.apply(frame)
            if state is not None and state.is_started:
                return state.freeze()
    raise TelemetryError(f"{attachment.path}: the engine finished no step within {FIRST_STEP_WITHIN_S:g} s")


def _server_as_json(server: Server) -> str:
    """Ask once; where events were asked for by their address, listen until they are known or some time has passed."""
    source = ServerSource(server)
    thread = Thread(target=source.run, args=(lambda _: None,), daemon=True)
    thread.start()
    wants_events = server.events.live is not None
    picture: ServerPicture | None = None
    give_up_s = time.monotonic() + ANSWER_WITHIN_S
    while time.monotonic() < give_up_s and not _is_enough(picture, server.endpoint is not None, wants_events):
        picture = source.news.take_server() or picture
        time.sleep(0.02)
    source.stop()
    metrics = picture.metrics if picture is not None else None
    if server.endpoint is not None and (metrics is None or metrics.has_failed):
        why = f"{metrics.state} ({metrics.detail})" if metrics is not None else "no answer"
        raise TelemetryError(f"{server.endpoint.url}: {why}")
    if server.endpoint is None and (picture is None or picture.events.num_blocks is None):
        raise TelemetryError(f"{server.events.live}: no event came within {ANSWER_WITHIN_S:g} s")
    assert picture is not None, "there is an answer, or an event"
    url = server.endpoint.url if server.endpoint is not None else None
    return json.dumps(server_document(picture, url), ensure_ascii=False)


def _is_enough(picture: ServerPicture | None, wants_metrics: bool, wants_events: bool) -> bool:
    if picture is None or (wants_metrics and picture.metrics is None):
        return False
    if picture.metrics is not None and picture.metrics.has_failed:
        return True
    return not wants_events or picture.events.is_settled
