"""Asks a server for its metrics over HTTP; every way in which that fails is a named state, never an exception."""

import http.client
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO

from kvengine.errors import ConfigError
from kvengine.telemetry.metrics import MetricsReading, MetricsState, read_metrics

MAX_BODY_BYTES = 32 * 2**20
"""A text of 64 ranks has 2 MiB."""
_CHUNK_BYTES = 2**16
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class _Answer:
    body: bytes
    truncated: bool


class MetricsEndpoint:
    """One server's HTTP address.

    Args:
        url: `http://HOST:PORT`, with the path of the metrics where it is not `/metrics`.
        token: Bearer token; it is sent to this host alone, never on to where a redirect points.
        timeout_s: For connecting, and for the whole answer; a server that drips bytes can take twice that.
        ca_file: Certificates (PEM) to trust for https; None for the system's, or those of `SSL_CERT_FILE`.

    Raises:
        ConfigError: The URL is not one of a web server, or the file holds no certificate.
    """

    def __init__(
        self, url: str, *, token: str | None = None, timeout_s: float = 2.0, ca_file: Path | None = None
    ) -> None:
        self.url = _metrics_url(url)
        self.timeout_s = timeout_s
        self._token = token
        handlers: list[urllib.request.BaseHandler] = [_SameHostRedirects()]
        if self.host in _LOOPBACK:
            handlers.append(urllib.request.ProxyHandler({}))
        if ca_file is not None:
            handlers.append(urllib.request.HTTPSHandler(context=_trusting(ca_file)))
        self._opener = urllib.request.build_opener(*handlers)

    @property
    def host(self) -> str:
        """Host part of the address."""
        return urllib.parse.urlsplit(self.url).hostname or ""

    def scrape(self) -> MetricsReading:
        """Ask for the metrics and read them."""
        answer = self._get(self.url)
        if isinstance(answer, MetricsReading):
            return answer
        return read_metrics(answer.body, truncated=answer.truncated)

    def get(self, path: str) -> bytes | None:
        """The body of another answer of the server, such as `/version`; None if there is none."""
        answer = self._get(urllib.parse.urljoin(self.url, path))
        return None if isinstance(answer, MetricsReading) or answer.truncated else answer.body

    def _get(self, url: str) -> "_Answer | MetricsReading":
        request = urllib.request.Request(url, headers={"Accept": "text/plain, */*;q=0.5"})
        if self._token:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        deadline_s = time.monotonic() + self.timeout_s
        try:
            with self._opener.open(request, timeout=self.timeout_s) as response:
                return _read(response, deadline_s, self.timeout_s)
        except urllib.error.HTTPError as error:
            with error:
                return _failed(MetricsState.HTTP_ERROR, _http_detail(error.code))
        except urllib.error.URLError as error:
            return _no_answer(error.reason, self.timeout_s)
        except (OSError, http.client.HTTPException) as error:
            return _no_answer(error, self.timeout_s)


class _SameHostRedirects(urllib.request.HTTPRedirectHandler):
    """Follows `/metrics` to `/metrics/` with the token, and sends the token nowhere else."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        request = super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
        token = req.unredirected_hdrs.get("Authorization")
        if request is not None and token and _origin(newurl) == _origin(req.full_url):
            request.add_unredirected_header("Authorization", token)
        return request


def _trusting(ca_file: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except ssl.SSLError as error:
        raise ConfigError(f"{ca_file}: no certificates in PEM form in it") from error
    except OSError as error:
        raise ConfigError(f"{ca_file}: cannot be read ({error.strerror})") from error


def _metrics_url(url: str) -> str:
    try:
        parts = urllib.parse.urlsplit(url)
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_web = False
    if not is_web or any(character.isspace() or not character.isprintable() for character in url):
        raise ConfigError(f"expected an address such as http://127.0.0.1:8000, got {url!r}")
    return url if parts.path not in ("", "/") else urllib.parse.urlunsplit(parts._replace(path="/metrics"))


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _read(response: http.client.HTTPResponse, deadline_s: float, timeout_s: float) -> _Answer | MetricsReading:
    """Read a body as far as it comes, in time and size."""
    chunks: list[bytes] = []
    num_bytes = 0
    try:
        while chunk := response.read1(_CHUNK_BYTES):
            chunks.append(chunk)
            num_bytes += len(chunk)
            if time.monotonic() > deadline_s:
                return _failed(MetricsState.TIMED_OUT, f"no whole answer in {timeout_s:g} s")
            if num_bytes > MAX_BODY_BYTES:
                return _failed(MetricsState.NOT_METRICS, f"the answer is larger than {MAX_BODY_BYTES // 2**20} MiB")
    except http.client.IncompleteRead:
        return _Answer(b"".join(chunks), truncated=True)
    length = response.headers.get("Content-Length", "")
    return _Answer(b"".join(chunks), truncated=length.isdecimal() and num_bytes < int(length))


def _no_answer(reason: object, timeout_s: float) -> MetricsReading:
    if isinstance(reason, TimeoutError):
        return _failed(MetricsState.TIMED_OUT, f"no answer in {timeout_s:g} s")
    if isinstance(reason, ConnectionRefusedError):
        return _failed(MetricsState.UNREACHABLE, "connection refused")
    if isinstance(reason, ssl.SSLCertVerificationError):
        return _failed(MetricsState.UNREACHABLE, f"certificate not trusted: {reason.verify_message}")
    if isinstance(reason, http.client.HTTPException):
        return _failed(MetricsState.UNREACHABLE, "what answers does not speak HTTP")
    if isinstance(reason, OSError) and reason.strerror:
        return _failed(MetricsState.UNREACHABLE, reason.strerror.lower())
    return _failed(MetricsState.UNREACHABLE, str(reason))


def _http_detail(status: int) -> str:
    hints = {
        401: ": a token is needed",
        403: ": the token is refused",
        404: ": no metrics here; SGLang needs --enable-metrics",
    }
    return f"HTTP {status}{hints.get(status, '')}"


def _failed(state: MetricsState, detail: str) -> MetricsReading:
    return MetricsReading(state=state, detail=detail)
