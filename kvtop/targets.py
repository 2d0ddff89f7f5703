"""What a TARGET on the command line stands for, and opening it."""

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kvengine.errors import ConfigError, TelemetryError
from kvengine.telemetry.reader import Attachment, RunningEngine, discover
from kvengine.telemetry.recording import Recording

if TYPE_CHECKING:
    from kvengine.telemetry.scraper import MetricsEndpoint

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


def open_target(target: str, *, partial: bool, events: EventsWanted) -> Opened:
    """Open a recording, a running engine's socket, or a server's address.

    Args:
        target: As it was typed.
        partial: Accept a recording that was cut off.
        events: For a server.

    Raises:
        ConfigError: It is no address of a web server, or the token would go over the network in the clear.
        TelemetryError: It is none of these, or cannot be read.
    """
    if "://" in target:
        return Server(endpoint=_endpoint(target), events=events)
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


def running_engines() -> list[RunningEngine]:
    """The engines of this user on this machine.

    Raises:
        TelemetryError: There is none.
    """
    engines = discover()
    if not engines:
        raise TelemetryError("no engine is running on this machine", hint=NOTHING_RUNS_HINT)
    return engines


def _endpoint(url: str) -> "MetricsEndpoint":
    from kvengine.telemetry.scraper import MetricsEndpoint  # with ssl, 40 ms that other targets do not need

    token = os.environ.get(TOKEN_VARIABLE) or None
    endpoint = MetricsEndpoint(url, token=token)
    if token is not None and urlsplit(url).scheme == "http" and endpoint.host not in LOOPBACK:
        raise ConfigError(
            f"{url}: {TOKEN_VARIABLE} would be sent over the network in the clear",
            hint=f"use https://, or unset {TOKEN_VARIABLE} for this server",
        )
    return endpoint
