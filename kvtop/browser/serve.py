"""Serves the view to browsers on this machine: each page runs a kvtop of its own.

Only the loopback address is listened on, and only pages of this very server may open a session: else any web page that
is open in the same browser could read the view, and press keys in it.
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web
from textual_serve.server import Server

HOST = "127.0.0.1"


def serve(arguments: Sequence[str], port: int) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        arguments: The command line of the kvtop of each page.
        port: Where to listen.

    Raises:
        OSError: The port is taken.
    """
    ViewServer(shlex.join([sys.executable, "-m", "kvtop", *arguments]), port).serve()


class ViewServer(Server):
    """The server of `textual-serve`, with a page that loads nothing from elsewhere.

    Args:
        command: What each page runs.
        port: Where to listen.
    """

    def __init__(self, command: str, port: int) -> None:
        super().__init__(
            command,
            host=HOST,
            port=port,
            title="kvtop",
            public_url=f"http://{HOST}:{port}",
            templates_path=Path(__file__).parent,
        )

    def initialize_logging(self) -> None:
        """Nothing is logged: what goes wrong is seen in the page."""

    async def on_startup(self, app: web.Application) -> None:  # noqa: ARG002
        """Say where the view is."""
        sys.stderr.write(f"kvtop is at {self.public_url}; ctrl+c ends it\n")
        sys.stderr.flush()

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Let only the server's own page open a session."""
        if request.headers.get("Origin") != self.public_url:
            raise web.HTTPForbidden(text="only the page of this server may open a session")
        return await super().handle_websocket(request)
