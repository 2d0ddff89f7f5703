"""Every screen and every state of a source, drawn at three sizes and compared with pictures that were looked at.

`make snapshots` draws them anew; the difference is to be looked at before it is kept.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from textual.widgets import Input

from kvengine.telemetry.engine_list import EngineList
from kvengine.telemetry.metrics import MetricsState
from kvengine.telemetry.recording import Recording
from kvengine.telemetry.schema import ControlState
from kvtop.app import KvtopApp
from kvtop.config import UserConfig
from kvtop.palette import LIGHT
from kvtop.screen_svg import draw_screen
from kvtop.screen_text import strips_of
from kvtop.sources.base import Source
from kvtop.sources.recording import RecordingSource
from kvtop.view_model import Phase
from tests.foreign_servers import a_v1_text
from tests.tui.conftest import until
from tests.tui.still_sources import StillServer, an_engine, cache_events
from tests.watched_engine import record_a_run

SIZES = [(80, 24), (120, 40), (200, 60)]
FOLDER = Path(__file__).parent / "snapshots"
IS_REWRITTEN = os.environ.get("KVTOP_SNAPSHOTS") == "write"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One picture."""

    source: Callable[[Path], Source]
    other: Callable[[Path], Source] | None = None
    keys: Sequence[str] = ()
    has_picture: bool = True
    is_light: bool = False
    age_s: float = 0.2
    """How long ago what is shown was told."""


def a_recording(folder: Path, *, step: int = 4) -> RecordingSource:
    path = folder / "run.kvrec"
    if not path.exists():
        record_a_run(path)
    return RecordingSource(Recording.open(path), start=step)


def steered(_: Path) -> Source:
    source = an_engine(Phase.LIVE, accepts=("block", "pause", "steps", "speed", "resize", "abort", "preempt"))
    source.control = ControlState(is_paused=True, steps_per_s=2.0, usable_blocks=20, withheld_blocks=2)
    return source


def two_answers(**fields: object) -> StillServer:
    later = [line.replace("} 1000", "} 1600").replace("} 200", "} 260") for line in a_v1_text(usage="0.42")]
    return StillServer(a_v1_text(usage="0.3"), later, **fields)


