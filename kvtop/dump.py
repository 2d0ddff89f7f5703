"""The text of the screen, once, without a terminal."""

import asyncio
import time

from textual.pilot import Pilot

from kvengine.command_line import EXIT_BUG
from kvengine.errors import TelemetryError
from kvtop.app import KvtopApp
from kvtop.screen_text import text_of
from kvtop.server_view import NO_EVENTS
from kvtop.sources.base import Source
from kvtop.view_model import Phase, ViewModel

PICTURE_WITHIN_S = 30.0
"""How long an engine may take to finish a step, and a server to answer."""
EVENTS_WITHIN_S = 3.0
"""How long a server's events may take to come, where it says that it publishes any."""
LOOK_S = 0.05


def dump(source: Source, size: tuple[int, int], *, other: Source | None = None) -> str:
    """Draw what a source shows first on a screen of so many columns and lines.

    Args:
        source: What is shown.
        size: Columns and lines.
        other: What it is compared with.

    Raises:
        TelemetryError: It shows nothing within the time there is, or a server's answer has no figures.
    """
    return asyncio.run(_Dump(source, other, size).run())


class _Dump:
    def __init__(self, source: Source, other: Source | None, size: tuple[int, int]) -> None:
        self._app = KvtopApp(source, other=other)
        self._size = size
        self._text = ""
        self._failure: TelemetryError | None = None

    async def run(self) -> str:
        await self._app.run_async(headless=True, size=self._size, auto_pilot=self._look)
        if self._app.return_code:
            raise SystemExit(EXIT_BUG)  # Textual has printed the traceback of what went wrong
        if self._failure is not None:
            raise self._failure
        return self._text

    async def _look(self, pilot: Pilot[object]) -> None:
        """Wait for a picture, draw all of it, and leave."""
        begun_s = time.monotonic()
        while not self._is_shown(time.monotonic() - begun_s):
            if self._failure is not None:
                self._app.exit()
                return
            await asyncio.sleep(LOOK_S)
        self._app.show_all()
        await pilot.pause()
        self._text = text_of(self._app)
        self._app.exit()

    def _is_shown(self, waited_s: float) -> bool:
        """Whether all that is shown has something to show; `_failure` is set if that will not be."""
        missing = [m for m in self._app.models if not is_shown(m, waits_for_events=waited_s < EVENTS_WITHIN_S)]
        reasons = [why_nothing(model, is_late=waited_s > PICTURE_WITHIN_S) for model in missing]
        self._failure = next((reason for reason in reasons if reason is not None), None)
        return not missing


def is_shown(model: ViewModel, *, waits_for_events: bool = False) -> bool:
    """Whether there is something to see, and with it the events that are listened to, if those are waited for."""
    if not model.is_server:
        return model.picture is not None
    events = model.server.events if model.server is not None else NO_EVENTS
    is_looked_for = model.total is not None and events is NO_EVENTS
    if waits_for_events and (is_looked_for or (events.is_listening and not events.is_settled)):
        return False
    return model.total is not None or events.num_blocks is not None


def why_nothing(model: ViewModel, *, is_late: bool) -> TelemetryError | None:
    """Why there will be nothing to see; None while there may be."""
    status = model.status
    if status.phase in (Phase.FAILING, Phase.GONE, Phase.ENDED):
        return TelemetryError(f"{model.source_name}: {status.detail}")
    if is_late:
        return TelemetryError(f"{model.source_name}: nothing to be seen within {PICTURE_WITHIN_S:g} s")
    return None
