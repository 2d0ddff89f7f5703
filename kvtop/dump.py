"""The text of the screen, once, without a terminal."""

import asyncio
import time

from textual.pilot import Pilot

from kvengine.errors import TelemetryError
from kvtop.app import KvtopApp
from kvtop.screen_text import text_of
from kvtop.sources.base import Source
from kvtop.view_model import Phase, ViewModel

PICTURE_WITHIN_S = 30.0
"""How long an engine may take to finish a step, and a server to answer."""
LOOK_S = 0.05


def dump(source: Source, size: tuple[int, int]) -> str:
    """Draw what a source shows first on a screen of so many columns and lines.

    Raises:
        TelemetryError: It shows nothing within the time there is, or a server's answer has no figures.
    """
    return asyncio.run(_Dump(source, size).run())


class _Dump:
    def __init__(self, source: Source, size: tuple[int, int]) -> None:
        self._app = KvtopApp(source)
        self._size = size
        self._text = ""
        self._failure: TelemetryError | None = None

    async def run(self) -> str:
        await self._app.run_async(headless=True, size=self._size, auto_pilot=self._look)
        if self._failure is not None:
            raise self._failure
        return self._text

    async def _look(self, pilot: Pilot[object]) -> None:
        """Wait for a picture, draw all of it, and leave."""
        watching = self._app.watching
        give_up_s = time.monotonic() + PICTURE_WITHIN_S
        while not is_shown(watching.model):
            self._failure = why_nothing(watching.model, is_late=time.monotonic() > give_up_s)
            if self._failure is not None:
                self._app.exit()
                return
            await asyncio.sleep(LOOK_S)
        watching.show_all()
        await pilot.pause()
        self._text = text_of(self._app)
        self._app.exit()


def is_shown(model: ViewModel) -> bool:
    """Whether there is something to see."""
    if model.is_server:
        return model.total is not None or (model.server is not None and model.server.events.num_blocks is not None)
    return model.picture is not None


def why_nothing(model: ViewModel, *, is_late: bool) -> TelemetryError | None:
    """Why there will be nothing to see; None while there may be."""
    status = model.status
    if status.phase in (Phase.FAILING, Phase.GONE, Phase.ENDED):
        return TelemetryError(f"{model.source_name}: {status.detail}")
    if is_late:
        return TelemetryError(f"{model.source_name}: nothing to be seen within {PICTURE_WITHIN_S:g} s")
    return None
