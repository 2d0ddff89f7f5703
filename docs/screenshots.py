"""`python docs/screenshots.py`: draws the pictures of kvtop in `docs/img`; `make screenshots` makes what they show.

Two recordings of the real engine (`kvplan run quickstart`, with blocks of 16 and of 64 tokens) and the guided scenes.
`--only NAME` draws one of them.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kvengine.errors import KVError
from kvengine.telemetry.commands import Pause, TakeSteps
from kvengine.telemetry.recording import Recording
from kvtop.app import KvtopApp
from kvtop.demo_process import DemoProcess
from kvtop.screen_svg import draw_screen
from kvtop.screen_text import strips_of
from kvtop.sources.live import LiveSource
from kvtop.sources.recording import RecordingSource

if TYPE_CHECKING:
    from textual.pilot import Pilot

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "img"
FIRST, SECOND = ROOT / "results" / "quickstart.kvrec", ROOT / "results" / "quickstart-64.kvrec"
SIZE = (132, 40)
PATIENCE_S = 30.0
FORK_SHOWN_AFTER = 5
"""Steps of the scene in which a request forks."""


def main() -> int:
    """Draw the pictures."""
    pictures: dict[str, Callable[[], Awaitable[str]]] = {
        "kvtop": draw_recording,
        "kvtop-compare": draw_comparison,
        "kvtop-demo": draw_demo,
    }
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=pictures, help="one of the pictures")
    options = parser.parse_args()
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, draw in pictures.items():
        if options.only in (None, name):
            try:
                (IMAGES / f"{name}.svg").write_text(asyncio.run(_of(draw)))
            except KVError as error:
                sys.stderr.write(f"error: {error}\nhint: {error.hint or 'make screenshots'}\n")
                return error.exit_code
    return 0


async def draw_recording() -> str:
    """The fullest step of a run, with one request's blocks lit."""
    app = KvtopApp(RecordingSource(Recording.open(FIRST), start=fullest_position(FIRST)))
    async with app.run_test(size=SIZE) as pilot:
        await _until(pilot, lambda: app.watching.model.picture is not None)
        await pilot.press("2", "down", "down", "1", "down", "right", "right")
        return await _picture(app, pilot)


async def draw_comparison() -> str:
    """Two block sizes at the same step."""
    start = fullest_position(SECOND)
    first, second = (RecordingSource(Recording.open(path), start=start) for path in (FIRST, SECOND))
    app = KvtopApp(first, other=second)
    async with app.run_test(size=SIZE) as pilot:
        await _until(pilot, lambda: all(model.picture is not None for model in app.models))
        return await _picture(app, pilot)


async def draw_demo() -> str:
    """The step of the second scene in which a request has just forked."""
    with DemoProcess() as process:
        source = LiveSource(process.attach(), following=process)
        app = KvtopApp(source)
        async with app.run_test(size=SIZE) as pilot:
            model = app.watching.model
            await _until(pilot, lambda: model.picture is not None)
            source.do(Pause())
            await pilot.press("d")
            await _until(pilot, lambda: model.facts is not None and "2 of" in model.facts.label)
            await _until(pilot, lambda: model.step == 1)
            source.do(TakeSteps(FORK_SHOWN_AFTER - 1))
            await _until(pilot, lambda: model.step == FORK_SHOWN_AFTER)
            return await _picture(app, pilot)


def fullest_position(path: Path) -> int:
    """The position with the most blocks shared and in use; of several, the one in the middle."""
    with Recording.open(path) as recording:
        fullness = [sample.totals.used + 2 * sample.totals.shared for sample in recording.samples]
    best = [position for position, held in enumerate(fullness) if held == max(fullness)]
    return best[len(best) // 2]


async def _of(draw: Callable[[], Awaitable[str]]) -> str:
    return await draw()


async def _until(pilot: "Pilot[None]", condition: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > give_up_s:
            raise TimeoutError("the view did not show what is to be drawn")
        await pilot.pause(0.05)


async def _picture(app: KvtopApp, pilot: "Pilot[None]") -> str:
    """All panes up to date, as SVG."""
    await pilot.pause(0.5)
    app.show_all()
    await pilot.pause()
    return draw_screen(strips_of(app))


if __name__ == "__main__":
    sys.exit(main())
