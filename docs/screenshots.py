"""`python docs/screenshots.py [RECORDING]`: draws `docs/img/kvtop.svg` from a recording of the real engine.

Without a recording it takes `results/quickstart.kvrec`, which `kvplan run quickstart` leaves. The picture shows the
step with the most blocks shared and in use, with one request selected; `--step`, `--size` and `--keys` ask for others.
"""

import argparse
import asyncio
import html
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kvengine.errors import KVError
from kvengine.telemetry.recording import Recording
from kvtop.app import KvtopApp
from kvtop.sources.recording import RecordingSource, SeekStep

ROOT = Path(__file__).parents[1]
PATIENCE_S = 20.0
FONTS = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
_TEXT = re.compile(r'<text class="([^"]*)" x="([\d.]+)" y="([\d.]+)" textLength="([\d.]+)"([^>]*)>([^<]*)</text>')
_FONT_FACE = re.compile(r"@font-face \{[^}]*\}\s*")


def main() -> int:
    """Draw one picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recording", nargs="?", type=Path, default=ROOT / "results" / "quickstart.kvrec")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "img" / "kvtop.svg")
    parser.add_argument("--size", default="120x36", help="columns x lines of the terminal")
    parser.add_argument("--step", type=int, help="the fullest one unless given")
    parser.add_argument("--keys", nargs="*", default=["down", "down"], help="pressed before the picture is taken")
    options = parser.parse_args()
    columns, _, lines = options.size.partition("x")
    try:
        picture = asyncio.run(draw(options.recording, (int(columns), int(lines)), options.step, options.keys))
    except KVError as error:
        sys.stderr.write(f"error: {error}\nhint: {error.hint or 'kvplan run quickstart leaves a recording'}\n")
        return error.exit_code
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(tidy(picture))
    return 0


async def draw(path: Path, size: tuple[int, int], step: int | None, keys: list[str]) -> str:
    """The view of one step as SVG."""
    source = RecordingSource(Recording.open(path))
    app = KvtopApp(source)
    async with app.run_test(size=size) as pilot:

        async def until(condition: Callable[[], bool]) -> None:
            give_up_s = time.monotonic() + PATIENCE_S
            while not condition() and time.monotonic() < give_up_s:
                await pilot.pause(0.05)

        await until(lambda: app.watching.model.picture is not None)
        wanted = fullest_step(path) if step is None else step
        source.do(SeekStep(wanted))
        await until(lambda: app.watching.model.picture is not None and app.watching.model.picture.step == wanted)
        await pilot.pause(1.0)  # the lists follow the map a little later
        for key in keys:
            await pilot.press(key)
        await pilot.pause(0.5)
        return app.export_screenshot(title=f"kvtop {path.name}")


def fullest_step(path: Path) -> int:
    """The step with the most blocks shared and in use; of several, the one in the middle."""
    with Recording.open(path) as recording:
        fullness = [sample.totals.used + 2 * sample.totals.shared for sample in recording.samples]
        best = [sample.step for sample, held in zip(recording.samples, fullness, strict=True) if held == max(fullness)]
    return best[len(best) // 2]


def tidy(svg: str) -> str:
    """The same picture without fonts from the network, and without blanks at the ends of texts.

    Some viewers drop such blanks and then stretch what is left over the length of the whole.
    """

    def trim(match: re.Match[str]) -> str:
        name, x, y, length, rest, escaped = match.groups()
        text = html.unescape(escaped).replace("\xa0", " ")
        if not text.strip():
            return ""
        column = float(length) / len(text)
        left = float(x) + column * (len(text) - len(text.lstrip()))
        kept = text.strip()
        escaped = html.escape(kept).replace(" ", "&#160;")
        return (
            f'<text class="{name}" x="{left:.1f}" y="{y}" textLength="{column * len(kept):.1f}"{rest}>{escaped}</text>'
        )

    return _TEXT.sub(trim, _FONT_FACE.sub("", svg)).replace("Fira Code, monospace", FONTS)


if __name__ == "__main__":
    sys.exit(main())