BOTH_RANKS = [*a_v1_text(usage="0.9"), *a_v1_text(engine="1", usage="0.1")]
GONE = "the engine went away without a goodbye; the next engine is waited for"
CASES = {
    # States of an engine.
    "engine-none": Case(
        source=lambda _: an_engine(Phase.CHOOSING, "no engine runs on this machine; kvtop waits for one", steps=0),
        has_picture=False,
    ),
    "engine-attached": Case(source=lambda _: an_engine(Phase.WAITING, steps=0), has_picture=False),
    "engine-live": Case(source=lambda _: an_engine(Phase.LIVE)),
    "engine-gap": Case(source=lambda _: an_engine(Phase.LOST, "deltas 7 to 9 are missing, waiting for a snapshot")),
    "engine-ended": Case(source=lambda _: an_engine(Phase.ENDED, "done; the next engine is waited for")),
    "engine-gone": Case(source=lambda _: an_engine(Phase.GONE, GONE), age_s=72.0),
    "engine-silent": Case(source=lambda _: an_engine(Phase.LIVE), age_s=5.0),
    "engine-steered": Case(source=steered),
    "engine-paused-view": Case(source=lambda _: an_engine(Phase.LIVE), keys=["space"]),
    # States of a server.
    "server-metrics": Case(source=lambda _: two_answers()),
    "server-events": Case(source=lambda _: two_answers(events=cache_events())),
    "server-events-lost": Case(source=lambda _: two_answers(events=cache_events(lost=True))),
    "server-two-ranks": Case(source=lambda _: StillServer(BOTH_RANKS, BOTH_RANKS)),
    "server-old-release": Case(source=lambda _: StillServer(a_v1_text(new_names=False, num_blocks="100"))),
    "server-not-a-number": Case(source=lambda _: StillServer(a_v1_text(usage="NaN"))),
    "server-cut": Case(source=lambda _: two_answers(state=MetricsState.PARTIAL, detail="cut in the middle")),
    "server-error": Case(source=lambda _: two_answers(state=MetricsState.HTTP_ERROR, detail="HTTP 500"), age_s=4.0),
    "server-never-there": Case(
        source=lambda _: StillServer(state=MetricsState.UNREACHABLE, detail="connection refused"), has_picture=False
    ),
    # Screens.
    "recording": Case(source=a_recording, keys=["2", "down", "1", "down", "right"]),
    "recording-light": Case(source=a_recording, keys=["2", "down"], is_light=True),
    "map-by-request": Case(source=a_recording, keys=["1", "o", "c"]),
    "map-enlarged": Case(source=a_recording, keys=["1", "1"]),
    "prefixes": Case(source=a_recording, keys=["3", "3"]),
    "trend": Case(source=a_recording, keys=["4", "4"]),
    "events": Case(source=a_recording, keys=["5", "5"]),
    "block": Case(source=a_recording, keys=["1", "down", "right", "6", "6"]),
    "waste": Case(source=a_recording, keys=["7", "7"]),
    "gpu": Case(source=a_recording, keys=["8"]),
    "filtered": Case(source=a_recording, keys=["2", "slash", *"blocks>1", "enter"]),
    "help": Case(source=a_recording, keys=["2", "question_mark"]),
    "jump": Case(source=a_recording, keys=["ctrl+o"]),
    "prompt": Case(source=a_recording, keys=["t"]),
    "compare": Case(source=a_recording, other=lambda folder: a_recording(folder, step=4)),
}


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", CASES)
async def test_the_screen_is_as_it_was(name, size, tmp_path):
    case = CASES[name]
    config = UserConfig(theme=LIGHT.name) if case.is_light else UserConfig()
    other = case.other(tmp_path) if case.other is not None else None
    app = KvtopApp(case.source(tmp_path), other=other, config=config)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: all(is_ready(model, has_picture=case.has_picture) for model in app.models))
        app.show_all()
        await pilot.press(*case.keys)
        for line in app.screen.query(Input):
            line.cursor_blink = False
        await pilot.pause(0.3)
        for model in app.models:
            told_s = model.received_s if model.received_s is not None else 0.0
            model.clock = lambda told_s=told_s: told_s + case.age_s
        app.show_all()
        await pilot.pause()
        drawn = draw_screen(strips_of(app))
    check(f"{name}-{size[0]}x{size[1]}", drawn, tmp_path)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_the_picker_is_as_it_was(size, tmp_path):
    folder = tmp_path / "none"
    app = KvtopApp(None, engines=EngineList(folder), config=UserConfig())
    async with app.run_test(size=size) as pilot:
        await pilot.pause(0.2)
        drawn = draw_screen(strips_of(app))
    check(f"picker-{size[0]}x{size[1]}", drawn, tmp_path)


def is_ready(model, *, has_picture: bool) -> bool:
    if model.is_server:
        return model.server is not None and model.status.phase in (Phase.LIVE, Phase.FAILING)
    return model.picture is not None if has_picture else model.status.detail != "" or model.facts is not None


def check(name: str, drawn: str, tmp_path: Path) -> None:
    """Compare with the picture that is kept, or keep this one."""
    path = FOLDER / f"{name}.svg"
    if IS_REWRITTEN:
        FOLDER.mkdir(exist_ok=True)
        path.write_text(drawn)
        return
    assert path.exists(), f"{path.name} was never drawn: make snapshots"
    if path.read_text() != drawn:
        seen = tmp_path / path.name
        seen.write_text(drawn)
        before, after = path.read_text().splitlines(), drawn.splitlines()
        first = next((pair for pair in zip(before, after, strict=False) if pair[0] != pair[1]), ("", ""))
        raise AssertionError(f"{name} looks different, see {seen}; the first difference:\n{first[0]}\n{first[1]}")
