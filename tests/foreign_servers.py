"""What servers of other engines publish, made by hand: metrics texts, event messages, and a server that misbehaves."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec


def a_text(*lines: str) -> bytes:
    """A metrics text of whole lines."""
    return "".join(f"{line}\n" for line in lines).encode()


def by_family(lines: list[str]) -> list[str]:
    """Sample lines in the order of the format: all series of a metric together, behind a TYPE line."""
    families: dict[str, list[str]] = {}
    for line in lines:
        if not line.startswith("#"):
            families.setdefault(line.split("{")[0].split(" ")[0], []).append(line)
    return [line for name, group in families.items() for line in (f"# TYPE {name} untyped", *group)]


def a_v1_text(*, engine: str = "0", usage: str = "0.5", new_names: bool = True, num_blocks: str = "101") -> list[str]:
    """An engine of vLLM V1 in the names of 0.12, or of 0.8.5: pool of 101 blocks of 16."""
    labels = f'{{engine="{engine}",model_name="m"}}'
    usage_name = "kv_cache_usage_perc" if new_names else "gpu_cache_usage_perc"
    lines = [
        f"vllm:num_requests_running{labels} 3",
        f"vllm:num_requests_waiting{labels} 1",
        f"vllm:{usage_name}{labels} {usage}",
        f"vllm:prompt_tokens_total{labels} 1000",
        f"vllm:generation_tokens_total{labels} 200",
        f"vllm:num_preemptions_total{labels} 7",
    ]
    if new_names:
        lines.append("# TYPE vllm:inter_token_latency_seconds histogram")
    config_engine = f'engine="{engine}",' if new_names else ""
    config = f'block_size="16",{config_engine}num_gpu_blocks="{num_blocks}",num_gpu_blocks_override="None"'
    return [*lines, f"vllm:cache_config_info{{{config}}} 1"]


def a_histogram(name: str, labels: str, up_to: dict[str, float], total: float) -> list[str]:
    """The lines of a histogram: counts at or below each bound."""
    buckets = [f'{name}_bucket{{{labels},le="{bound}"}} {count}' for bound, count in up_to.items()]
    return [
        f"# TYPE {name} histogram",
        *buckets,
        f"{name}_count{{{labels}}} {up_to['+Inf']}",
        f"{name}_sum{{{labels}}} {total}",
    ]


def stored(hashes: list[Any], parent: Any = None, *, block_size: int = 4, **fields: Any) -> dict[str, Any]:
    """A BlockStored event as a map; its tokens count up from 0."""
    tokens = list(range(block_size * len(hashes)))
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens}
    return event | {"block_size": block_size, "lora_id": None, "medium": "GPU"} | fields


def removed(hashes: list[Any], **fields: Any) -> dict[str, Any]:
    """A BlockRemoved event as a map."""
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"} | fields


CLEARED = {"type": "AllBlocksCleared"}


def a_payload(*events: Any, unix_s: float = 1000.0, rank: int | None = 0) -> bytes:
    """The MessagePack payload of a batch."""
    return msgspec.msgpack.encode([unix_s, list(events), rank])


def a_message(seq: int, *events: Any, rank: int | None = 0, unix_s: float = 1000.0) -> list[bytes]:
    """The three frames of a live message."""
    return [b"kv-events", seq.to_bytes(8, "big"), a_payload(*events, rank=rank, unix_s=unix_s)]


def a_replayed(message: list[bytes]) -> list[bytes]:
    """A live message as a DEALER gets it again."""
    return [b"", *message]


REPLAY_END = [b"", b"", b"\xff" * 8, b""]


@contextmanager
def a_web_server(answers: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A web server on a free loopback port; gives its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), answers)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
