import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from kvengine.errors import ConfigError
from kvengine.telemetry.metrics import MetricsState
from kvengine.telemetry.scraper import MetricsEndpoint
from tests.foreign_servers import a_text, a_web_server

TEXT = a_text('vllm:num_requests_running{engine="0"} 3')


class Server(BaseHTTPRequestHandler):
    """Answers each path in its own way, and says which token it got."""

    enough = threading.Event()

    def do_GET(self) -> None:
        match self.path:
            case "/metrics" | "/metrics/":
                self.answer(200, TEXT)
            case "/moved":
                self.redirect("/metrics/")
            case "/elsewhere":
                self.redirect(f"http://localhost:{self.server.server_address[1]}/token")  # type: ignore[misc]
            case "/token":
                self.answer(200, a_text(f'sglang:num_running_reqs{{model_name="{self.headers["Authorization"]}"}} 1'))
            case "/short":
                self.answer(200, TEXT + b"vllm:num_requests_waiting", length=10_000)
            case "/html":
                self.answer(200, b"<html></html>")
            case "/error":
                self.answer(500, b"vllm:num_requests_running 1\n")
            case "/silent":
                self.enough.wait(5)
            case "/drip":
                self.drip()
            case _:
                self.answer(404, b"{}")

    def answer(self, status: int, body: bytes, *, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def redirect(self, where: str) -> None:
        self.send_response(307)
        self.send_header("Location", where)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def drip(self) -> None:
        """A byte now and then, so that no single wait is long."""
        self.send_response(200)
        self.end_headers()
        for _ in range(100):
            self.wfile.write(b"#")
            if self.enough.wait(0.05):
                return

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Server.enough.clear()
    with a_web_server(Server) as address:
        yield address
        Server.enough.set()


def answer_of(url: str, *, token: str | None = None, timeout_s: float = 5.0) -> tuple[MetricsState, str]:
    reading = MetricsEndpoint(url, token=token, timeout_s=timeout_s).scrape()
    return reading.state, reading.detail


@pytest.mark.parametrize("path", ["", "/", "/metrics", "/moved"])
def test_a_server_is_asked_at_metrics_and_redirects_are_followed(server: str, path: str) -> None:
    assert answer_of(server + path) == (MetricsState.OK, "")


def test_a_body_shorter_than_announced_is_partial(server: str) -> None:
    reading = MetricsEndpoint(f"{server}/short").scrape()
    assert (reading.state, reading.engines[0].gauges.running) == (MetricsState.PARTIAL, 3)


@pytest.mark.parametrize(
    ("path", "state", "detail"),
    [
        ("/html", MetricsState.NOT_METRICS, "the answer is an HTML page"),
        ("/error", MetricsState.HTTP_ERROR, "HTTP 500"),
        ("/nothing", MetricsState.HTTP_ERROR, "HTTP 404: no metrics here; SGLang needs --enable-metrics"),
    ],
)
def test_a_useless_answer_is_a_named_state(server: str, path: str, state: MetricsState, detail: str) -> None:
    assert answer_of(server + path) == (state, detail)


@pytest.mark.parametrize("path", ["/silent", "/drip"])
def test_a_slow_answer_is_not_waited_for(server: str, path: str) -> None:
    state, _ = answer_of(server + path, timeout_s=0.2)
    assert state is MetricsState.TIMED_OUT
    Server.enough.set()


def test_nobody_at_the_port_is_unreachable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    assert answer_of(f"http://127.0.0.1:{port}") == (MetricsState.UNREACHABLE, "connection refused")


@contextmanager
def a_port_that_says(what: bytes) -> Iterator[str]:
    """A port whose server answers one connection with bytes of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(what)

        thread = threading.Thread(target=speak)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize("what", [b"\x00\xff\x17binary\n\n", b""])
def test_something_that_speaks_no_http_is_unreachable(what: bytes) -> None:
    with a_port_that_says(what) as url:
        assert answer_of(url) == (MetricsState.UNREACHABLE, "what answers does not speak HTTP")


def test_a_chunked_body_that_breaks_off_is_partial() -> None:
    body = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"%x\r\n" % len(TEXT) + TEXT + b"\r\n5\r\nab"
    with a_port_that_says(body) as url:
        assert answer_of(url)[0] is MetricsState.PARTIAL


def test_the_token_goes_to_the_server_and_not_where_it_redirects(server: str) -> None:
    assert MetricsEndpoint(f"{server}/token", token="secret").scrape().engines[0].model == "Bearer secret"
    assert MetricsEndpoint(f"{server}/elsewhere", token="secret").scrape().engines[0].model == "None"


def test_other_answers_of_the_server_can_be_had(server: str) -> None:
    endpoint = MetricsEndpoint(server)
    assert (endpoint.get("/html"), endpoint.get("/nothing")) == (b"<html></html>", None)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "127.0.0.1:8000", "http://", "http://host:port", "http://a b", "http://[::1", ""]
)
def test_what_is_no_web_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="expected an address such as"):
        MetricsEndpoint(url)
