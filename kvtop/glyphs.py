"""The signs of the view: each state has its own, so that colour is never the only difference."""

from kvengine.telemetry.schema import Status
from kvengine.telemetry.state import BlockState

BLOCK_GLYPHS = {
    BlockState.NULL: "×",
    BlockState.FREE: "·",
    BlockState.CACHED_FREE: "▒",
    BlockState.USED: "■",
    BlockState.SHARED: "◆",
}
BLOCK_NAMES = {
    BlockState.NULL: "null",
    BlockState.FREE: "free",
    BlockState.CACHED_FREE: "cached, free",
    BlockState.USED: "used",
    BlockState.SHARED: "shared",
}
PINNED_GLYPH = "▣"
"""A block that a transfer reads, whoever else holds it."""
STATUS_GLYPHS = {Status.RUNNING: "●", Status.WAITING: "○", Status.PREEMPTED: "▲"}
LEVELS = " ▁▂▃▄▅▆▇█"
"""Eighths of a cell, from the bottom."""
EIGHTHS_ACROSS = " ▏▎▍▌▋▊▉█"
"""Eighths of a cell, from the left."""
MISSING = "–"
"""What stands where a figure is not known; never 0."""
