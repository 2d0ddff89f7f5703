"""What is known now, once, for scripts."""

import json
import time
from dataclasses import fields, is_dataclass
from typing import Any

from kvengine.errors import TelemetryError
from kvengine.telemetry.metrics import MetricsReading
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.recording import Recording
from kvengine.telemetry.schema import Delta, Hello, Snapshot
from kvengine.telemetry.state import StepSnapshot, StreamState
from kvtop.state_json import state_as_json
from kvtop.targets import Opened, Server

FIRST_STEP_WITHIN_S = 30.0
"""How long an engine may take to finish a step."""
SERVER_SCHEMA = "kvtop.server/1"


def once_as_json(opened: Opened) -> str:
    """The last state of a recording, the next of a running engine, or an answer of a server.

    Raises:
        TelemetryError: There is no such state, or the server does not answer.
    """
    match opened:
        case Recording():
            with opened:
                return state_as_json(opened.read(len(opened) - 1))
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
    if server.endpoint is None:
        raise TelemetryError("one answer is asked of a server's metrics", hint="kvtop --once --json http://HOST:PORT")
    reading = server.endpoint.scrape()
    if reading.total is None:
        raise TelemetryError(f"{server.endpoint.url}: {reading.state} ({reading.detail})")
    return json.dumps({"schema": SERVER_SCHEMA, "url": server.endpoint.url, **_reading(reading)}, ensure_ascii=False)


def _reading(reading: MetricsReading) -> dict[str, Any]:
    plain: dict[str, Any] = _plain(reading)
    return plain


def _plain(value: Any) -> Any:
    """A value as JSON knows it; what is not known stays null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
