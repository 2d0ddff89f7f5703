"""A headless Chromium, driven over its DevTools protocol."""

import asyncio
import base64
import os
import re
import shutil
import struct
import subprocess
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
"""[row, column, red green blue]."""


QUIET_FLAGS = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic")
"""A browser that is tested asks nobody outside for anything."""


def keeping_to(folder: Path) -> dict[str, str]:
    """An environment in which the browser leaves files in one folder only."""
    return {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}


def find_chromium() -> str | None:
    """The program, where it is installed."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """One tab."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._number = 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        await self._connection.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            message = await self._connection.receive_json(timeout=30)
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]

    async def evaluate(self, expression: str) -> Any:
        return (await self.call("Runtime.evaluate", expression=expression))["result"].get("value")

    async def press(self, key: str) -> None:
        await self.call("Input.insertText", text=key)

    async def pixels(self) -> Pixels:
        return decode_png(base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"]))


@asynccontextmanager
async def a_page(program: str, url: str, profile: Path) -> AsyncIterator[Page]:
    """A tab that has begun to load an address."""
    import aiohttp

    browser = subprocess.Popen(
        [
            *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", *QUIET_FLAGS),
            *(f"--user-data-dir={profile}", "--window-size=1400,900", "about:blank"),
        ],
        env=keeping_to(profile),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert browser.stderr is not None
        port = await asyncio.wait_for(asyncio.to_thread(_devtools_port, browser.stderr), 30)
        async with aiohttp.ClientSession() as session:
            tabs = await (await session.get(f"http://127.0.0.1:{port}/json")).json()
            address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
            async with session.ws_connect(address, max_msg_size=0) as connection:
                page = Page(connection)
                await page.call("Page.navigate", url=url)
                yield page
    finally:
        browser.terminate()
        browser.wait(20)
        browser.stderr.close()


def _devtools_port(errors: Any) -> int:
    for line in errors:
        if found := re.search(r"ws://127\.0\.0\.1:(\d+)/", line):
            return int(found[1])
    raise AssertionError("Chromium ended before it listened")


def decode_png(data: bytes) -> Pixels:
    """The pixels of an eight-bit picture in true colour that is not interlaced."""
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", data[16:29])
    num_channels = {2: 3, 6: 4}[colour]
    assert (depth, interlaced) == (8, 0)
    packed, offset = b"", 8
    while offset < len(data):
        (length,) = struct.unpack(">I", data[offset : offset + 4])
        if data[offset + 4 : offset + 8] == b"IDAT":
            packed += data[offset + 8 : offset + 8 + length]
        offset += 12 + length
    raw = np.frombuffer(zlib.decompress(packed), dtype=np.uint8).reshape(height, 1 + width * num_channels)
    before = np.zeros(width * num_channels, dtype=np.uint8)
    rows = []
    for kind, line in zip(raw[:, 0].tolist(), raw[:, 1:], strict=True):
        before = _unfilter(kind, line, before, num_channels)
        rows.append(before)
    return np.stack(rows).reshape(height, width, num_channels)[:, :, :3]


def _unfilter(kind: int, line: Pixels, above: Pixels, step: int) -> Pixels:
    """Undo the filter of one row; see the PNG specification, section 9."""
    if kind == 0:
        return line
    if kind == 2:
        return line + above
    out = [0] * (len(line) + step)
    up = [0] * step + above.tolist()
    for index, value in enumerate(line.tolist(), start=step):
        left, over, corner = out[index - step], up[index], up[index - step]
        if kind == 1:
            guess = left
        elif kind == 3:
            guess = (left + over) // 2
        else:
            estimate = left + over - corner
            distances = abs(estimate - left), abs(estimate - over), abs(estimate - corner)
            guess = (left, over, corner)[distances.index(min(distances))]
        out[index] = (value + guess) & 255
    return np.array(out[step:], dtype=np.uint8)
