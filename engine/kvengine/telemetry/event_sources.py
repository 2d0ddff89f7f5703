"""Where a server publishes its KV-cache events, and how to reach the place from here.

vLLM answers `GET /kv_event_sources` with its resolved configuration by data-parallel rank. It binds an endpoint that
has `*` or `::` in it, or is ipc or inproc, and connects to any other, so that then the listener must bind. The replay
socket always binds.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

_TCP = re.compile(r"tcp://(?P<host>.+):(?P<port>[0-9]{1,5})", re.ASCII)
_ANY_HOST = ("*", "[::]", "0.0.0.0")
_MAPPED = re.compile(r"\[::ffff:(?P<address>[0-9.]+)\]", re.ASCII | re.IGNORECASE)


class Address(NamedTuple):
    """Where to point a socket."""

    address: str
    bind: bool
    """The server connects, so the listener binds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSource:
    """The publisher of one data-parallel rank."""

    rank: int
    endpoint: str
    replay_endpoint: str | None
    topic: str


def parse_event_sources(body: bytes) -> list[EventSource]:
    """Read the answer of `/kv_event_sources`, in order of rank; empty for any other answer, or if events are off."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return []
    if not isinstance(answer, dict):
        return []
    sources = [_source(rank, config) for rank, config in answer.items()]
    return sorted((source for source in sources if source is not None), key=lambda source: source.rank)


def live_address(endpoint: str, server_host: str) -> Address | None:
    """Where the live messages can be had.

    Args:
        endpoint: As the server was given it, such as `tcp://*:5557`.
        server_host: Host under which the server is reached from here.

    Returns:
        None for an endpoint that no other process can reach.
    """
    if endpoint.startswith("inproc://"):
        return None
    server_binds = "*" in endpoint or "::" in endpoint or endpoint.startswith("ipc://")
    return Address(_reachable(endpoint, server_host), bind=False) if server_binds else Address(endpoint, bind=True)


def replay_address(endpoint: str | None, server_host: str) -> str | None:
    """Where replays can be asked for; None without such a socket."""
    if not endpoint or endpoint.startswith("inproc://"):
        return None
    return _reachable(endpoint, server_host)


def endpoint_of_rank(endpoint: str, rank: int) -> str:
    """The endpoint of another data-parallel rank: vLLM adds the rank to a TCP port."""
    match = _TCP.fullmatch(endpoint)
    return f"tcp://{match['host']}:{int(match['port']) + rank}" if match else endpoint


def _reachable(endpoint: str, server_host: str) -> str:
    match = _TCP.fullmatch(endpoint)
    if match is None:
        return endpoint
    host = match["host"]
    if host in _ANY_HOST:
        host = f"[{server_host}]" if ":" in server_host and not server_host.startswith("[") else server_host
    elif mapped := _MAPPED.fullmatch(host):
        # The server binds to an IPv4 address in IPv6 clothes, which is the way to make vLLM bind to it alone.
        host = mapped["address"]
    return f"tcp://{host}:{match['port']}"


def _source(rank: object, config: object) -> EventSource | None:
    if not isinstance(config, Mapping) or not isinstance(rank, str) or not re.fullmatch("[0-9]{1,9}", rank, re.ASCII):
        return None
    endpoint, replay, topic = (config.get(name) for name in ("endpoint", "replay_endpoint", "topic"))
    is_on = config.get("enable_kv_cache_events") is not False and config.get("publisher") != "null"
    if not is_on or not isinstance(endpoint, str) or not endpoint:
        return None
    return EventSource(
        rank=int(rank),
        endpoint=endpoint,
        replay_endpoint=replay if isinstance(replay, str) and replay else None,
        topic=topic if isinstance(topic, str) else "",
    )
