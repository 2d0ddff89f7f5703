import json

import pytest

from kvengine.telemetry.event_sources import (
    Address,
    EventSource,
    endpoint_of_rank,
    live_address,
    parse_event_sources,
    replay_address,
)


def an_answer(**ranks: dict[str, object]) -> bytes:
    return json.dumps({name.removeprefix("r"): config for name, config in ranks.items()}).encode()


def test_the_sources_of_a_server_are_read_in_order_of_rank() -> None:
    answer = an_answer(
        r10={"endpoint": "tcp://*:5567", "replay_endpoint": None, "topic": ""},
        r2={"endpoint": "tcp://*:5559", "replay_endpoint": "tcp://*:6559", "topic": "kv", "publisher": "zmq"},
    )
    assert parse_event_sources(answer) == [
        EventSource(rank=2, endpoint="tcp://*:5559", replay_endpoint="tcp://*:6559", topic="kv"),
        EventSource(rank=10, endpoint="tcp://*:5567", replay_endpoint=None, topic=""),
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"detail":"Not Found"}',
        an_answer(r0={"endpoint": "tcp://*:5557", "enable_kv_cache_events": False}),
        an_answer(r0={"endpoint": "tcp://*:5557", "publisher": "null"}),
        an_answer(r0={"endpoint": 5557}),
        b"[" * 100_000,
    ],
)
def test_an_answer_without_sources_has_none(body: bytes) -> None:
    assert parse_event_sources(body) == []


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("tcp://*:5557", Address("tcp://gpu7:5557", bind=False)),
        ("tcp://[::]:5557", Address("tcp://gpu7:5557", bind=False)),
        # Bound to IPv4 loopback in IPv6 clothes.
        ("tcp://[::ffff:127.0.0.1]:18432", Address("tcp://127.0.0.1:18432", bind=False)),
        ("tcp://[::1]:5557", Address("tcp://[::1]:5557", bind=False)),
        ("ipc:///tmp/kv", Address("ipc:///tmp/kv", bind=False)),
        # The server connects to such an address, so the listener binds there.
        ("tcp://127.0.0.1:5557", Address("tcp://127.0.0.1:5557", bind=True)),
        ("inproc://cache", None),
    ],
)
def test_who_binds_an_endpoint_depends_on_its_form(endpoint: str, address: Address | None) -> None:
    assert live_address(endpoint, "gpu7") == address


def test_an_ipv6_server_is_put_in_brackets() -> None:
    assert live_address("tcp://*:5557", "fe80::1") == Address("tcp://[fe80::1]:5557", bind=False)


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("tcp://*:5558", "tcp://gpu7:5558"),
        ("tcp://0.0.0.0:5558", "tcp://gpu7:5558"),
        ("tcp://127.0.0.1:5558", "tcp://127.0.0.1:5558"),
        (None, None),
        ("", None),
    ],
)
def test_the_replay_socket_is_always_the_servers(endpoint: str | None, address: str | None) -> None:
    assert replay_address(endpoint, "gpu7") == address


def test_the_port_of_a_rank_is_the_rank_higher() -> None:
    assert endpoint_of_rank("tcp://*:5557", 3) == "tcp://*:5560"
    assert endpoint_of_rank("ipc:///tmp/kv", 3) == "ipc:///tmp/kv"
