"""A small real server over HTTP: our engine without a model, behind vLLM's streaming completions and metrics.

python -m tests.small_server --port 8000 --block-size 16 --num-blocks 100
"""

import argparse
import json
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kvengine.clock import RealClock
from kvengine.config import EngineConfig, SchedulerConfig
from kvengine.engine import Engine
from kvengine.errors import KVError
from kvengine.request import Request, RequestId, SamplingParams
from kvengine.runner import SyntheticRunner
from tests.builders import a_kv_cache_spec

END = object()
SAMPLING_KEYS = (
    *("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)


class EngineThread:
    """Steps an engine while it has requests, and hands out tokens to whoever waits for them."""

    def __init__(self, *, block_size: int, num_blocks: int, step_s: float) -> None:
        self.config = EngineConfig(
            kv_cache=a_kv_cache_spec(block_size=block_size),
            num_blocks=num_blocks,
            scheduler=SchedulerConfig(max_model_len=4096, max_num_seqs=8),
        )
        self.engine = Engine(self.config, SyntheticRunner(), clock=RealClock(), debug=True)
        self.used = self.running = self.waiting = 0
        self._step_s = step_s
        self._lock = threading.Lock()
        self._streams: dict[RequestId, tuple[Request, queue.Queue[Any]]] = {}
        self.asked: list[SamplingParams] = []
        self._count = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def ask(self, prompt: list[int], sampling: SamplingParams) -> tuple[RequestId, "queue.Queue[Any]"]:
        tokens: queue.Queue[Any] = queue.Queue()
        with self._lock:
            self._count += 1
            request = Request(RequestId(f"r{self._count}"), prompt, sampling)
            self.asked.append(sampling)
            self.engine.add_request(request)
            self._streams[request.request_id] = (request, tokens)
        return request.request_id, tokens

    def cancel(self, request_id: RequestId) -> None:
        with self._lock:
            self.engine.abort(request_id)
            self._streams.pop(request_id, None)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            with self._lock:
                if self.engine.has_unfinished:
                    self._step()
            time.sleep(self._step_s)

    def _step(self) -> None:
        result = self.engine.step()
        self.used, self.running, self.waiting = result.num_used_blocks, result.num_running, result.num_waiting
        for request_id in result.sampled:
            request, tokens = self._streams[request_id]
            tokens.put(request.all_token_ids[-1])
        for request in result.finished:
            self._streams.pop(request.request_id)[1].put(END)

    def metrics(self) -> str:
        stats, labels = self.engine.stats, '{engine="0",model_name="small"}'
        usable = self.config.num_blocks - 1
        config = f'block_size="{self.config.block_size}",engine="0",num_gpu_blocks="{self.config.num_blocks}"'
        values = {
            "num_requests_running": self.running,
            "num_requests_waiting": self.waiting,
            "kv_cache_usage_perc": self.used / usable,
            "prompt_tokens_total": stats.prompt_tokens,
            "generation_tokens_total": stats.output_tokens,
            "num_preemptions_total": stats.preemptions,
            "prefix_cache_queries_total": stats.admitted_prompt_tokens,
            "prefix_cache_hits_total": stats.first_prefix_hit_tokens,
        }
        lines = [f"# TYPE vllm:{name} untyped\nvllm:{name}{labels} {value}" for name, value in values.items()]
        lines.append(f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{config}}} 1")
        lines.append("# TYPE vllm:inter_token_latency_seconds histogram")
        return "\n".join(lines) + "\n"


class Handler(BaseHTTPRequestHandler):
    """The four paths that a measurement needs."""

    engine: EngineThread
    tells_tokens = True
    protocol_version = "HTTP/1.0"  # an answer ends with its connection, so a stream needs no chunks

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        body = {
            "/health": "",
            "/v1/models": json.dumps({"data": [{"id": "small"}]}),
            "/metrics": self.engine.metrics(),
        }.get(self.path)
        self._answer(404 if body is None else 200, body or "")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["model"] != "small":
            self._answer(404, json.dumps({"error": {"message": f"no model {asked['model']}"}}))
            return
        try:
            sampling = SamplingParams(**{key: asked[key] for key in SAMPLING_KEYS if key in asked})
            request_id, tokens = self.engine.ask(asked["prompt"], sampling)
        except KVError as error:
            self._answer(400, json.dumps({"error": {"message": error.message}}))
            return
        try:
            self._stream(tokens)
        except (BrokenPipeError, ConnectionResetError):
            self.engine.cancel(request_id)

    def _stream(self, tokens: "queue.Queue[Any]") -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        while (token := tokens.get()) is not END:
            choice = {"text": f" {token}", **({"token_ids": [token]} if self.tells_tokens else {})}
            self._event(json.dumps({"choices": [choice]}))
        self._event("[DONE]")

    def _event(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()

    def _answer(self, code: int, body: str) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


@contextmanager
def small_server(
    *, block_size: int = 4, num_blocks: int = 100, step_s: float = 0.001, port: int = 0, tells_tokens: bool = True
) -> Iterator[tuple[str, EngineThread]]:
    """Serve on a thread; gives the address and the engine behind it."""
    engine = EngineThread(block_size=block_size, num_blocks=num_blocks, step_s=step_s)
    handler = type("Bound", (Handler,), {"engine": engine, "tells_tokens": tells_tokens})
    server = _Server(("127.0.0.1", port), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", engine
    finally:
        server.shutdown()
        server.server_close()
        engine.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    for option in ("port", "block-size", "num-blocks"):
        parser.add_argument(f"--{option}", type=int, required=True)
    options = parser.parse_args()
    print("the small server starts", flush=True)  # noqa: T201
    with small_server(block_size=options.block_size, num_blocks=options.num_blocks, port=options.port):
        threading.Event().wait()


if __name__ == "__main__":
    main()
