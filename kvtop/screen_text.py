"""What is on the screen of a running app, as text."""

from collections.abc import Sequence
from typing import Any

from textual.app import App
from textual.strip import Strip


def strips_of(app: App[Any]) -> Sequence[Strip]:
    """The lines of the whole screen, with their styles; screens that lie over others are drawn alone."""
    return app.screen._compositor.render_strips(app.size)  # what Textual's own screenshots are made from


def text_of(app: App[Any]) -> str:
    """The lines of the screen without colours, and without blanks at their ends."""
    return "\n".join(strip.text.rstrip() for strip in strips_of(app)) + "\n"
