"""A screen as a small SVG file whose lines can be compared: a rectangle a background, a text a run of one style."""

from collections.abc import Sequence
from html import escape
from itertools import groupby

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

FONT, COLUMN, LINE, BASELINE = 15, 9, 17, 14
"""Pixels. Blocks of DejaVu Sans Mono at this size reach from line to line."""
BACKGROUND, FOREGROUND = "#10141b", "#c8d0dc"
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
"""Instead of several spaces in a row: browsers draw those as one, and stretch the letters over what is left."""


def draw_screen(strips: Sequence[Strip]) -> str:
    """The screen as SVG; equal screens make equal texts, on any machine."""
    columns, lines = max(strip.cell_length for strip in strips), len(strips)
    width, height = columns * COLUMN, lines * LINE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'font-family="DejaVu Sans Mono, monospace" font-size="{FONT}">',
        f'<rect width="{width:g}" height="{height:g}" fill="{BACKGROUND}"/>',
    ]
    for y, strip in enumerate(strips):
        parts += _draw_line(list(strip), y)
    return "\n".join([*parts, "</svg>", ""])


def _draw_line(segments: Sequence[Segment], y: int) -> list[str]:
    rectangles: list[str] = []
    texts: list[str] = []
    x = 0
    for (colour, back, weight), run in groupby(segments, key=lambda segment: _look(segment.style)):
        text = "".join(segment.text for segment in run)
        if back != BACKGROUND:
            place = f'x="{x * COLUMN:g}" y="{y * LINE}" width="{len(text) * COLUMN:g}" height="{LINE}"'
            rectangles.append(f'<rect {place} fill="{back}"/>')
        shown = text.strip(" ")
        if shown:
            start = x + len(text) - len(text.lstrip(" "))
            bold = ' font-weight="bold"' if weight else ""
            texts.append(
                f'<text x="{start * COLUMN:g}" y="{y * LINE + BASELINE}" textLength="{len(shown) * COLUMN:g}" '
                f'fill="{colour}"{bold}>{escape(_kept_apart(shown), quote=False)}</text>'
            )
        x += len(text)
    return rectangles + texts


def _kept_apart(text: str) -> str:
    return text.replace("  ", 2 * NO_BREAK_SPACE)


def _look(style: Style | None) -> tuple[str, str, bool]:
    """Colour, background and weight of a run."""
    if style is None:
        return FOREGROUND, BACKGROUND, False
    colour = style.color.get_truecolor().hex if style.color is not None else FOREGROUND
    back = style.bgcolor.get_truecolor(foreground=False).hex if style.bgcolor is not None else BACKGROUND
    return (back, colour, bool(style.bold)) if style.reverse else (colour, back, bool(style.bold))
