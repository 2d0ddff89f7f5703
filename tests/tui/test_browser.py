"""`kvtop --serve` in a real browser, and what it refuses."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvtop.palette import DARK_VARIABLES
from tests.chromium import Page, a_page, find_chromium
from tests.watched_engine import record_a_run

aiohttp = pytest.importorskip("aiohttp", reason="needs textual-serve (pagedkv[browser])")
pytest.importorskip("textual_serve", reason="needs textual-serve (pagedkv[browser])")

PATIENCE_S = 40.0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of a served recording."""
    run_file = tmp_path / "run.kvrec"
    record_a_run(run_file)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "kvtop", str(run_file), "--at", "#3", "--serve", "--port", str(port)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert server.stderr is not None
        assert server.stderr.readline() == f"kvtop is at http://127.0.0.1:{port}; ctrl+c ends it\n"
        wait_until_it_listens(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 0
        server.stderr.close()


def wait_until_it_listens(port: int) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            assert time.monotonic() < give_up_s
            time.sleep(0.05)


async def until(page: Page, expression: str) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not await page.evaluate(expression):
        assert time.monotonic() < give_up_s, f"never: {expression}"
        await asyncio.sleep(0.2)


async def num_pixels(page: Page, colour: str) -> int:
    wanted = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
    return int(((await page.pixels()) == wanted).all(axis=2).sum())


async def test_a_browser_shows_the_view_and_its_keys_work(served, tmp_path):
    program = find_chromium()
    if program is None:
        pytest.skip("needs Chromium, which is not installed")
    async with a_page(program, served, tmp_path / "profile") as page:
        await until(page, "document.body.classList.contains('-first-byte')")
        give_up_s = time.monotonic() + PATIENCE_S
        # Used blocks are drawn in their own colour, and nothing else as much.
        while await num_pixels(page, DARK_VARIABLES["kv-used"]) < 200:
            assert time.monotonic() < give_up_s, "the map never appeared"
            await asyncio.sleep(0.3)
        sources = "[...document.querySelectorAll('[src],[href]')].map(e => e.src || e.href)"
        addresses = await page.evaluate(f"{sources}.filter(a => /^(https?|wss?):/.test(a)).join(' ')")
        assert {address.startswith(f"{served}/") for address in addresses.split()} == {True}
        await page.evaluate("document.querySelector('.xterm-helper-textarea').focus()")
        await page.press("q")
        await until(page, "document.body.classList.contains('-closed')")


async def test_a_page_of_another_server_cannot_open_a_session(served):
    async with aiohttp.ClientSession() as session:
        for headers in ({}, {"Origin": "http://example.invalid"}, {"Origin": "null"}):
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await session.ws_connect(f"{served}/ws", headers=headers)


async def test_nobody_but_this_machine_can_reach_it(served):
    port = served.rpartition(":")[2]
    listening = Path("/proc/net/tcp").read_text().splitlines()
    ours = [line.split()[1] for line in listening if f":{int(port):04X} " in line and line.split()[3] == "0A"]
    assert ours == [f"0100007F:{int(port):04X}"]  # 127.0.0.1, in the byte order of the kernel's table


def test_what_cannot_be_opened_is_not_served(capsys):
    from kvtop.cli import main

    assert main(["nope.kvrec", "--serve"]) == 2
    assert capsys.readouterr().err.startswith("error: nope.kvrec: No such file")
