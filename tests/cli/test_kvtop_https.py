"""A server behind TLS, with a bearer token: what is trusted, and what is never sent."""

import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kvtop.cli import main
from tests.foreign_servers import a_text, a_v1_text

OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="needs openssl to make certificates")


@dataclass
class SecureServer:
    """Its address, the certificate that vouches for it, and the tokens that it was sent."""

    url: str
    ca_file: Path
    tokens: list[str | None] = field(default_factory=list)


def make_certificates(folder: Path) -> None:
    """A certificate authority of a test's own, and a certificate for 127.0.0.1 that it signed."""

    def openssl(*arguments: str) -> None:
        subprocess.run([OPENSSL or "", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority", "-days", "2")
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=127.0.0.1")
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl(
        *("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
        *("-out", "server.pem", "-days", "2", "-extfile", "san"),
    )


@pytest.fixture
def secure(tmp_path) -> Iterator[SecureServer]:
    make_certificates(tmp_path)
    served = SecureServer(url="", ca_file=tmp_path / "ca.pem")

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.tokens.append(self.headers["Authorization"])
            allowed = self.headers["Authorization"] == "Bearer secret"
            self.send_response(200 if allowed else 401)
            self.end_headers()
            self.wfile.write(a_text(*a_v1_text(usage="0.42")) if allowed and self.path == "/metrics" else b"{}")

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that does not trust the certificate hangs up."""

    server = Quiet(("127.0.0.1", 0), Answers)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    served.url = f"https://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


def used_blocks(capsys) -> int:
    return json.loads(capsys.readouterr().out)["total"]["gauges"]["used_blocks"]


def test_a_certificate_of_the_given_authority_is_trusted_and_the_token_sent(secure, capsys, monkeypatch):
    monkeypatch.setenv("KVTOP_TOKEN", "secret")
    assert main([secure.url, "--once", "--ca-file", str(secure.ca_file)]) == 0
    assert used_blocks(capsys) == 42
    assert set(secure.tokens) == {"Bearer secret"}


def test_the_usual_variable_names_the_authority_as_well(secure, capsys, monkeypatch):
    monkeypatch.setenv("KVTOP_TOKEN", "secret")
    monkeypatch.setenv("SSL_CERT_FILE", str(secure.ca_file))
    assert main([secure.url, "--once"]) == 0
    assert used_blocks(capsys) == 42


def test_an_unknown_authority_is_refused_and_the_token_is_not_sent(secure, capsys, monkeypatch):
    monkeypatch.setenv("KVTOP_TOKEN", "secret")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert main([secure.url, "--once"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {secure.url}/metrics: unreachable (certificate not trusted: ")
    assert secure.tokens == []


def test_a_certificate_for_another_name_is_refused(secure, capsys, monkeypatch):
    monkeypatch.setenv("KVTOP_TOKEN", "secret")
    url = secure.url.replace("127.0.0.1", "localhost")
    assert main([url, "--once", "--ca-file", str(secure.ca_file)]) == 2
    assert "certificate not trusted: Hostname mismatch" in capsys.readouterr().err
    assert secure.tokens == []


def test_a_missing_token_is_said_to_be_missing(secure, capsys, monkeypatch):
    monkeypatch.delenv("KVTOP_TOKEN", raising=False)
    assert main([secure.url, "--once", "--ca-file", str(secure.ca_file)]) == 2
    assert "http-error (HTTP 401: a token is needed)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot be read (No such file"), ("hello", "no certificates in PEM form in it")]
)
def test_a_file_without_certificates_is_one_line(capsys, tmp_path, content, words):
    path = tmp_path / "own.pem"
    if content is not None:
        path.write_text(content)
    assert main(["https://127.0.0.1:9", "--once", "--ca-file", str(path)]) == 2
    assert f"error: {path}: {words}" in capsys.readouterr().err


def test_an_authority_is_for_https_only(capsys, tmp_path):
    assert main(["http://127.0.0.1:9", "--once", "--ca-file", str(tmp_path / "x.pem")]) == 2
    assert capsys.readouterr().err.startswith("error: ")
