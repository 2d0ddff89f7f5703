"""What a TARGET on the command line stands for, and opening it."""

import os
import stat
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kvengine.errors import ConfigError, DeviceError, TelemetryError
from kvengine.telemetry.engine_list import EngineList, RunningEngine
from kvengine.telemetry.reader import Attachment
from kvengine.telemetry.recording import Recording
from kvtop.places import Place

if TYPE_CHECKING:
    from kvengine.telemetry.scraper import MetricsEndpoint
    from kvtop.sources.base import Source

TOKEN_VARIABLE = "KVTOP_TOKEN"
"""Environment variable with the bearer token for servers; an argument would be seen by every user of the machine."""
NOTHING_RUNS_HINT = "start one with `kvplan run PROFILE`, open a recording with `kvtop FILE`, or try `kvtop --demo`"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsWanted:
    """Which KV events to listen to; without addresses the server is asked where its own are."""

    live: str | None = None
    """Address of the first rank's live messages; further ranks have the next ports."""
    replay: str | None = None
    is_off: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server of another engine."""

    endpoint: "MetricsEndpoint | None"
    """Where its metrics are; None where only events are followed."""
    events: EventsWanted = field(default_factory=EventsWanted)


Opened = Recording | Attachment | Server


def open_target(
    target: str, *, partial: bool = False, events: EventsWanted | None = None, ca_file: Path | None = None
) -> Opened:
    """Open a recording, a running engine's socket, or a server's address.

    Args:
        target: As it was typed.
        partial: Accept a recording that was cut off.
        events: For a server; None to ask it where its own are.
        ca_file: Certificates to trust for https.

    Raises:
        ConfigError: It is no address of a web server, or the token would go over the network in the clear.
        TelemetryError: It is none of these, or cannot be read.
    """
    events = events if events is not None else EventsWanted()
    if "://" in target:
        return Server(endpoint=_endpoint(target, ca_file), events=events)
    if ca_file is not None:
        raise ConfigError(f"{target}: --ca-file is for https:// addresses, and this is none")
    if events.live is not None or events.is_off:
        raise ConfigError(f"{target}: KV events are of servers, and this is none", hint="kvtop http://HOST:PORT")
    path = Path(target)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise TelemetryError(f"{path}: {error.strerror}", hint=NOTHING_RUNS_HINT) from error
    if stat.S_ISSOCK(mode):
        return Attachment.open(path)
    if not stat.S_ISREG(mode):
        raise TelemetryError(f"{path}: neither a recording nor a socket")
    return Recording.open(path, partial=partial)


def running_engines(engines: EngineList) -> list[RunningEngine]:
    """The engines of this user on this machine.

    Raises:
        TelemetryError: There is none.
    """
    running = engines.look()
    if not running:
        raise TelemetryError("no engine is running on this machine", hint=NOTHING_RUNS_HINT)
    return running


def source_of(opened: Opened | None, *, engines: EngineList | None = None, at: Place | None = None) -> "Source":
    """What reads it, for the view.

    Args:
        opened: None to wait for an engine.
        engines: Where engines are looked for that follow on an engine; None to stay with its socket.
        at: Where to stand in a recording; None to play it.
    """
    match opened:
        case Recording():
            from kvtop.sources.recording import RecordingSource

            return RecordingSource(opened, start=None if at is None else at.position_in(opened))
        case Server():
            from kvtop.sources.server import ServerSource

            return ServerSource(opened)
        case _:
            from kvtop.following import FollowEngines, FollowSocket
            from kvtop.sources.live import LiveSource

            if engines is not None:
                return LiveSource(opened, following=FollowEngines(engines))
            assert opened is not None, "without a list of engines there is one"
            return LiveSource(opened, following=FollowSocket(opened.path))


def check_events(events: EventsWanted) -> None:
    """Make sure that what was asked for of events can be.

    Raises:
        ConfigError: The wishes exclude each other, or an address is none.
        DeviceError: pyzmq is not installed.
    """
    if events.is_off and events.live is not None:
        raise ConfigError("--kv-events and --no-kv-events exclude each other")
    if events.replay is not None and events.live is None:
        raise ConfigError("--kv-events-replay goes with --kv-events, the address of the live events")
    for option, address in (("--kv-events", events.live), ("--kv-events-replay", events.replay)):
        if address is not None and not address.startswith(("tcp://", "ipc://")):
            raise ConfigError(f"{option}: expected an address such as tcp://127.0.0.1:5557, got {address!r}")
    if events.live is not None and find_spec("zmq") is None:
        raise DeviceError(
            "listening to KV events needs pyzmq, which is not installed", hint="pip install 'pagedkv[events]'"
        )


def _endpoint(url: str, ca_file: Path | None) -> "MetricsEndpoint":
    from kvengine.telemetry.scraper import MetricsEndpoint  # with ssl, 40 ms that other targets do not need

    token = os.environ.get(TOKEN_VARIABLE) or None
    endpoint = MetricsEndpoint(url, token=token, ca_file=ca_file)
    scheme = urlsplit(url).scheme
    if ca_file is not None and scheme != "https":
        raise ConfigError(f"{url}: --ca-file is for https:// addresses, and this is none")
    if token is not None and scheme == "http" and endpoint.host not in LOOPBACK:
        raise ConfigError(
            f"{url}: {TOKEN_VARIABLE} would be sent over the network in the clear",
            hint=f"use https://, or unset {TOKEN_VARIABLE} for this server",
        )
    return endpoint
